/* Reads the role from the command line, and plays the roles that use cards. */
#include "player.h"

#include "driver.h"
#include "nvml_abi.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t, nvmlUtilization_t *);
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *, unsigned long long);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemHostAlloc(void **, size_t, unsigned);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *, void *, unsigned);
CUresult cuStreamWaitValue32_v2(CUstream, CUdeviceptr, uint32_t, unsigned);
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *, unsigned, unsigned);

struct part part = {.us = 1000, .n = 1, .rate = 20, .card_count = 1, .room = 100};

#define CARDS 8
static CUcontext contexts[CARDS];
static CUfunction spin[CARDS], meet[CARDS];
static CUstream streams[CARDS];
static struct board *board;

static void must(CUresult r, const char *what)
{
    if (!r) return;
    fprintf(stderr, "player: %s answers %d\n", what, (int)r);
    exit(3);
}

/* ---- the card ---- */

static const char *program_text(void)
{
    static char text[400];
    double room = part.room / 100.0;
    int peers = part.peers ? (int)part.peers : part.card_count;
    snprintf(text, sizeof text, ".version 7.0\n.target sm_80\n.address_size 64\n// simgpu: time_us=$0 share=%.2f\n.visible .entry spin(.param .u64 us) { ret; }\n"
             "// simgpu: time_us=$0 share=%.2f meet=%d\n.visible .entry meet(.param .u64 us, .param .u64 number) { ret; }\n", room, room, peers);
    return text;
}

static void prepare(void)
{
    const char *text = program_text();
    must(cuInit(0), "cuInit");
    for (int i = 0; i < part.card_count; i++) {
        CUmodule module;
        bool again = i && part.cards[i] == part.cards[0];
        if (again) contexts[i] = contexts[0], must(cuCtxSetCurrent(contexts[0]), "cuCtxSetCurrent");
        else must(cuCtxCreate_v2(&contexts[i], 0, part.cards[i]), "cuCtxCreate");
        must(cuModuleLoadData(&module, text), "cuModuleLoadData");
        must(cuModuleGetFunction(&spin[i], module, "spin"), "cuModuleGetFunction");
        must(cuModuleGetFunction(&meet[i], module, "meet"), "cuModuleGetFunction");
        must(cuStreamCreate(&streams[i], 1), "cuStreamCreate");
    }
}

CUfunction player_kernel(void) { return spin[0]; }

static void launch(int i, uint64_t us)
{
    if (part.card_count > 1) must(cuCtxSetCurrent(contexts[i]), "cuCtxSetCurrent");
    must(cuLaunchKernel(spin[i], 1024, 1, 1, 256, 1, 1, 0, streams[i], (void *[]){&us}, NULL), "cuLaunchKernel");
}

static void wait_for(int i)
{
    if (part.card_count > 1) must(cuCtxSetCurrent(contexts[i]), "cuCtxSetCurrent");
    must(cuStreamSynchronize(streams[i]), "cuStreamSynchronize");
}

void play_work(void)
{
    while (clock_now() < part.end) {
        for (int i = 0; i < part.card_count; i++) launch(i, part.us);
        for (int i = 0; part.sync && i < part.card_count; i++) wait_for(i);
    }
}

/* Kernels of shapes that were never launched before, so that their lengths are unknown, in n streams. */
void play_fresh(void)
{
    CUstream own[16];
    unsigned n = part.n < 16 ? part.n : 16;
    for (unsigned i = 0; i < n; i++) must(cuStreamCreate(&own[i], 1), "cuStreamCreate");
    for (unsigned blocks = 1024; clock_now() < part.end; blocks++) {
        uint64_t us = part.us;
        must(cuLaunchKernel(spin[0], blocks, 1, 1, 256, 1, 1, 0, own[blocks % n], (void *[]){&us}, NULL), "cuLaunchKernel");
    }
}

/* Each context has a stream and a module of its own. */
void play_contexts(void)
{
    static CUcontext own[64];
    static CUstream stream[64];
    static CUfunction kernel[64];
    unsigned n = part.n < 64 ? part.n : 64;
    for (unsigned i = 0; i < n; i++) {
        CUmodule module;
        must(cuCtxCreate_v2(&own[i], 0, part.cards[0]), "cuCtxCreate");
        must(cuModuleLoadData(&module, program_text()), "cuModuleLoadData");
        must(cuModuleGetFunction(&kernel[i], module, "spin"), "cuModuleGetFunction");
        must(cuStreamCreate(&stream[i], 1), "cuStreamCreate");
    }
    for (unsigned blocks = 1024; clock_now() < part.end; blocks++) {
        uint64_t us = part.us;
        unsigned i = blocks % n;
        must(cuCtxSetCurrent(own[i]), "cuCtxSetCurrent");
        must(cuLaunchKernel(kernel[i], part.sync ? 1024 : blocks, 1, 1, 256, 1, 1, 0, stream[i], (void *[]){&us}, NULL), "cuLaunchKernel");
    }
}

