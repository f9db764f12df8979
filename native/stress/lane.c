/* How a lane calls the driver (announce, call, end), and how it pauses with the run. */
#include "lane.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

__thread struct self self;

static struct lane *mine(void) { return &board->lanes[self.number]; }

uint32_t roll(uint32_t sides) { return dice(&self.seed, sides); }

uint64_t roundup(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

void lane_set(enum lane_state state) { atomic_store(&mine()->state, state); }

void lane_attach(int worker, int place, uint64_t seed)
{
    memset(&self, 0, sizeof self);
    self.worker = worker;
    self.number = worker * LANES_EACH + place;
    self.seed = seed * 0x9E3779B97F4A7C15ull + (uint64_t)self.number;
    roll(2);
    atomic_store(&mine()->pid, (uint32_t)getpid());
    lane_set(LANE_RUNS);
}

void lane_detach(void)
{
    atomic_store(&mine()->pid, 0);
    lane_set(LANE_OFF);
}

/* The driver ends the allowance for memory freed in a stream at a synchronisation that begins after its own part of the free, the library at
 * one that begins after the whole call. After this synchronisation no allowance is left, so the two can be compared. */
void lane_settle(void)
{
    if (self.context) cuCtxSynchronize();
}

bool lane_goes_on(void)
{
    for (bool settled = false; atomic_load(&board->pause); settled = true) {
        if (!settled) lane_settle();
        lane_set(LANE_PAUSED);
        if (self.number % LANES_EACH == LANE_MAIN) exchange_discard(), exam_take_part();
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    lane_set(LANE_RUNS);
    return !atomic_load(&board->stop);
}

/* `most`: the most bytes that the operation may add to the container's memory on the card in any case. */
void begin(int card, uint64_t most)
{
    _Atomic uint32_t *sequence = &board->sequence[self.number];
    uint32_t n = atomic_load(sequence) + 1;
    struct announcement *a = &mine()->said[n / 2 % REMEMBERED];
    atomic_store(&a->card, (uint32_t)card);
    atomic_store(&a->most, most);
    atomic_store(sequence, n);
    judge_window(&judge, card, &self.window);
    self.window_card = card;
}

static void refused(const char *call, uint64_t request)
{
    int card = self.window_card;
    bool known;
    double ms = (double)(judge_now() - self.window.opened_ns) / 1e6;
    uint64_t bound = judge_bound(&judge, &self.window, card, self.number, &known);
    uint64_t quota = board->quota[card];
    atomic_fetch_add(&board->refusals, 1);
    if (!known) atomic_fetch_add(&board->judged_late, 1);
    if (!request || board->wild || bound + request > quota) return;
    if (bound + judge_ending(&judge, &self.window, card) + request > quota) {
        atomic_fetch_add(&board->ending, 1);
        return;
    }
    atomic_fetch_add(&board->false_oom, 1);
    fprintf(stderr, "false out-of-memory: lane %d, %s of %.1f MiB on card %d after %.1f ms, while the container can have held at most %.1f of %.1f MiB\n",
            self.number, call, (double)request / MIB, card, ms, (double)bound / MIB, (double)quota / MIB);
}

/* `request`: the most bytes that it would have taken, as the driver rounds; 0: an out-of-memory is not judged. */
CUresult end(const char *call, CUresult r, uint64_t request, CUresult also_expected)
{
    if (r == CUDA_ERROR_OUT_OF_MEMORY) refused(call, request);
    else if (r && r != also_expected) {
        atomic_fetch_add(&board->unexpected, 1);
        fprintf(stderr, "unexpected: lane %d, %s answered %d\n", self.number, call, r);
    } else if (!r) atomic_fetch_add_explicit(&mine()->ops, 1, memory_order_relaxed);
    atomic_fetch_add(&board->sequence[self.number], 1);
    return r;
}
