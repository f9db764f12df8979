/* The threads and children of a worker. */
#include "lane.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static pid_t child;

void family_work(int operations)
{
    while (operations-- > 0 && lane_goes_on()) one_operation();
}

/* ---- threads ---- */

struct start {
    int place;
    uint64_t seed;
    const struct self *parent;
};

static void *thread(void *argument)
{
    struct start *start = argument;
    lane_attach(start->parent->worker, start->place, start->seed);
    self.device = start->parent->device;
    self.card = start->parent->card;
    self.context = start->parent->context;
    if (context_open()) {
        family_work(board->threads ? 100 + (int)roll(200) : 20 + (int)roll(100));
        drop_all();
        context_close();
    }
    lane_detach();
    return NULL;
}

void family_threads(void)
{
    pthread_t threads[THREADS_MOST];
    struct start start[THREADS_MOST];
    int n = 0, wanted = board->threads ? (int)board->threads : 2;
    for (; n < wanted; n++) {
        start[n] = (struct start){LANE_THREAD + n, self.seed + (uint64_t)n, &self};
        if (pthread_create(&threads[n], NULL, thread, &start[n])) break;
    }
    lane_set(LANE_WAITS);
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    lane_set(LANE_RUNS);
}

/* ---- children ---- */

/* False: the child is still at work. */
static bool child_ended(bool wait)
{
    int status = 0;
    if (!child) return true;
    if (waitpid(child, &status, wait ? 0 : WNOHANG) == 0) return false;
    say_gone(board, (uint32_t)child, judge_now());
    child = 0;
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, well = WIFEXITED(status) && !WEXITSTATUS(status);
    if (killed || well) return true;
    atomic_fetch_add(&board->unexpected, 1);
    fprintf(stderr, "unexpected: a child of worker %d ended with status %#x\n", self.worker, status);
    return true;
}

/* The child of a process that uses the driver cannot use the driver, and holds nothing. */
static void useless_child(void)
{
    fflush(NULL);
    child = fork();
    if (child) return;
    CUdeviceptr p;
    CUresult r = cuMemAlloc_v2(&p, 4 * MIB);
    if (r != CUDA_ERROR_NOT_INITIALIZED) fprintf(stderr, "unexpected: in a forked child cuMemAlloc answered %d\n", r);
    if (roll(2)) _exit(r != CUDA_ERROR_NOT_INITIALIZED);
    exit(r != CUDA_ERROR_NOT_INITIALIZED);
}

static void new_program(bool spawned)
{
    char worker[16], seed[32], parent[16];
    char *argv[] = {"stress-worker", worker, seed, parent, NULL};
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    snprintf(worker, sizeof worker, "%d", self.worker);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)self.seed + roll(1000));
    if (spawned) {
        if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, argv, environ)) child = 0;
        return;
    }
    child = fork();
    if (child) return;
    execv("/proc/self/exe", argv);
    _exit(127);
}

void family_child(void)
{
    if (!child_ended(false)) return;
    switch (roll(3)) {
    case 0: useless_child(); break;
    case 1: new_program(true); break;
    default: new_program(false); break;
    }
    if (child < 0) child = 0;
    if (roll(3)) return;
    lane_settle();
    lane_set(LANE_WAITS);
    child_ended(true);
    lane_set(LANE_RUNS);
}

void family_die_with_parent(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
}

/* Before this process uses the driver, it may fork a child that uses the driver as well. True in the child. */
bool family_twin(void)
{
    pid_t parent = getpid();
    child = fork();
    if (child < 0) child = 0;
    if (child || getpid() == parent) return false;
    family_die_with_parent(parent);
    return true;
}
