/* Decides whether a refusal was right. The rule is strict: if it says "no", there is no excuse for the refusal.
 *
 * A refusal was wrong if the request would have fitted at every moment of the call, even if the other workers had already taken everything
 * that they may still be taking:
 *
 *      most that the container held at any moment of the call          the driver's own ledger remembers every change,
 *                                                                      with what the table of bounds lets a library count beyond
 *    + for every other lane of the container that is in an operation   announced before the operation began, in board.h
 *      when the refusal returns, the most that it may add
 *    + the request, rounded as the driver rounds                       <= quota      -> a false out-of-memory
 *
 * A process that ends is gone when its parent has reaped it. Just before that, the driver may have freed its memory and the library not yet.
 * So the bytes that it held when it ended count as held until then.
 *
 * Memory that other lanes reserved during the call and gave back, or did not take in the end, is no excuse: the library promises to wait for
 * them. If the call took so long that the driver's history of changes overflowed, the container's highest peak is used instead; such
 * refusals are counted as judged late. */
#include "judge.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

void judge_open(struct judge *j, const char *directory, struct board *board, int container)
{
    char path[300];
    *j = (struct judge){.board = board, .container_number = container, .index = SIM_CONTAINERS};
    snprintf(j->container, sizeof j->container, "stress-%d", container);
    snprintf(path, sizeof path, "%s/state", directory);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct sim_state), PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) perror(path), _exit(3);
    close(fd);
    j->sim = p;
}

bool judge_index(struct judge *j)
{
    for (uint32_t i = 0; j->index == SIM_CONTAINERS && i < j->sim->container_count; i++)
        if (!strcmp(j->sim->containers[i].name, j->container)) j->index = i;
    return j->index != SIM_CONTAINERS;
}

uint64_t judge_held(struct judge *j, int card)
{
    return judge_index(j) ? __atomic_load_n(&j->sim->containers[j->index].usage[card].now, __ATOMIC_ACQUIRE) : 0;
}

uint64_t judge_most(struct judge *j, int card)
{
    return judge_held(j, card) + (judge_index(j) ? __atomic_load_n(&j->sim->containers[j->index].usage[card].slack, __ATOMIC_ACQUIRE) : 0);
}

uint64_t judge_peak(struct judge *j, int card)
{
    return judge_index(j) ? __atomic_load_n(&j->sim->containers[j->index].usage[card].peak, __ATOMIC_ACQUIRE) : 0;
}

uint64_t judge_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void judge_window(struct judge *j, int card, struct window *w)
{
    w->changes = atomic_load(&j->sim->changes);
    w->most = judge_most(j, card);
    w->opened_ns = judge_now();
}

/* The most that may have been counted for the container since the window was opened. */
static uint64_t most_held(struct judge *j, const struct window *w, int card, bool *known)
{
    uint64_t end = atomic_load(&j->sim->changes), most = w->most;
    for (uint64_t n = w->changes; n < end && end - w->changes < SIM_HISTORY; n++) {
        const struct sim_change *c = &j->sim->history[n % SIM_HISTORY];
        if (c->container == j->index && c->card == (uint32_t)card && c->most > most) most = c->most;
    }
    *known = atomic_load(&j->sim->changes) - w->changes < SIM_HISTORY;
    return *known ? most : judge_peak(j, card) + judge_most(j, card) - judge_held(j, card);
}

static bool gone_before(const struct board *b, uint32_t pid, uint64_t ns)
{
    for (uint32_t i = 0; i < GONE; i++)
        if (atomic_load(&b->gone[i].pid) == pid && atomic_load(&b->gone[i].ns) <= ns) return true;
    return false;
}

/* Some parents reap their children late: after a second, a process counts as gone if the kernel reports that it has ended. */
static bool may_have_been_there(const struct judge *j, const struct sim_process *p, uint64_t ns)
{
    if (gone_before(j->board, p->pid, ns)) return false;
    return p->left_ns + 1000000000ull > ns || gone_before(j->board, p->pid, judge_now()) || !sim_process_gone(p);
}

/* Bytes held by processes that the driver saw end, but that were not gone yet when the call began. */
uint64_t judge_ending(struct judge *j, const struct window *w, int card)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < SIM_PROCESSES; i++) {
        const struct sim_process *p = &j->sim->processes[i];
        bool ours = atomic_load(&p->state) != SIM_SLOT_FREE && p->container == j->index && p->left[card]; /* dead or dying */
        if (ours && may_have_been_there(j, p, w->opened_ns)) sum += p->left[card];
    }
    return sum;
}

/* What a lane may be adding to the card at this moment. */
static uint64_t announced(const struct board *b, uint32_t lane, int card)
{
    uint32_t n = atomic_load(&b->sequence[lane]);
    const struct announcement *a = &b->lanes[lane].said[n / 2 % REMEMBERED];
    if (!(n & 1) || atomic_load(&a->card) != (uint32_t)card) return 0;
    uint64_t most = atomic_load(&a->most);
    return n == atomic_load(&b->sequence[lane]) ? most : LARGEST; /* the lane continued meanwhile: it may add any amount */
}

uint64_t judge_bound(struct judge *j, const struct window *w, int card, int lane, bool *known)
{
    uint64_t coming = 0;
    uint32_t lanes = j->board->workers * LANES_EACH;
    for (uint32_t i = 0; i < lanes; i++)
        if ((int)i != lane && container_of(j->board, (int)(i / LANES_EACH)) == j->container_number)
            coming += announced(j->board, i, card);
    return coming + most_held(j, w, card, known); /* in this order: an operation that ends in between is in the ledger */
}
