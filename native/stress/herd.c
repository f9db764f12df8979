/* Starts the workers, kills them at random moments, reaps them, and starts them again. */
#include "herd.h"
#include "judge.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static pid_t run(const struct herd *h, int worker, const char *what)
{
    pid_t pid;
    char number[16], self[16];
    char *argv[] = {"stress-worker", number, (char *)what, NULL};
    snprintf(number, sizeof number, "%d", worker);
    snprintf(self, sizeof self, "%d", (int)getpid());
    place_environment(h->place, container_of(h->place->board, worker));
    setenv("STRESS_SUPERVISOR", self, 1);
    if (posix_spawn(&pid, h->program, NULL, NULL, argv, environ)) perror(h->program), exit(3);
    setpriority(PRIO_PROCESS, (id_t)pid, 0); /* not this process's priority */
    unsetenv("LD_PRELOAD");
    return pid;
}

static void start(struct herd *h, int worker)
{
    char seed[32];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)(h->place->board->seed * 1000003 + h->starts[worker]++));
    h->expected[worker] = false;
    h->pids[worker] = run(h, worker, seed);
}

pid_t herd_auditor(struct herd *h, int container) { return run(h, container, "audit"); }

/* Children of killed workers die with them, and are reaped by this process. */
void herd_start_all(struct herd *h)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int i = 0; i < (int)h->place->board->workers; i++) start(h, i);
}

/* Ends the operations of a dead worker's lanes, and turns the lanes off. */
static void clear_lanes(struct herd *h, int worker)
{
    struct board *b = h->place->board;
    for (int i = worker * LANES_EACH; i < (worker + 1) * LANES_EACH; i++) {
        pid_t child = (pid_t)atomic_load(&b->lanes[i].pid);
        if (i % LANES_EACH == LANE_CHILD && child && waitpid(child, NULL, 0) > 0) say_gone(b, (uint32_t)child, judge_now());
        atomic_store(&b->lanes[i].state, LANE_OFF);
        atomic_store(&b->lanes[i].pid, 0);
        if (atomic_load(&b->sequence[i]) & 1) atomic_fetch_add(&b->sequence[i], 1);
    }
}

static void note_end(struct herd *h, int worker, int status)
{
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, over = atomic_load(&h->place->board->stop);
    if (killed && (h->expected[worker] || over)) return;
    if (over && WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    h->crashes++;
    fprintf(stderr, "crash: worker %d ended by itself with status %#x\n", worker, status);
}

static void bury(struct herd *h, pid_t pid, int status, bool restart)
{
    for (int i = 0; i < (int)h->place->board->workers; i++) {
        if (h->pids[i] != pid) continue;
        h->pids[i] = 0;
        note_end(h, i, status);
        clear_lanes(h, i);
        if (restart) start(h, i);
        return;
    }
}

void herd_tend(struct herd *h, bool restart)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        say_gone(h->place->board, (uint32_t)pid, judge_now());
        bury(h, pid, status, restart);
    }
}

void herd_kill_some(struct herd *h)
{
    uint32_t workers = h->place->board->workers;
    for (uint32_t n = dice(&h->seed, 10) ? 1 : 2 + dice(&h->seed, workers / 4 + 1); n > 0; n--) {
        uint32_t victim = dice(&h->seed, workers);
        if (!h->pids[victim] || h->expected[victim]) continue;
        h->expected[victim] = true;
        h->kills++;
        kill(h->pids[victim], SIGKILL);
    }
}

static bool any_left(const struct herd *h)
{
    for (int i = 0; i < (int)h->place->board->workers; i++)
        if (h->pids[i]) return true;
    return false;
}

void herd_end(struct herd *h)
{
    atomic_store(&h->place->board->stop, 1);
    for (int tries = 0; tries < 1000 && any_left(h); tries++) {
        herd_tend(h, false);
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    for (int i = 0; i < (int)h->place->board->workers; i++)
        if (h->pids[i]) fprintf(stderr, "worker %d did not end when asked to: it is killed\n", i), kill(h->pids[i], SIGKILL);
    while (any_left(h)) {
        herd_tend(h, false);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

uint64_t herd_ops(const struct herd *h)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < h->place->board->workers * LANES_EACH; i++)
        sum += atomic_load_explicit(&h->place->board->lanes[i].ops, memory_order_relaxed);
    return sum;
}
