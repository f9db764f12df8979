/* Lets single launches through when a turn is over but its work does not end. A stream may wait for a word that the program writes, or a
 * kernel may wait for another kernel. That work is never done while the launches that it needs wait at the closed gate. It cannot be told
 * apart from a kernel that only takes long. So a launch goes from time to time, and is counted like any other: the turn is not given back
 * before it is done, so the container is charged for it.
 *
 *      closed --SOON_NS after all should be done--> launches of FR_WINDOW_NS in all, once in a turn
 *
 * That is no more than the work that may be in flight in any turn, and the container pays for it. Short kernels that wait for each other need
 * no more. Otherwise:
 *
 *      closed --STUCK_NS for each process of the container, which the driver may run one after the other--> one launch --as long
 *             again--> another launch
 *      some work in flight is done, so it only took long: the time starts again, and is doubled if a launch has gone
 *
 * If a graph is in flight that may wait for the program (a host node and the like), FR_WINDOW_NS is only the beginning: the launches that go
 * soon may take as much of the time since then as the container may have of the card, divided by the number of its processes there. So
 * programs that never let their graphs go on get no more than the limit that way, and pay for all of the time. A launch of unknown length
 * counts twice as much as the one before it: all together are no worse than one long kernel.
 *
 * Without the doubling, long kernels, each launched while the one before runs, would keep a turn forever. */
#include "pacing/stuck.h"

#include "base/compiler.h"
#include "ledger/limits.h"
#include "ledger/shared.h"
#include "pacing/paced_card.h"

#include "clock.h"
#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SOON_NS 2000000ull
#define STUCK_NS 6000000000ull
#define MOST_DOUBLED 16u
#define LITTLE_PERCENT 10 /* for a container that has only a weight */

static uint64_t processes(void)
{
    uint64_t n = 0;
    for (uint32_t i = 0; fr_shared.region && i < fr_slots_in_use(); i++) n += atomic_load_explicit(&fr_slot(i)->state, memory_order_relaxed) == FR_SLOT_LIVE;
    return n ? n : 1;
}

static uint64_t patience(const struct fr_paced_card *p) { return (STUCK_NS << atomic_load(&p->stuck_doubled)) * processes(); }

/* The predicted time of the work in flight. */
static uint64_t rest(const struct fr_paced_card *p, uint64_t since)
{
    uint64_t queue = atomic_load(&p->queue_end);
    return queue > since ? queue - since : 0;
}

/* Allows four times that: by now other containers may share the card. */
static uint64_t known(const struct fr_paced_card *p, uint64_t since) { return 4 * rest(p, since); }

/* Processes of the container that have used the card: this one, and others whose work there has been counted. */
static uint64_t users(uint32_t card)
{
    uint64_t n = 1;
    for (uint32_t i = 0; fr_shared.region && i < fr_slots_in_use(); i++)
        n += i != fr_shared.slot && atomic_load_explicit(&fr_slot(i)->state, memory_order_relaxed) == FR_SLOT_LIVE &&
             atomic_load_explicit(&fr_slot_account(i, card)->launches, memory_order_relaxed);
    return n;
}

/* Percent of the card that the container may have. */
static uint64_t part_of(const struct fr_paced_card *p)
{
    struct fr_quota q;
    fr_quota((int)(p - fr_paced_cards), &q);
    uint32_t percent = q.cores_limit ? q.cores_limit : q.cores;
    return percent && percent < 100 ? percent : LITTLE_PERCENT;
}

/* When a launch of this length may go soon; 0: at once. */
static uint64_t room_at(const struct fr_paced_card *p, uint64_t ns)
{
    uint64_t sum = atomic_load(&p->stuck_ns) + ns;
    if (sum <= FR_WINDOW_NS) return 0;
    if (!atomic_load(&p->may_wait)) return UINT64_MAX;
    uint64_t alone = (sum - FR_WINDOW_NS) * 100 / part_of(p), times = users((uint32_t)(p - fr_paced_cards)), from = atomic_load(&p->stuck_from);
    return alone < (UINT64_MAX - from) / times ? from + alone * times : UINT64_MAX;
}

