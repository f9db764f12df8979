/* Decides whether a request is really out of memory. The container's sum may contain charges of dead processes, reservations
 * that running calls will not need, and memory that running frees have given back to the driver but not yet to the ledger. A
 * refusal is justified when none of these can change it: at one instant (the sum's word does not change during the check) the
 * request does not fit even without all slack. Slack is what running calls have reserved, and what running frees will give back
 * where that is known in advance. Where it is not known (pools, memory that ends with a context), every free that had begun
 * when the request was about to be refused has ended by then, and so has every search for dead processes. */
#include "ledger/oom_retry.h"

#include "base/kernel.h"
#include "ledger/account.h"
#include "ledger/frees.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "ledger/limits_page.h"
#include "ledger/own_account.h"
#include "ledger/reap.h"
#include "ledger/shared.h"

#include "region.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A thread that is waited for is in the middle of a call. Where fifty processes share two processors, some hundred milliseconds
 * pass until it runs again, while the waiting thread wakes at once. Waiting is useless only for a process that was stopped. */
#define PATIENCE_NS 2000000000ull

/* Hundreds of threads that check every millisecond keep the processors from the threads that they wait for. So a nap is a
 * fraction of the time already waited, which is also the most by which the answer can be late. */
#define NAP_PART 8
#define LEAST_NAP_US 1000u
#define MOST_NAP_US 20000u

#define NONE UINT8_MAX /* not an epoch */

/* A search for dead processes takes two system calls for every slot. If all waiting threads did one every few milliseconds,
 * they would keep the processors from the threads that they wait for, so one searches for all. */
#define REAP_AGAIN_MS 4

struct begun { /* frees on one card, or searches for dead processes. Kept small, since threads may have small stacks */
    uint8_t epoch[FR_MAX_SLOTS]; /* in which they began, or NONE */
    uint32_t count; /* slots from here on were not in use */
    bool any;
    int card; /* FR_NO_CARD: searches for dead processes */
};

static bool lives(uint32_t slot)
{
    return atomic_load_explicit(&fr_slot(slot)->state, memory_order_acquire) == FR_SLOT_LIVE;
}

static _Atomic uint32_t *word_of(uint32_t slot, int card)
{
    return card == FR_NO_CARD ? &fr_slot(slot)->reaping : &fr_slot_account(slot, (uint32_t)card)->frees;
}

static void note(struct begun *b, int card)
{
    b->any = false;
    b->card = card;
    b->count = fr_slots_in_use();
    for (uint32_t n = 0; n < b->count; n++) {
        uint32_t word = lives(n) ? atomic_load_explicit(word_of(n, card), memory_order_acquire) : 0;
        b->epoch[n] = fr_frees_any(word) ? (uint8_t)(word >> FR_EPOCH_SHIFT) : NONE;
        b->any |= b->epoch[n] != NONE;
    }
}

static bool ended(struct begun *b)
{
    if (!b->any) return true;
    b->any = false;
    for (uint32_t n = 0; n < b->count; n++)
        if (b->epoch[n] != NONE && lives(n) && !fr_frees_ended(word_of(n, b->card), b->epoch[n])) b->any = true;
        else b->epoch[n] = NONE;
    return !b->any;
}

/* The most that running calls may give back; false: a process is about to give back what a dead one held. */
static bool sum_slack(int card, uint64_t *units)
{
    *units = 0;
    for (uint32_t n = 0, high = fr_slots_in_use(); n < high; n++) {
        uint32_t state = atomic_load_explicit(&fr_slot(n)->state, memory_order_acquire);
        if (state == FR_SLOT_REAPED) return false;
        if (state == FR_SLOT_LIVE) *units += atomic_load_explicit(&fr_slot_account(n, (uint32_t)card)->slack, memory_order_acquire);
    }
    return true;
}

static bool cannot_fit(int card, uint64_t units)
{
    struct fr_quota quota;
    uint64_t slack, before = atomic_load(&fr_shared.cards[card].used);
    if (!sum_slack(card, &slack)) return false;
    fr_quota(card, &quota);
    uint64_t used = fr_used_units((uint32_t)card);
    if (atomic_load(&fr_shared.cards[card].used) != before) return false;
    return used > FR_UNITS_MOST || (used > slack ? used - slack : 0) + units > quota.may_hold / FR_UNIT_BYTES;
}

bool fr_retry_wait(struct fr_retry *p)
{
    int before = errno;
    uint64_t now = fr_clock_ns(CLOCK_MONOTONIC);
    if (!p->round) p->start = now;
    if (now - p->start >= PATIENCE_NS) return false;
    uint64_t nap = (now - p->start) / (1000 * NAP_PART);
    if (p->round < 4) syscall(SYS_sched_yield);
    else if (p->round < 16) fr_sleep_us(p->round < 8 ? 50 : 200);
    else fr_sleep_us(nap < LEAST_NAP_US ? LEAST_NAP_US : nap < MOST_NAP_US ? (unsigned)nap : MOST_NAP_US);
    p->round++;
    errno = before;
    return true;
}

bool fr_reserve_with_retry(int card, uint64_t units, struct fr_retry *patience)
{
    struct fr_quota quota;
    struct begun frees, looks;
    fr_quota(card, &quota);
    if (!fr_isolation_is_off() && units > quota.may_hold / FR_UNIT_BYTES) return false;
    int before = errno;
    note(&frees, card);
    fr_reap();
    note(&looks, FR_NO_CARD); /* of other processes: one may have just found a dead process that our own search could not take */
    bool fits = false, sure = false;
    while (!(fits = fr_reserve(card, units))) {
        bool settled = ended(&frees);
        if (ended(&looks) && settled && cannot_fit(card, units)) {
            if (sure) break;
            /* Check once more: another process was taking back what a dead one held, so the first search left that out; and
             * some of the frees that began meanwhile may not have announced how much they give back. */
            fr_reap();
            note(&frees, card);
            sure = true;
            continue;
        }
        if (!fr_retry_wait(patience)) break;
        fr_reap_when_due(REAP_AGAIN_MS);
    }
    errno = before;
    return fits;
}