static char state_of_thread(const char *number)
{
    char path[300], line[300] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/stat", number);
    FILE *f = fopen(path, "r");
    if (f && !fgets(line, sizeof line, f)) line[0] = 0;
    if (f) fclose(f);
    char *end = strrchr(line, ')');
    return end ? end[2] : 'S'; /* it has ended */
}

static bool others_sleep(void)
{
    DIR *tasks = opendir("/proc/self/task");
    bool all = tasks != NULL;
    for (struct dirent *e; tasks && (e = readdir(tasks));)
        if (atoi(e->d_name) && atoi(e->d_name) != getpid()) all &= state_of_thread(e->d_name) == 'S';
    if (tasks) closedir(tasks);
    return all;
}

/* A thread that sleeps holds none of simgpu's locks. With one of these, all of the simulated host would stand still. */
void play_stops(void)
{
    launch(0, part.us);
    while (!others_sleep()) sched_yield();
    kill(getpid(), SIGSTOP);
    play_work();
}

void play_multi(void)
{
    for (unsigned turn = 0; clock_now() < part.end; turn++) {
        uint64_t us = part.us;
        void *parameters[] = {&us};
        CUDA_LAUNCH_PARAMS list[CARDS] = {{0}};
        for (int i = 0; i < part.card_count; i++)
            list[i] = (CUDA_LAUNCH_PARAMS){spin[i], 128, 1, 1, 256, 1, 1, 0, streams[i], parameters};
        must(cuLaunchCooperativeKernelMultiDevice(list, (unsigned)part.card_count, 0), "cuLaunchCooperativeKernelMultiDevice");
        for (int i = 0; part.sync && i < part.card_count; i++) wait_for(i);
    }
}

/* Launches card by card, like a collective library. Ranks, the processes of a ring, have a common number. */
void play_ring(void)
{
    uint64_t us = part.us, number = (part.ring ? part.ring : (uint64_t)getpid() & 0xffff) << 16;
    for (uint64_t from; (from = clock_now()) < part.end;) {
        number++;
        for (int i = 0; i < part.card_count; i++) {
            if (part.before) launch(i, part.before);
            must(cuCtxSetCurrent(contexts[i]), "cuCtxSetCurrent");
            must(cuLaunchKernel(meet[i], 8, 1, 1, 256, 1, 1, 0, streams[i], (void *[]){&us, &number}, NULL), "cuLaunchKernel");
        }
        for (int i = 0; i < part.card_count; i++) wait_for(i);
        uint32_t at = atomic_fetch_add(&part.seat->requests, 1);
        if (at < REQUESTS) part.seat->latency_us[at] = (uint32_t)((clock_now() - from) / 1000);
    }
}

/* A kernel that runs all the time on a part of the card, until its peer is launched, beside short ones. */
void play_persistent(void)
{
    uint64_t us = part.us, number = 1;
    CUstream own;
    must(cuStreamCreate(&own, 1), "cuStreamCreate");
    for (int i = 0; i < 20; i++) launch(0, part.us), wait_for(0); /* so that its length is known */
    must(cuLaunchKernel(meet[0], 8, 1, 1, 256, 1, 1, 0, own, (void *[]){&us, &number}, NULL), "cuLaunchKernel");
    for (uint64_t from; (from = clock_now()) < part.end - 100 * MS; clock_sleep_until(clock_now() + 40 * MS)) {
        launch(0, part.us);
        wait_for(0);
        uint32_t at = atomic_fetch_add(&part.seat->requests, 1);
        if (at < REQUESTS) part.seat->latency_us[at] = (uint32_t)((clock_now() - from) / 1000);
    }
    must(cuLaunchKernel(meet[0], 8, 1, 1, 256, 1, 1, 0, streams[0], (void *[]){&us, &number}, NULL), "cuLaunchKernel");
    must(cuStreamSynchronize(own), "cuStreamSynchronize");
}

void play_full(void)
{
    while (dup(0) >= 0) {}
    play_work();
}

void play_rooted(void)
{
    if (chroot("/usr") != 0) perror("chroot"), exit(2);
    play_work();
}

