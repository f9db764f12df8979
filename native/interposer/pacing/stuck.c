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
 * Without the doubling, long kernels, each launched while the one before runs, would keep a turn forever. */
#include "pacing/stuck.h"

#include "base/compiler.h"
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

static bool may_go_soon(const struct fr_paced_card *p, uint64_t ns) { return atomic_load(&p->stuck_ns) + ns <= FR_WINDOW_NS; }

uint64_t fr_stuck_look(const struct fr_paced_card *p, uint64_t ns)
{
    uint64_t since = atomic_load(&p->stuck_since);
    if (since && may_go_soon(p, ns)) return since + rest(p, since) + SOON_NS;
    return since ? since + known(p, since) + (atomic_load(&p->stuck_let) + 1) * patience(p) + 1 : 0;
}

static bool goes_soon(struct fr_paced_card *p, uint64_t ns)
{
    if (!may_go_soon(p, ns)) return false;
    atomic_fetch_add(&p->stuck_ns, ns);
    return atomic_fetch_add(&p->stuck_gone, 1), true;
}

bool fr_stuck_may_launch(struct fr_paced_card *p, uint64_t ns, uint64_t now)
{
    uint64_t since = atomic_load(&p->stuck_since), from = since + known(p, since);
    if (likely(!since || now < since + rest(p, since) + SOON_NS) || !fr_lease_client_lives(p, now)) return false;
    if (goes_soon(p, ns)) return true;
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
