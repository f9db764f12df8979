/* Streams that the program itself blocks: by a word that it writes later, by a callback that waits, or by an event that comes
 * after one of those. A launch into a blocked stream must not wait for the work in flight there: the waiting thread may be the
 * one that unblocks the stream. See wait_calls.c for the calls by which a program blocks a stream. There are two cases:
 *
 *      blocked     The oldest batch is behind a wait that the program put into the stream. It has not begun, and no work of this
 *                  process is on the card, for BLOCKED_NS and for longer than predicted. (Without that wait, the batch may only be
 *                  waiting for the card, beside other processes.) A blocked stream uses no time of the card. So any number of
 *                  launches may go behind it, and a turn ends without it. Once it is released, its work requests a turn.
 *      stalled     The oldest batch has begun and has not ended for STUCK_NS. It is a kernel that waits for the program, or one that
 *                  really takes that long. The two cannot be told apart, so one launch goes, then two, then four ... If the batch is a graph
 *                  with nodes that may wait for the program, this begins after BLOCKED_NS. */
#include "pacing/blocked_streams.h"

#include "base/compiler.h"
#include "pacing/paced_card.h"
#include "pacing/stream_state.h"
#include "pacing/timing_events.h"

#include "clock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLOCKED_NS 50000000ull
#define STUCK_NS 6000000000ull
#define STUCK_AGAIN_NS 2000000000ull
#define LOOK_NS 5000000ull     /* between looks at what is on the card */
#define NAP_NS 20000ull        /* the shortest; later, a fraction of the time already waited */
#define LONG_NAP_NS 1000000ull

/* ---- is any work of this process on the card? ---- */

static bool at_work(struct fr_stream_state *st)
{
    if (!fr_stream_state_try_lock(st)) return true; /* another thread works with it */
    fr_timing_collect(st);
    bool begun = fr_timing_has_begun(st);
    fr_stream_state_unlock(st);
    return begun;
}

static bool may_wait(struct fr_stream_state *st)
{
    if (!atomic_load(&st->card->may_wait) || !fr_stream_state_try_lock(st)) return false;
    bool may = fr_timing_may_wait(st);
    fr_stream_state_unlock(st);
    return may;
}

/* A graph that waits for the program may be what another stream waits for. */
static bool any_at_work(const struct fr_paced_card *card)
{
    for (struct fr_stream_state *st = NULL; (st = fr_stream_state_next(card, st));)
        if (at_work(st) && atomic_load(&st->blocked) != FR_STALLED && !may_wait(st)) return true;
    return false;
}

bool fr_blocked_runs(const struct fr_paced_card *card)
{
    for (struct fr_stream_state *st = NULL; (st = fr_stream_state_next(card, st));)
        if (at_work(st) && st->count > atomic_load(&st->open)) return true;
    return false;
}

static bool is_behind(struct fr_stream_state *st)
{
    if (!fr_stream_state_try_lock(st)) return false;
    bool behind = fr_timing_may_be_blocked(st);
    fr_stream_state_unlock(st);
    return behind;
}

/* ---- waiting for one stream ---- */

struct watch {
    uint64_t began, known; /* when; predicted time left at that moment in all streams, since this one may wait for another */
    uint64_t quiet, looked; /* since when no work of this process was on the card; last look */
};

static void let_go(struct fr_stream_state *st, uint32_t why)
{
    uint32_t more = atomic_load(&st->let) ? 2 * atomic_load(&st->let) : 1;
    atomic_store(&st->let, more);
    atomic_store(&st->let_go, more);
    atomic_store(&st->blocked, why);
}

static bool is_blocked(struct fr_stream_state *st, struct watch *v, uint64_t now)
{
    if (now >= v->looked + LOOK_NS) {
        v->looked = now;
        if (any_at_work(st->card)) v->quiet = now;
    }
    uint64_t stuck = may_wait(st) ? BLOCKED_NS : atomic_load(&st->let) ? STUCK_AGAIN_NS : STUCK_NS;
    if (now > v->quiet + BLOCKED_NS && now > v->began + 4 * v->known && is_behind(st)) return let_go(st, FR_BLOCKED), true;
    if (now > v->began + stuck + 4 * v->known) return let_go(st, FR_STALLED), true;
    return false;
}

/* Sleep for a fraction of the time already waited, but not beyond the predicted end. Where lengths are known, sleep for half of the time left. */
static uint64_t next_look(const struct watch *v, uint64_t due, bool known, uint64_t now)
{
    uint64_t waited = now - v->began, nap = waited / 64;
    if (nap < NAP_NS) nap = NAP_NS;
    if (known && due > now && nap < (due - now) / 2) nap = (due - now) / 2;
    if (due > now && nap > due - now) nap = due - now;
    return now + (nap < LONG_NAP_NS ? nap : LONG_NAP_NS);
}