/* Every connect() fails with error n. */
void play_boxed(void)
{
    struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_connect, 0, 1),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | part.n), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) perror("seccomp"), exit(2);
    play_work();
}

/* The program's own connect(), which the library's calls would reach before libc's. */
static bool lies;
__attribute__((visibility("default"))) int connect(int fd, const struct sockaddr *name, socklen_t size)
{
    return lies ? errno = ENOENT, -1 : (int)syscall(SYS_connect, fd, name, size);
}

void play_liar(void)
{
    lies = true;
    play_work();
}

/* ---- threads beside the role ---- */

struct beside {
    void *(*work)(void *);
    _Atomic bool present;
};

static void *beside_begin(void *of)
{
    struct beside *b = of;
    void *(*work)(void *) = b->work;
    clock_now(); /* from here on the virtual clock waits for this thread */
    atomic_store(&b->present, true);
    return work(NULL);
}

/* Starts a thread. The virtual clock, which does not know it before, stands still meanwhile. */
static void play_beside(void *(*work)(void *))
{
    struct beside b = {.work = work};
    pthread_t thread;
    if (pthread_create(&thread, NULL, beside_begin, &b)) perror("player: a thread"), exit(2);
    while (!atomic_load(&b.present)) sched_yield();
}

static void *close_sockets(void *unused)
{
    for (struct stat st; clock_now() < part.end; clock_sleep_until(clock_now() + part.n * 1000ull))
        for (int fd = 3; fd < 64; fd++)
            if (fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode)) close(fd);
    return unused;
}

void play_closer(void)
{
    play_beside(close_sockets);
    play_work();
}

#define HELD 64 /* kernels in each stream */
void play_held(void)
{
    uint32_t *words;
    CUdeviceptr at;
    CUstream held[16];
    unsigned n = part.n < 16 ? part.n : 16;
    must(cuMemHostAlloc((void **)&words, 4096, 2), "cuMemHostAlloc");
    must(cuMemHostGetDevicePointer_v2(&at, words, 0), "cuMemHostGetDevicePointer");
    for (unsigned i = 0; i < n; i++) must(cuStreamCreate(&held[i], 1), "cuStreamCreate");
    for (int i = 0; i < 20; i++) launch(0, part.us), wait_for(0); /* so that its length is known */
    for (uint32_t round = 1; clock_now() < part.end; round++) {
        uint64_t us = part.us;
        for (unsigned i = 0; i < n; i++) must(cuStreamWaitValue32_v2(held[i], at + 4 * i, round, 0), "cuStreamWaitValue32");
        for (unsigned i = 0; i < n * HELD; i++)
            must(cuLaunchKernel(spin[0], 1024, 1, 1, 256, 1, 1, 0, held[i % n], (void *[]){&us}, NULL), "cuLaunchKernel");
        for (unsigned i = 0; i < n; i++) {
            words[i] = round;
            must(cuStreamSynchronize(held[i]), "cuStreamSynchronize");
        }
    }
}

static double uniform(void) /* 0 < u <= 1 */
{
    static uint64_t state = 20;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)((state >> 33) + 1) / 2147483648.0;
}

void play_service(void)
{
    for (uint64_t next = part.begin; (next += (uint64_t)(-log(uniform()) / part.rate * 1e9)) < part.end;) {
        clock_sleep_until(next);
        for (unsigned i = 0; i < part.n; i++) launch(0, part.us);
        wait_for(0);
        uint32_t at = atomic_fetch_add(&part.seat->requests, 1);
        if (at < REQUESTS) part.seat->latency_us[at] = (uint32_t)((clock_now() - next) / 1000);
    }
}

/* ---- values from NVML ---- */

static void *watch(void *unused)
{
    nvmlDevice_t device;
    nvmlUtilization_t rates;
    FILE *f = fopen(part.out, "w");
    if (!f || nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device)) return fprintf(stderr, "player: no NVML\n"), NULL;
    nvmlDeviceGetUtilizationRates(device, &rates);
    while (clock_now() + 200 * MS < part.end) {
        nvmlProcessUtilizationSample_t samples[16];
        unsigned count = 16, sum = 0;
        clock_sleep_until(clock_now() + 500 * MS);
        if (nvmlDeviceGetUtilizationRates(device, &rates)) rates.gpu = 999;
        if (nvmlDeviceGetProcessUtilization(device, samples, &count, 0)) count = 0;
        for (unsigned i = 0; i < count; i++) sum += samples[i].smUtil;
        fprintf(f, "%u %u %u\n", rates.gpu, count, sum);
        fflush(f);
    }
    fclose(f);
    return unused;
}