/* From the first launch on, only the room counts where a graph may wait: what has gone since is part of it. */
static uint64_t soon(const struct fr_paced_card *p, uint64_t since)
{
    bool first = !atomic_load(&p->stuck_gone) || !atomic_load(&p->may_wait);
    return first ? since + rest(p, since) + SOON_NS : since;
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

uint64_t fr_stuck_look(const struct fr_paced_card *p, uint64_t ns)
{
    uint64_t since = atomic_load(&p->stuck_since), room = room_at(p, ns);
    if (!since) return 0;
    uint64_t one = since + known(p, since) + (atomic_load(&p->stuck_let) + 1) * patience(p) + 1;
    return room < one ? later(soon(p, since), room) : one;
}

static bool goes_soon(struct fr_paced_card *p, uint64_t ns, uint64_t now)
{
    if (room_at(p, ns) > now) return false;
    atomic_fetch_add(&p->stuck_ns, ns);
    return atomic_fetch_add(&p->stuck_gone, 1), true;
}

void fr_stuck_took_longer(struct fr_paced_card *p, uint64_t ns)
{
    if (atomic_load_explicit(&p->stuck_since, memory_order_relaxed)) atomic_fetch_add(&p->stuck_ns, ns);
}

uint64_t fr_stuck_unknown_ns(const struct fr_paced_card *p, bool behind)
{
    bool waits = atomic_load(&p->may_wait);
    uint32_t before = atomic_load(&p->stuck_unknown);
    if (behind && !waits) return FR_STUCK_NEVER_NS;
    return waits ? FR_WINDOW_NS << (before < MOST_DOUBLED ? before : MOST_DOUBLED) : FR_WINDOW_NS;
}

bool fr_stuck_may_launch(struct fr_paced_card *p, uint64_t ns, bool unknown, uint64_t now)
{
    uint64_t since = atomic_load(&p->stuck_since), from = since + known(p, since);
    if (likely(!since || now < soon(p, since)) || !fr_lease_client_lives(p, now)) return false;
    if (goes_soon(p, ns, now)) return atomic_fetch_add(&p->stuck_unknown, unknown), true;
    if (now < from + STUCK_NS) return false;
    uint64_t may = (now - from) / patience(p);
    uint32_t let = atomic_load(&p->stuck_let);
    while (let < may)
        if (atomic_compare_exchange_weak(&p->stuck_let, &let, let + 1)) return atomic_fetch_add(&p->stuck_gone, 1), true;
    return false;
}

void fr_stuck_begin(struct fr_paced_card *p)
{
    atomic_store(&p->stuck_ns, 0);
    atomic_store(&p->stuck_unknown, 0);
    atomic_store(&p->stuck_from, clock_now());
    atomic_store(&p->stuck_let, 0);
    atomic_store(&p->stuck_gone, 0);
    atomic_store(&p->stuck_doubled, 0);
    atomic_store(&p->stuck_since, clock_now());
}

void fr_stuck_goes_on(struct fr_paced_card *p)
{
    if (!atomic_load_explicit(&p->stuck_since, memory_order_relaxed)) return;
    if (unlikely(atomic_exchange(&p->stuck_let, 0)) && atomic_load(&p->stuck_doubled) < MOST_DOUBLED) atomic_fetch_add(&p->stuck_doubled, 1);
    atomic_store(&p->stuck_since, clock_now());
}

bool fr_stuck_end(struct fr_paced_card *p)
{
    atomic_store(&p->stuck_since, 0);
    bool long_ago = clock_now() > atomic_load(&p->granted) + SOON_NS / 2; /* before that no launch can have gone */
    return long_ago && (atomic_load(&p->stuck_gone) || atomic_load(&p->inside));
}

bool fr_stuck_again(struct fr_paced_card *p)
{
    if (likely(!atomic_exchange(&p->stuck_gone, 0))) return false;
    atomic_store(&p->stuck_since, clock_now());
    fr_stuck_goes_on(p);
    return true;
}
