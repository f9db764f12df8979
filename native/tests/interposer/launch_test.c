/* Launches under a hard limit, with a real arbiter: 20 % of the card, so work takes five times as long as alone. Every way to launch counts,
 * captured launches do not. Nothing may hang, whatever happens to the arbiter or to the library's descriptors. */
#include "arbiter.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

CUresult cuLaunchKernelEx(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **);

#define LIMITED CARD_A "=900MiB,context=256MiB,cores=20,cores-limit=20 " CARD_B "=900MiB,context=100MiB"
#define KERNELS 20
#define KERNEL_US 5000
#define ALONE (KERNELS * KERNEL_US / 1e6)
#define LONG_ENOUGH (3 * ALONE) /* five times, less the time of a first lease and the idle credit */

static CUcontext context;
static CUfunction spin;

static void get_ready(void)
{
    CUmodule module;
    setenv("SIMGPU_CONTENTS_MIB", "0", 1); /* fills take the card time, and no time of the machine */
    context = context_on(0);
    if (!context) _exit(1);
    EXPECT_EQ(cuModuleLoadData(&module, spin_ptx), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&spin, module, "spin"), CUDA_SUCCESS);
}

static unsigned long long kernel_us = KERNEL_US;
static void *parameters[] = {&kernel_us};

static CUresult by_kernel(void) { return spin_in(spin, KERNEL_US, NULL); }

static CUresult by_config(void)
{
    CUlaunchConfig c = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
    return cuLaunchKernelEx(&c, spin, parameters, NULL);
}

static CUresult cooperatively(void) { return cuLaunchCooperativeKernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, parameters); }
static CUresult per_thread(void) { return cuLaunchKernel_ptsz(spin, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL); }

static CUresult by_address(void)
{
    static CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
    if (!launch) EXPECT_EQ(cuGetProcAddress_v2("cuLaunchKernel", (void **)&launch, 12000, 0, NULL), CUDA_SUCCESS);
    return launch ? launch(spin, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL) : CUDA_ERROR_NOT_FOUND;
}

static CUresult in_many_streams(void)
{
    static CUstream streams[4];
    static unsigned next;
    if (!streams[0])
        for (int i = 0; i < 4; i++) EXPECT_EQ(cuStreamCreate(&streams[i], 1), CUDA_SUCCESS);
    return spin_in(spin, KERNEL_US, streams[next++ % 4]);
}