void play_nvml(void)
{
    play_beside(watch);
    play_work();
}

/* ---- the role ---- */

static void *die(void *unused)
{
    clock_sleep_until(part.start + part.die * MS);
    kill(getpid(), SIGKILL);
    return unused;
}

static void read_cards(char *list)
{
    char *save = NULL;
    part.card_count = 0;
    for (char *c = strtok_r(list, ":", &save); c && part.card_count < CARDS; c = strtok_r(NULL, ":", &save)) part.cards[part.card_count++] = atoi(c);
}

static void read_word(char *word)
{
    static const struct { const char *key; unsigned *to; } numbers[] = {
        {"us", &part.us}, {"n", &part.n}, {"rate", &part.rate}, {"sync", &part.sync}, {"die", &part.die}, {"cores", &part.cores},
        {"limit", &part.limit}, {"weight", &part.weight}, {"priority", &part.priority}, {"card", &part.card}, {"back", &part.back},
        {"before", &part.before}, {"peers", &part.peers}, {"room", &part.room}, {"ring", &part.ring}};
    static const struct { const char *key; char *to; size_t size; } texts[] = {
        {"role", part.role, sizeof part.role}, {"slice", part.slice, sizeof part.slice}, {"out", part.out, sizeof part.out},
        {"program", part.program, sizeof part.program}, {"slices", part.slices, sizeof part.slices}};
    char *value = strchr(word, '=');
    if (!value) return;
    *value++ = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(word, numbers[i].key)) *numbers[i].to = (unsigned)atoi(value);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!strcmp(word, texts[i].key)) snprintf(texts[i].to, texts[i].size, "%s", value);
    if (!strcmp(word, "cards")) read_cards(value);
}

static const struct role { const char *name; void (*play)(void); bool uses_cards; } roles[] = {
    {"work", play_work, true}, {"fresh", play_fresh, true}, {"contexts", play_contexts, true}, {"stops", play_stops, true}, {"multi", play_multi, true}, {"ring", play_ring, true}, {"persistent", play_persistent, true}, {"service", play_service, true}, {"nvml", play_nvml, true},
    {"full", play_full, true}, {"rooted", play_rooted, true}, {"closer", play_closer, true}, {"boxed", play_boxed, true}, {"liar", play_liar, true}, {"held", play_held, true},
    {"old_events", play_old_events, true}, {"many_streams", play_many_streams, true}, {"capture_beside", play_capture_beside, true},
    {"capture_ends", play_capture_ends, true}, {"own_stream", play_thread_stream, true},
    {"host_nodes", play_host_nodes, true}, {"graph_waits", play_graph_waits, true}, {"graph_never", play_graph_never, true}, {"graph_sleeps", play_graph_sleeps, true},
    {"late", play_late, false}, {"flood", play_flood, false}, {"nonsense", play_nonsense, false}, {"connect", play_connect, false},
    {"fork", play_fork, false}, {"garbage", play_garbage, false}, {"truncate", play_truncate, false}, {"set", play_set, false},
    {"kill", play_kill, false}, {"status", play_status, false}};

static void take_seat(char **arguments)
{
    int fd = open(arguments[1], O_RDWR | O_CLOEXEC);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || board == MAP_FAILED) perror(arguments[1]), exit(2);
    close(fd);
    part.seat = &board->seats[atoi(arguments[2]) % SEATS];
}

static void await_start(const char *arrive, const char *depart)
{
    clock_now(); /* from here on the virtual clock waits for this process */
    atomic_fetch_add(&board->ready, 1);
    while (!atomic_load(&board->go)) clock_wait(&board->go, 0, 0);
    part.start = atomic_load(&board->start_ns);
    part.begin = part.start + (uint64_t)atoll(arrive) * MS;
    part.end = part.start + (uint64_t)atoll(depart) * MS;
    clock_sleep_until(part.begin);
}

int main(int count, char **arguments)
{
    const struct role *role = NULL;
    if (count < 6) return fprintf(stderr, "usage: player BOARD SEAT ARRIVE_MS DEPART_MS role=...\n"), 2;
    signal(SIGPIPE, SIG_IGN);
    take_seat(arguments);
    for (int i = 5; i < count; i++) read_word(arguments[i]);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(part.role, roles[i].name)) role = &roles[i];
    if (!role) return fprintf(stderr, "player: no role %s\n", part.role), 2;
    if (role->uses_cards) prepare();
    await_start(arguments[3], arguments[4]);
    if (part.die) play_beside(die);
    role->play();
    clock_sleep_until(part.end);
    return 0;
}