void fr_blocked_wait(struct fr_stream_state *st)
{
    uint64_t now = clock_now(), end = atomic_load(&st->card->queue_end), due = 0;
    uint32_t finished = atomic_load(&st->finished);
    struct watch v = {now, end > now ? end - now : 0, now, now};
    for (; atomic_load(&st->finished) == finished && atomic_load(&st->blocked) != FR_BLOCKED; now = clock_now()) {
        if (is_blocked(st, &v, now)) return;
        if (fr_stream_state_try_lock(st)) {
            fr_timing_collect(st);
            due = fr_timing_due(st);
            bool none = !st->count;
            fr_stream_state_unlock(st);
            if (none) return;
        }
        if (atomic_load(&st->finished) == finished) clock_sleep_until(next_look(&v, due, !atomic_load(&st->card->guessed), now));
    }
}

static bool take_one(_Atomic uint32_t *left)
{
    uint32_t n = atomic_load(left);
    while (n && !atomic_compare_exchange_weak(left, &n, n - 1)) {}
    return n;
}

bool fr_blocked_may_launch(struct fr_stream_state *st)
{
    uint32_t held = atomic_load_explicit(&st->blocked, memory_order_relaxed);
    if (likely(!held)) return false;
    if (held == FR_STALLED) return take_one(&st->let_go);
    return !at_work(st) && atomic_load(&st->blocked);
}

void fr_blocked_takes_more(struct fr_stream_state *st)
{
    uint32_t none = 0;
    atomic_compare_exchange_strong(&st->blocked, &none, FR_STALLED);
}

/* ---- the end of a turn ---- */

/* True: a batch was done. */
static bool drain(struct fr_stream_state *st, struct fr_paced_card *card)
{
    fr_stream_state_lock_alive(st, card);
    uint32_t before = st->count;
    if (st->count) fr_timing_drain(st);
    bool less = st->count < before;
    fr_stream_state_unlock(st);
    return less;
}

/* Has any stream that is not known to be blocked still work to begin? */
static bool any_to_come(const struct fr_paced_card *card)
{
    for (struct fr_stream_state *st = NULL; (st = fr_stream_state_next(card, st));)
        if (st->count && atomic_load(&st->blocked) != FR_BLOCKED) return true;
    return false;
}

void fr_blocked_settle(struct fr_paced_card *card)
{
    uint64_t quiet = clock_now();
    for (;;) {
        bool less = false;
        for (struct fr_stream_state *st = NULL; (st = fr_stream_state_next(card, st));) less |= drain(st, card);
        fr_lease_client_is_alive(card);
        if (!any_to_come(card)) return;
        if (less) quiet = clock_now();
        else if (clock_now() > quiet + BLOCKED_NS) break;
        else clock_sleep_until(clock_now() + (clock_now() - quiet) / 32 + NAP_NS);
    }
    for (struct fr_stream_state *st = NULL; (st = fr_stream_state_next(card, st));)
        if (st->count && atomic_load(&st->blocked) != FR_BLOCKED) let_go(st, FR_BLOCKED);
}

bool fr_blocked_any(const struct fr_paced_card *card)
{
    for (struct fr_stream_state *st = NULL; (st = fr_stream_state_next(card, st));)
        if (atomic_load(&st->blocked) == FR_BLOCKED) return true;
    return false;
}

/* If the stream was held back and now runs, it is no longer blocked. */
static bool goes_on(struct fr_stream_state *st, struct fr_paced_card *card)
{
    bool was_held = atomic_load(&st->blocked) == FR_BLOCKED;
    fr_stream_state_lock_alive(st, card);
    fr_timing_collect(st);
    if (was_held && fr_timing_has_begun(st)) atomic_store(&st->blocked, 0), fr_stream_state_queue(st, clock_now(), atomic_load(&st->in_flight));
    bool runs = fr_timing_runs(st);
    if (runs) fr_timing_goes_on(st);
    fr_stream_state_unlock(st);
    return runs;
}

bool fr_blocked_resumed(struct fr_paced_card *card, bool turn)
{
    bool any = false;
    for (struct fr_stream_state *st = NULL; (st = fr_stream_state_next(card, st));)
        if (!turn || atomic_load(&st->blocked) == FR_BLOCKED) any |= goes_on(st, card);
    return any;
}
