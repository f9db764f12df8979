/* Calls of this process that are waiting for work. If a pool is full when such a call begins, the call announces no free: it
 * could not give back what another process is short of. But another thread may free memory of that pool meanwhile, and the
 * driver gives it back in the call that waits. So the thread that frees announces a free for all waiting calls, and each of
 * them ends its own. */
#include "memory/pool_waits.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "ledger/ledger.h"
#include "memory/pool.h"

#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WAITS 64

struct wait {
    bool used;
    uint64_t cards; /* on which another thread has announced a free for this call */
    struct fr_op op[FR_MAX_CARDS];
};

static struct fr_lock lock;
static _Atomic uint32_t waiting; /* places in use */
static FR_LARGE struct wait waits[WAITS];
static uint32_t waits_era;

static void enter(void)
{
    fr_lock(&lock);
    uint32_t era = atomic_load_explicit(&fr_era, memory_order_relaxed);
    if (likely(waits_era == era)) return;
    waits_era = era; /* a forked child has one thread, which is not waiting */
    for (int i = 0; i < WAITS; i++) waits[i].used = false;
    atomic_store(&waiting, 0);
}

int fr_pool_wait_begin(void)
{
    int i = 0;
    enter();
    while (i < WAITS && waits[i].used) i++;
    if (i < WAITS) {
        waits[i].used = true;
        waits[i].cards = 0;
        atomic_fetch_add(&waiting, 1);
    }
    fr_unlock(&lock);
    return i < WAITS ? i : -1;
}

void fr_pool_wait_end(int i)
{
    enter();
    struct wait *w = &waits[i];
    if (w->used) {
        for (uint64_t left = w->cards; left; left &= left - 1) fr_free_end(&w->op[__builtin_ctzll(left)], 0);
        w->used = false;
        atomic_fetch_sub(&waiting, 1);
    }
    fr_unlock(&lock);
}

static void announce_waits(uint64_t cards)
{
    enter();
    for (struct wait *w = waits; w < waits + WAITS; w++) {
        for (uint64_t left = w->used ? cards & ~w->cards : 0; left; left &= left - 1) {
            int card = __builtin_ctzll(left);
            fr_free_begin(&w->op[card], card);
            w->cards |= 1ull << card;
        }
    }
    fr_unlock(&lock);
}

void fr_pools_free_beside_waits(void)
{
    if (unlikely(atomic_load(&waiting))) announce_waits(fr_pools_charged());
}