static CUgraphExec captured_kernel(unsigned long long us)
{
    CUstream s;
    CUgraph graph;
    CUgraphExec exec;
    EXPECT_EQ(cuStreamCreate(&s, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamBeginCapture_v2(s, 2), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(spin, us, s), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    return exec;
}

static CUresult by_graph(void)
{
    static CUgraphExec exec;
    if (!exec) exec = captured_kernel(KERNEL_US);
    return cuGraphLaunch(exec, NULL);
}

static CUresult with_a_wait(void)
{
    CUresult r = by_kernel();
    return r ? r : cuCtxSynchronize();
}

static double time_of(CUresult (*launch)(void))
{
    double from = seconds();
    for (int i = 0; i < KERNELS; i++) EXPECT_EQ(launch(), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    return seconds() - from;
}

#define COUNTS(way)                         \
    static void way##_counts(void)          \
    {                                       \
        get_ready();                        \
        EXPECT(time_of(way) > LONG_ENOUGH); \
    }
COUNTS(by_kernel)
COUNTS(by_config)
COUNTS(cooperatively)
COUNTS(per_thread)
COUNTS(by_address)
COUNTS(in_many_streams)
COUNTS(by_graph)
COUNTS(with_a_wait)

static CUlaunchConfig changing = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
static _Atomic int change;

static void *changes_the_config(void *unused)
{
    for (; change >= 0; usleep(100)) {
        if (!change) continue;
        usleep(10000); /* the launch now waits at the gate */
        changing.hStream = (CUstream)&changing;
        change = 0;
    }
    return unused;
}

static void a_config_that_changes_while_the_launch_waits_changes_nothing(void)
{
    pthread_t thread;
    get_ready();
    EXPECT_EQ(pthread_create(&thread, NULL, changes_the_config, NULL), 0);
    for (int i = 0; i < KERNELS; i++) {
        changing.hStream = NULL;
        change = 1;
        EXPECT_EQ(cuLaunchKernelEx(&changing, spin, parameters, NULL), CUDA_SUCCESS);
        while (change) usleep(100);
    }
    change = -1;
    EXPECT_EQ(pthread_join(thread, NULL), 0);
}

static void large_fills_count(void)
{
    get_ready();
    CUdeviceptr p;
    EXPECT_EQ(cuMemAlloc_v2(&p, 256 * MIB), CUDA_SUCCESS);
    double from = seconds();
    EXPECT_EQ(cuMemsetD8_v2(p, 1, 256 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    double one = seconds() - from;
    from = seconds();
    for (int i = 0; i < 400; i++) EXPECT_EQ(cuMemsetD32_v2(p, 1, 64 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    (void)one;
    EXPECT(seconds() - from > 3 * 400 * 64.0 * MIB / 1500e9 / 1.2); /* the card's memory has at most 1500 GB/s */
}

/* ---- the stream's card counts, whatever context is current ---- */

typedef struct { int type; unsigned char padding[92]; unsigned sms; unsigned char rest[44]; } resource;
CUresult cuDeviceGetDevResource(CUdevice, resource *, int);
CUresult cuDevResourceGenerateDesc(void **, const resource *, unsigned);
CUresult cuGreenCtxCreate(CUgreenCtx *, void *, CUdevice, unsigned);
CUresult cuGreenCtxStreamCreate(CUstream *, CUgreenCtx, unsigned, int);

static CUstream of_green;

static CUresult in_a_stream_of_a_green_context(void)
{
    resource all;
    void *description;
    CUgreenCtx g;
    if (!of_green) {
        EXPECT_EQ(cuDeviceGetDevResource(0, &all, 1), CUDA_SUCCESS);
        EXPECT_EQ(cuDevResourceGenerateDesc(&description, &all, 1), CUDA_SUCCESS);
        EXPECT_EQ(cuGreenCtxCreate(&g, description, 0, 1), CUDA_SUCCESS);
        EXPECT_EQ(cuGreenCtxStreamCreate(&of_green, g, 1, 0), CUDA_SUCCESS);
    }
    return spin_in(spin, KERNEL_US, of_green);
}

static double time_in_green_streams(void)
{
    double from = seconds();
    for (int i = 0; i < KERNELS; i++) EXPECT_EQ(in_a_stream_of_a_green_context(), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(of_green), CUDA_SUCCESS);
    return seconds() - from;
}

static void streams_of_green_contexts_count(void)
{
    get_ready();
    EXPECT(time_in_green_streams() > LONG_ENOUGH);
}

static void a_stream_of_one_card_counts_there_while_another_card_is_current(void)
{
    get_ready();
    EXPECT_EQ(in_a_stream_of_a_green_context(), CUDA_SUCCESS);
    context_on(1); /* this one has no limit */
    EXPECT(time_in_green_streams() > LONG_ENOUGH);
}

/* Nothing runs while a stream captures, so nothing waits, and exactly the launched work is captured. */
static void captured_launches_neither_wait_nor_count(void)
{
    get_ready();
    CUstream s;
    CUgraph graph;
    EXPECT_EQ(cuStreamCreate(&s, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamBeginCapture_v2(s, 0), CUDA_SUCCESS); /* global: the library may do nothing unsafe meanwhile */
    double from = seconds();
    for (int i = 0; i < 200; i++) EXPECT_EQ(spin_in(spin, KERNEL_US, s), CUDA_SUCCESS);
    EXPECT(seconds() - from < 200 * KERNEL_US / 1e6);
    EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    EXPECT(graph != NULL);
}

CUresult cuStreamBeginCaptureToCig(CUstream, void *);
CUresult cuStreamEndCaptureToCig(CUstream);

/* Launches captured for a command list of the graphics driver run with that list. */
static void launches_captured_for_graphics_neither_wait_nor_count(void)
{
    get_ready();
    CUstream s;
    char list[64] = {0};
    EXPECT_EQ(cuStreamCreate(&s, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamBeginCaptureToCig(s, list), CUDA_SUCCESS);
    double from = seconds();
    for (int i = 0; i < 200; i++) EXPECT_EQ(spin_in(spin, KERNEL_US, s), CUDA_SUCCESS);
    EXPECT(seconds() - from < 200 * KERNEL_US / 1e6 / 2);
    EXPECT_EQ(cuStreamEndCaptureToCig(s), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(spin, KERNEL_US, s), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT(time_of(by_kernel) > LONG_ENOUGH); /* from then on they count again */
}

/* ---- captures that begin and end beside launches into the same stream: launches that are not captured count ---- */

static CUstream both;
static _Atomic bool enough;

static void *capture_all_the_time(void *unused)
{
    cuCtxSetCurrent(context);
    while (!enough) {
        CUgraph g = NULL;
        if (cuStreamBeginCapture_v2(both, 2)) continue;
        for (volatile int i = 0; i < 200; i++) {}
        if (!cuStreamEndCapture(both, &g)) cuGraphDestroy(g);
    }
    return unused;
}

/* The time that kernels have used the card, by its own count. */
static double busy_seconds(void)
{
    char text[1 << 16] = "", command[300];
    snprintf(command, sizeof command, "%s/simgpu-ctl json", getenv("DRIVER"));
    FILE *f = popen(command, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) pclose(f);
    text[n] = 0;
    char *card = strstr(text, CARD_A), *busy = card ? strstr(card, "\"busyNs\": ") : NULL;
    return busy ? strtod(busy + 10, NULL) / 1e9 : 0;
}

static CUresult into_both(void) { return spin_in(spin, KERNEL_US, both); }

static CUresult (*launched)(void);
static void *launch_all_the_time(void *unused)
{
    cuCtxSetCurrent(context);
    while (!enough) launched();
    return unused;
}

#define LAUNCHERS 8
static void beside_captures(CUresult (*launch)(void))
{
    pthread_t threads[LAUNCHERS + 1];
    launched = launch;
    get_ready();
    EXPECT_EQ(cuStreamCreate(&both, 1), CUDA_SUCCESS);
    double from = seconds(), busy = busy_seconds();
    for (int i = 0; i <= LAUNCHERS; i++) pthread_create(&threads[i], NULL, i ? launch_all_the_time : capture_all_the_time, NULL);
    usleep(3000000);
    enough = true;
    for (int i = 0; i <= LAUNCHERS; i++) pthread_join(threads[i], NULL);
    EXPECT_EQ(cuStreamSynchronize(both), CUDA_SUCCESS);
    double share = (busy_seconds() - busy) / (seconds() - from);
    if (share > 0.3) fprintf(stderr, "%.0f %% of the card\n", 100 * share);
    EXPECT(share < 0.3);
    EXPECT(time_of(into_both) > LONG_ENOUGH); /* and it stays so */
}

#define LONG_US 50000
static CUresult long_into_both(void) { return spin_in(spin, LONG_US, both); }
static void kernels_beside_captures_count(void) { beside_captures(long_into_both); }

static CUresult graph_into_both(void)
{
    static CUgraphExec exec;
    if (!exec) exec = captured_kernel(LONG_US);
    return cuGraphLaunch(exec, both);
}
static void graphs_beside_captures_count(void) { beside_captures(graph_into_both); }

static void a_kernel_longer_than_a_lease_goes_and_is_paid_for(void)
{
    get_ready();
    double from = seconds();
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(spin_in(spin, 60000, NULL), CUDA_SUCCESS);
        EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    }
    EXPECT(seconds() - from > 0.18 + 2 * 0.15); /* after each of the first two, four times its length without the card */
}

#define THREADS 6
static CUstream of_threads[3];
static void *launches_of_a_thread(void *number)
{
    uintptr_t i = (uintptr_t)number;
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    for (int k = 0; k < 200; k++) EXPECT_EQ(spin_in(spin, 100, of_threads[i < 3 ? 0 : i % 3]), CUDA_SUCCESS); /* four on one stream */
    return NULL;
}

static void threads_on_one_stream_and_on_several_are_limited_as_one(void)
{
    get_ready();
    pthread_t threads[THREADS];
    for (int i = 0; i < 3; i++) EXPECT_EQ(cuStreamCreate(&of_threads[i], 1), CUDA_SUCCESS);
    double from = seconds(), alone = THREADS * 200 * 100e-6;
    for (uintptr_t i = 0; i < THREADS; i++) EXPECT_EQ(pthread_create(&threads[i], NULL, launches_of_a_thread, (void *)i), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT(seconds() - from > 3 * alone && seconds() - from < 60 * alone);
}

/* The card cannot be given back before the first kernel is done, and that kernel waits for the last launch. */
static void a_stream_that_waits_for_a_later_launch_causes_no_hang(void)
{
    get_ready();
    CUstream waits, goes;
    void *memory = NULL;
    EXPECT_EQ(cuStreamCreate(&waits, 1) + cuStreamCreate(&goes, 1) + cuMemHostAlloc(&memory, 4096, 0), CUDA_SUCCESS);
    CUdeviceptr word = (uint64_t)(uintptr_t)memory;
    EXPECT_EQ(cuStreamWaitValue32_v2(waits, word, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(spin, KERNEL_US, waits), CUDA_SUCCESS);
    for (int i = 0; i < KERNELS; i++) EXPECT_EQ(spin_in(spin, KERNEL_US, goes), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWriteValue32_v2(goes, word, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

/* The child has copies of the library's sockets, but no thread that uses them. */
static void a_forked_child_that_uses_no_card_disturbs_nothing(void)
{
    get_ready();
    EXPECT_EQ(with_a_wait(), CUDA_SUCCESS);
    pid_t child = fork();
    if (!child) sleep(60), _exit(0);
    double took = time_of(by_kernel);
    if (took < LONG_ENOUGH || took > 30 * ALONE) fprintf(stderr, "took %.3f s\n", took);
    EXPECT(took > LONG_ENOUGH && took < 30 * ALONE);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void two_processes_share_one_limit(void)
{
    pid_t other = fork();
    double took;
    get_ready();
    took = time_of(by_kernel);
    if (!other) _exit(ok_so_far ? 0 : 1);
    int status;
    waitpid(other, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(took > 2 * LONG_ENOUGH * 0.8);
}

static CUstream named;
static CUresult into_a_named_stream(void) { return spin_in(spin, KERNEL_US, named); }

/* The stream's context is taken. */
static void a_launch_without_a_current_context_counts(void)
{
    get_ready();
    EXPECT_EQ(cuStreamCreate(&named, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(NULL), CUDA_SUCCESS);
    double from = seconds();
    for (int i = 0; i < KERNELS; i++) EXPECT_EQ(into_a_named_stream(), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT(seconds() - from > LONG_ENOUGH);
}

static void a_program_that_closes_all_descriptors_goes_on(void)
{
    get_ready();
    EXPECT_EQ(by_kernel(), CUDA_SUCCESS);
    for (int fd = 3; fd < 256; fd++) close(fd);
    int mine = open("/dev/null", O_RDONLY);
    for (int i = 0; i < 4; i++) {
        EXPECT_WITHIN(30 * ALONE, time_of(by_kernel));
        usleep(20000);
    }
    EXPECT(fcntl(mine, F_GETFD) >= 0); /* a descriptor that the program opened since is not touched */
}

static void without_an_arbiter_all_goes_at_full_speed(void)
{
    get_ready();
    time_of(by_kernel);
    EXPECT_WITHIN(LONG_ENOUGH, time_of(by_kernel));
}

static double longest_wait; /* of one launch */
static CUresult noting_waits(void)
{
    double from = seconds();
    CUresult r = with_a_wait();
    if (seconds() - from > longest_wait) longest_wait = seconds() - from;
    return r;
}

static void when_the_arbiter_is_killed_launches_go_on_and_come_back_under_the_next_one(void)
{
    get_ready();
    EXPECT(time_of(with_a_wait) > LONG_ENOUGH);
    kill(arbiter, SIGKILL);
    usleep(50000);
    EXPECT(time_of(noting_waits) < LONG_ENOUGH);
    start_arbiter();
    usleep(60000);
    time_of(with_a_wait);
    EXPECT(time_of(with_a_wait) > LONG_ENOUGH);
    stop_arbiter(SIGKILL);
}

static unsigned long long own_switches(void)
{
    char path[64], line[256];
    unsigned long long n = 0, sum = 0;
    for (int tid = getpid(); tid < getpid() + 64; tid++) {
        snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
        FILE *f = fopen(path, "r");
        while (f && fgets(line, sizeof line, f))
            if (sscanf(line, "voluntary_ctxt_switches: %llu", &n) == 1) sum += n;
        if (f) fclose(f);
    }
    return sum;
}

static void an_idle_program_wakes_no_thread(void)
{
    get_ready();
    EXPECT_EQ(with_a_wait(), CUDA_SUCCESS);
    sleep(2);
    unsigned long long before = own_switches();
    sleep(1);
    EXPECT(own_switches() - before <= 8);
}

int main(void)
{
    UNDER_AN_ARBITER(by_kernel_counts);
    UNDER_AN_ARBITER(by_config_counts);
    UNDER_AN_ARBITER(cooperatively_counts);
    UNDER_AN_ARBITER(per_thread_counts);
    UNDER_AN_ARBITER(by_address_counts);
    UNDER_AN_ARBITER(in_many_streams_counts);
    UNDER_AN_ARBITER(streams_of_green_contexts_count);
    UNDER_AN_ARBITER(a_stream_of_one_card_counts_there_while_another_card_is_current);
    UNDER_AN_ARBITER(by_graph_counts);
    UNDER_AN_ARBITER(with_a_wait_counts);
    UNDER_AN_ARBITER(a_config_that_changes_while_the_launch_waits_changes_nothing);
    UNDER_AN_ARBITER(large_fills_count);
    UNDER_AN_ARBITER(captured_launches_neither_wait_nor_count);
    UNDER_AN_ARBITER(launches_captured_for_graphics_neither_wait_nor_count);
    UNDER_AN_ARBITER(kernels_beside_captures_count);
    UNDER_AN_ARBITER(graphs_beside_captures_count);
    UNDER_AN_ARBITER(a_kernel_longer_than_a_lease_goes_and_is_paid_for);
    UNDER_AN_ARBITER(threads_on_one_stream_and_on_several_are_limited_as_one);
    UNDER_AN_ARBITER(a_stream_that_waits_for_a_later_launch_causes_no_hang);
    UNDER_AN_ARBITER(a_forked_child_that_uses_no_card_disturbs_nothing);
    UNDER_AN_ARBITER(two_processes_share_one_limit);
    UNDER_AN_ARBITER(a_launch_without_a_current_context_counts);
    UNDER_AN_ARBITER(a_program_that_closes_all_descriptors_goes_on);
    UNDER_AN_ARBITER(an_idle_program_wakes_no_thread);
    IN(LIMITED, without_an_arbiter_all_goes_at_full_speed);
    IN(LIMITED, an_idle_program_wakes_no_thread);
    UNDER_AN_ARBITER(when_the_arbiter_is_killed_launches_go_on_and_come_back_under_the_next_one);
    FINISH;
}
