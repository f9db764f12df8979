/* Runs one case of the matrix on one simulated host under the virtual clock: starts the arbiter and the tenants, lets them begin at the same
 * instant, and prints simgpu's own accounts at intervals. The case is read from standard input:
 *
 *     window MS
 *     sample MS
 *     deaths               processes of the case may die; without this line a death fails the case
 *     arbiter PROGRAM SLICES
 *     tenant NAME SLICE|- PRELOAD|- ARRIVE_MS DEPART_MS PROCESSES key=value ...
 *
 * The output is a line per sample, "at MS gpu_ns launches gpu_ns launches ...", with a pair per tenant in the order given. Then follow a line
 * "latency NAME US ..." for each tenant that served requests, "longest NAME US" with its longest iteration, and "processor NAME NS" with the
 * processor time of its processes from the first sample to the last. NAME can also be arbiter. */
#include "board.h"
#include "state/state.h"

#include "clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TENANTS 16
#define WORDS 40
#define MS 1000000ull
#define IDLE_MS 1000   /* before the first launch, so that the arbiter has saved up the most spare time */
#define PATIENCE_S 120 /* of real time, until all tenants are ready */

struct tenant {
    char name[64], socket[300]; /* the arbiter's socket for it */
    int first_seat, processes;
};

static struct tenant tenants[TENANTS];
static pid_t children[SEATS + 1];
static struct { pid_t pid; int tenant; uint64_t ns; } meters[SEATS + 1]; /* tenant -1: the arbiter */
static int meter_count;
static int tenant_count, seats, child_count;
static bool arbitrated, deaths_expected;
static struct board *board;
static char board_path[300];
static struct sim_host host;

static void end_all(void)
{
    for (int i = 0; i < child_count; i++) kill(children[i], SIGKILL);
    for (int i = 0; i < child_count; i++) waitpid(children[i], NULL, 0);
}

static void fail(const char *what)
{
    fprintf(stderr, "conductor: %s\n", what);
    end_all();
    exit(1);
}

static void fail_of_process(pid_t pid, int status)
{
    char what[160];
    const char *who = "an unknown process";
    for (int i = 0; i < meter_count; i++)
        if (meters[i].pid == pid) who = meters[i].tenant < 0 ? "arbiter" : tenants[meters[i].tenant].name;
    if (WIFSIGNALED(status)) snprintf(what, sizeof what, "a process of %s ended by signal %d before the case began", who, WTERMSIG(status));
    else snprintf(what, sizeof what, "a process of %s ended with exit code %d before the case began", who, WEXITSTATUS(status));
    fail(what);
}

/* ---- starting ---- */

static void start(char **words, const char *container, const char *slice, const char *preload)
{
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) fail(strerror(errno));
    if (pid) {
        children[child_count++] = meters[meter_count].pid = pid;
        meters[meter_count++].tenant = container ? tenant_count - 1 : -1;
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(2, 1);
    if (container) setenv("SIMGPU_CONTAINER", container, 1);
    if (slice && strcmp(slice, "-") != 0) setenv("FRACTILE_DIR", slice, 1);
    if (preload && strcmp(preload, "-") != 0) setenv("LD_PRELOAD", preload, 1);
    execv(words[0], words);
    _exit(127);
}

static void start_tenant(const char *program, char **words, int count)
{
    char seat[16], *arguments[WORDS + 8] = {(char *)program, board_path, seat, words[4], words[5]};
    struct tenant *t = &tenants[tenant_count++];
    snprintf(t->name, sizeof t->name, "%s", words[1]);
    snprintf(t->socket, sizeof t->socket, "%s/arbiter.sock", words[2]);
    t->first_seat = seats;
    t->processes = atoi(words[6]);
    for (int i = 7; i < count; i++) arguments[i - 2] = words[i];
    for (int i = 0; i < t->processes && seats < SEATS; i++) {
        snprintf(seat, sizeof seat, "%d", seats++);
        start(arguments, words[1], words[2], words[3]);
    }
}

static int split(char *line, char **words)
{
    int n = 0;
    char *save = NULL;
    for (char *w = strtok_r(line, " \n", &save); w && n < WORDS; w = strtok_r(NULL, " \n", &save)) words[n++] = w;
    words[n] = NULL;
    return n;
}

static void read_case(const char *program, uint64_t *window, uint64_t *sample)
{
    char line[4096], *words[WORDS + 1];
    while (fgets(line, sizeof line, stdin)) {
        int n = split(line, words);
        if (n == 2 && !strcmp(words[0], "window")) *window = strtoull(words[1], NULL, 10);
        else if (n == 1 && !strcmp(words[0], "deaths")) deaths_expected = true;
        else if (n == 2 && !strcmp(words[0], "sample")) *sample = strtoull(words[1], NULL, 10);
        else if (n == 3 && !strcmp(words[0], "arbiter")) start((char *[]){words[1], "--slices", words[2], NULL}, NULL, NULL, NULL), arbitrated = true;
        else if (n >= 7 && !strcmp(words[0], "tenant") && tenant_count < TENANTS) start_tenant(program, words, n);
        else if (n) fail("a line of the case is not understood");
    }
}

static void make_board(void)
{
    snprintf(board_path, sizeof board_path, "%s/board", sim_directory());
    int fd = open(board_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || ftruncate(fd, sizeof *board) != 0) fail(board_path);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (board == MAP_FAILED) fail(board_path);
    close(fd);
}

/* The arbiter takes part in the clock once it polls, and it has made its bell by then. Before that, the clock would run ahead of it. On a busy
 * machine it may take long until it serves all tenants. */
static bool arbiter_serves(void)
{
    bool found = !arbitrated;
    for (int i = 0; arbitrated && i < tenant_count; i++)
        if (access(tenants[i].socket, F_OK) != 0) return false;
    DIR *d = opendir(sim_directory());
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) found |= !strncmp(e->d_name, "clock-bell", 10);
    if (d) closedir(d);
    return found;
}

static void await_ready(void)
{
    for (int i = 0; (int)atomic_load(&board->ready) < seats || !arbiter_serves(); i++) {
        int status;
        pid_t gone = waitpid(-1, &status, WNOHANG);
        if (gone > 0) fail_of_process(gone, status);
        if (i > PATIENCE_S * 1000) fail("the tenants did not get ready");
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

/* ---- the accounts ---- */

static void print_books(uint64_t at_ms)
{
    const struct sim_state *s = host.state;
    sim_lock(&host);
    sim_advance(&host, sim_now());
    printf("at %llu", (unsigned long long)at_ms);
    for (int i = 0; i < tenant_count; i++) {
        unsigned long long gpu = 0, launches = 0;
        for (uint32_t p = 0; p < SIM_PROCESSES; p++)
            if (!strcmp(s->containers[s->processes[p].container].name, tenants[i].name)) gpu += s->processes[p].gpu_ns[0];
        for (uint32_t c = 0; c < s->context_high; c++)
            if (!strcmp(s->containers[s->processes[s->contexts[c].process].container].name, tenants[i].name)) launches += s->contexts[c].launches;
        printf(" %llu %llu", gpu, launches);
    }
    sim_unlock(&host);
    putchar('\n');
}

/* ---- processor time ---- */

static uint64_t processor_ns(pid_t pid)
{
    clockid_t clock;
    struct timespec t = {0};
    if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t)) return 0;
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void start_meters(void)
{
    for (int i = 0; i < meter_count; i++) meters[i].ns = processor_ns(meters[i].pid);
}

static uint64_t metered(int tenant)
{
    uint64_t sum = 0;
    for (int i = 0; i < meter_count; i++) {
        uint64_t now = meters[i].tenant == tenant ? processor_ns(meters[i].pid) : 0;
        if (now > meters[i].ns) sum += now - meters[i].ns;
    }
    return sum;
}

static void print_meters(void)
{
    for (int i = 0; i < tenant_count; i++) {
        uint32_t longest = 0;
        for (int k = 0; k < tenants[i].processes; k++) {
            uint32_t us = atomic_load(&board->seats[tenants[i].first_seat + k].longest_us);
            if (us > longest) longest = us;
        }
        printf("longest %s %u\nprocessor %s %llu\n", tenants[i].name, longest, tenants[i].name, (unsigned long long)metered(i));
    }
    printf("processor arbiter %llu\n", (unsigned long long)metered(-1));
}

static void print_latencies(const struct tenant *t)
{
    bool any = false;
    for (int i = 0; i < t->processes; i++) {
        const struct seat *seat = &board->seats[t->first_seat + i];
        uint32_t n = atomic_load(&seat->requests);
        if (n && !any) printf("latency %s", t->name), any = true;
        for (uint32_t k = 0; k < n && k < REQUESTS; k++) printf(" %u", seat->latency_us[k]);
    }
    if (any) putchar('\n');
}

/* A tenant that departs exits with status 0. Any other end would look like a tenant that gets no time. */
static void check_for_deaths(void)
{
    int status;
    for (int i = 0; i < child_count; i++) {
        if (waitpid(children[i], &status, WNOHANG) != children[i]) continue;
        char what[80];
        if (WIFSIGNALED(status)) snprintf(what, sizeof what, "process %d of the case died of signal %d", i, WTERMSIG(status));
        else snprintf(what, sizeof what, "process %d of the case ended with status %d", i, WEXITSTATUS(status));
        children[i] = children[--child_count];
        if (status && !deaths_expected) fail(what);
        i--;
    }
}

int main(int count, char **arguments)
{
    uint64_t window = 10000, sample = 100;
    if (count != 2) return fprintf(stderr, "usage: conductor TENANT < case\n"), 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    make_board();
    read_case(arguments[1], &window, &sample);
    if (!seats || !sample) fail("a case needs tenants");
    await_ready();
    if (!sim_open(&host, true)) fail(host.error);
    uint64_t begin = clock_now() + IDLE_MS * MS;
    atomic_store(&board->start_ns, begin);
    atomic_store(&board->go, 1);
    clock_wake(&board->go);
    for (uint64_t at = 0; at <= window; at += sample) {
        clock_sleep_until(begin + at * MS);
        print_books(at);
        if (!at) start_meters();
    }
    print_meters();
    check_for_deaths();
    for (int i = 0; i < tenant_count; i++) print_latencies(&tenants[i]);
    fflush(stdout);
    end_all();
    return 0;
}
