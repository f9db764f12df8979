/* Decides whether a launch may go now. A paced card belongs to this container for one turn at a time. A launch goes if the turn is open,
 * the work in flight leaves room in the queue, and the launch should end before the turn does. A kernel that is longer than a whole turn
 * goes as the first of a turn: the arbiter counts the time that it takes. A launch that may not go waits at the gate, without spinning. */
#include "pacing/gate.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "ledger/limits.h"
#include "ledger/process.h"
#include "ledger/shared.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/context.h"
#include "memory/context_audit.h"
#include "memory/context_cost.h"
#include "memory/place.h"
#include "memory/streams.h"
#include "pacing/api_launch.h"
#include "pacing/blocked_streams.h"
#include "pacing/lease_client.h"
#include "pacing/paced_card.h"
#include "pacing/predict.h"
#include "pacing/stream_state.h"
#include "pacing/stream_wait.h"
#include "pacing/stuck.h"
#include "pacing/timing_events.h"

#include "clock.h"
#include "cuda_abi.h"
#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LITTLE_NS 300000ull   /* work in flight near the end of a turn that is too little to wait for */
#define STEADY 4u /* a prediction with this `steady` (see predict.c) is reliable enough to end a turn by */
#define AWAKE_NS 300000ull /* one thread is awake this long before its turn begins */
#define BESIDE_NS 100000000ull /* kernels longer than a turn, up to this length, may go in several streams at once */

static const _Atomic uint32_t never = 1; /* the sequence of a readable page is even */
const _Atomic uint32_t *_Atomic fr_limits_sequence = &never;
_Atomic uint32_t fr_unpaced_sequence = 0;
static _Atomic uint32_t looked_at = 1, looked_in; /* sequence and era at which `must` was computed */
static _Atomic uint64_t must;                     /* bit set of the cards to be paced */
static struct fr_lock look_lock;

static bool is_paced(const struct fr_quota *q)
{
    bool capped = q->cores_limit > 0 && q->cores_limit < 100, shared = q->cores > 0 && q->cores < 100;
    return capped || shared || (q->flags & FR_CARD_PACED);
}

bool fr_card_is_paced(int card)
{
    struct fr_quota q;
    fr_quota(card, &q);
    return is_paced(&q);
}

static void start_over(uint32_t era)
{
    for (uint32_t i = 0; i < FR_MAX_CARDS; i++) fr_paced_cards[i] = (struct fr_paced_card){0};
    fr_lease_after_fork();
    atomic_store(&looked_in, era);
}

static void look_again(uint32_t sequence)
{
    uint64_t cards = 0;
    fr_lock(&look_lock);
    uint32_t era = atomic_load(&fr_era);
    if (atomic_load(&looked_in) != era) start_over(era);
    for (int i = 0; i < fr_card_count() && i < (int)FR_MAX_CARDS; i++) {
        struct fr_quota q;
        fr_quota(i, &q);
        if (is_paced(&q)) cards |= 1ull << i;
    }
    atomic_store(&fr_before_context_ends, fr_stream_states_forget);
    atomic_store(&fr_after_context_ends, fr_stream_states_forgotten);
    atomic_store(&fr_before_stream_ends, fr_stream_states_close);
    atomic_store(&fr_collect_states, fr_stream_states_collect);
    atomic_store(&fr_before_capture, fr_stream_states_close_all);
    atomic_store(&must, cards);
    atomic_store(&looked_at, sequence);
    atomic_store(&fr_unpaced_sequence, cards ? 1u : sequence); /* 1 is never the sequence of a readable page */
    atomic_store(&fr_limits_sequence, &fr_shared.limits->sequence);
    fr_unlock(&look_lock);
}

/* The sequence is read before the cards: a change in between is noticed at the next launch. */
static bool must_be_paced(int card)
{
    if (fr_process_state() != FR_ENFORCE) return false;
    uint32_t sequence = atomic_load_explicit(&fr_shared.limits->sequence, memory_order_acquire);
    bool known = sequence == atomic_load(&looked_at) && atomic_load(&looked_in) == atomic_load(&fr_era);
    if (unlikely(!known) && !(sequence & 1)) look_again(sequence);
    return atomic_load_explicit(&must, memory_order_relaxed) >> card & 1;
}

struct fr_paced_card *fr_paced_card_here(void)
{
    CUdevice device;
    int card = fr_card_here(&device);
    return card >= 0 && card < (int)FR_MAX_CARDS && must_be_paced(card) ? &fr_paced_cards[card] : NULL;
}

/* NULL: the card is not paced, or the call starts no work. The caller ends the use with fr_stream_state_done. */
struct fr_stream_state *fr_gate_stream(const struct fr_work *w)
{
    struct fr_stream_place place;
    struct fr_stream_state *st = fr_stream_state_known(w, &place);
    if (likely(st != NULL) || !place.context) return st;
    struct fr_paced_card *card = fr_paced_card_here();
    if (!card) return NULL;
    fr_lease_start((int)(card - fr_paced_cards));
    return fr_stream_state_found(&place, card);
}

/* ---- one launch ---- */

enum answer { GO, SOON, ROOM, OVER };

/* For a launch into an empty stream. A kernel longer than a turn may go, too: one at a time, or, up to BESIDE_NS, one per stream, so that
 * the sum stays bearable if they run one after the other. */
static enum answer may_begin(const struct fr_paced_card *p, uint64_t ns, uint64_t now)
{
    uint64_t end = atomic_load(&p->end), granted = atomic_load(&p->granted);
    if (!end || now + ns <= end || !atomic_load(&p->launched_now)) return GO;
    if (now >= end || granted + ns < end) return OVER;
    return ns <= BESIDE_NS || !fr_stream_states_in_flight(p) ? GO : OVER;
}

/* The lease client passes the turn on when the work in flight is nearly done. */
static void note_full(struct fr_paced_card *p)
{
    if (atomic_load_explicit(&p->full, memory_order_relaxed) || atomic_exchange(&p->full, 1)) return;
    fr_lease_wake((int)(p - fr_paced_cards));
}

static enum answer may_go(struct fr_paced_card *p, const struct fr_ticket *t, uint64_t now)
{
    struct fr_backlog a = fr_stream_state_backlog(t->state, now);
    uint64_t end = atomic_load(&p->end);
    if (unlikely(now >= atomic_load_explicit(&p->alive_at, memory_order_relaxed) + FR_SILENT_NS)) return OVER;
    if (unlikely(now < atomic_load_explicit(&p->begins, memory_order_relaxed))) return SOON;
    if (!a.in_flight) return may_begin(p, t->ns, now);
    if (unlikely(fr_blocked_may_launch(t->state))) return GO;
    if (end && now + a.left + t->ns > end) {
        note_full(p);
        return a.left > LITTLE_NS && now < end ? ROOM : OVER; /* less may be left than predicted */
    }
    bool seen = atomic_load_explicit(&t->prediction->pending, memory_order_relaxed) < atomic_load_explicit(&t->prediction->samples, memory_order_relaxed);
    uint64_t window = unlikely(atomic_load_explicit(&p->shared, memory_order_relaxed)) ? FR_BESIDE_WINDOW_NS : FR_WINDOW_NS;
    return !a.full && seen && a.in_flight + t->ns <= window ? GO : ROOM;
}

static bool is_measured(const struct fr_ticket *t) { return atomic_load_explicit(&t->prediction->samples, memory_order_relaxed); }

/* How much of FR_WINDOW_NS the launch takes where the gate stays closed (stuck.c). One of unknown length takes all of it, and does not go
 * behind other work. */
static uint64_t stuck_ns(const struct fr_ticket *t)
{
    return is_measured(t) ? t->ns : fr_stuck_unknown_ns(t->card, atomic_load(&t->state->in_flight));
}

static void wait_at(const struct fr_ticket *t, uint32_t seen)
{
    struct fr_paced_card *p = t->card;
    struct fr_account *a = fr_paced_card_account(p);
    uint64_t from = clock_now();
    atomic_fetch_add(&p->waiting, 1);
    uint64_t stuck = fr_stuck_look(p, stuck_ns(t)), again = from + FR_SILENT_NS, look = stuck > again ? stuck : again;
    if (atomic_load(&p->gate) == seen) clock_wait(&p->gate, seen, seen == FR_GATE_CLOSED ? look : 0);
    atomic_fetch_sub(&p->waiting, 1);
    if (a) atomic_fetch_add_explicit(&a->waited_ns, clock_now() - from, memory_order_relaxed);
}

/* The turn was granted before it begins. Sleeping threads are woken late, so one thread stays awake for the last moment. */
static void wait_until_it_begins(struct fr_paced_card *p)
{
    struct fr_account *a = fr_paced_card_account(p);
    uint64_t from = clock_now(), until;
    bool first = !clock_is_virtual() && !atomic_exchange(&p->awake, 1);
    atomic_fetch_add(&p->waiting, 1);
    while (atomic_load(&p->gate) == FR_GATE_OPEN && clock_now() < (until = atomic_load(&p->begins) - (first ? AWAKE_NS : 0)))
        clock_wait(&p->gate, FR_GATE_OPEN, until);
    while (first && atomic_load(&p->gate) == FR_GATE_OPEN && clock_now() < atomic_load(&p->begins)) {}
    if (first) atomic_store(&p->awake, 0);
    atomic_fetch_sub(&p->waiting, 1);
    if (a) atomic_fetch_add_explicit(&a->waited_ns, clock_now() - from, memory_order_relaxed);
}

/* At a closed gate: requests a turn if no thread has, and waits. */
static void knock(const struct fr_ticket *t, uint32_t seen)
{
    struct fr_paced_card *p = t->card;
    int card = (int)(p - fr_paced_cards);
    atomic_fetch_add(&p->waiting, 1);
    if (seen == FR_GATE_IDLE && atomic_compare_exchange_strong(&p->gate, &seen, FR_GATE_ASKED)) {
        seen = FR_GATE_ASKED;
        fr_lease_wake(card);
    }
    atomic_fetch_sub(&p->waiting, 1);
    if (seen != FR_GATE_OPEN && seen != FR_GATE_FREE) wait_at(t, seen);
}

static void wait_for_room(struct fr_ticket *t)
{
    atomic_fetch_add(&t->card->waiting, 1);
    fr_stream_state_wait(t->state);
    atomic_fetch_sub(&t->card->waiting, 1);
}

/* Without an arbiter no card is paced. The return of an arbiter is noticed here, too: the lease client may be unable to notice it. */
static bool is_free(struct fr_paced_card *p)
{
    uint32_t free = FR_GATE_FREE;
    if (likely(!fr_arbiter_lives())) return true;
    if (atomic_compare_exchange_strong(&p->gate, &free, FR_GATE_ASKED)) fr_lease_wake((int)(p - fr_paced_cards));
    return false;
}

/* After a long time without launches the lease client may have stopped looking for an arbiter. */
static void wake_lease_client(struct fr_paced_card *p, uint64_t now)
{
    if (likely(now <= atomic_load(&p->last_launch) + FR_QUIET_NS)) return;
    atomic_store(&p->last_launch, now); /* else the lease client would find the card quiet again */
    fr_lease_wake((int)(p - fr_paced_cards));
}

static bool is_known(const struct fr_prediction *g)
{
    return atomic_load_explicit(&g->steady, memory_order_relaxed) >= STEADY;
}

/* A turn does not count as idle while a thread is on its way from the gate to its launch. */
static void note_at_gate(struct fr_paced_card *p, bool *noted, bool is)
{
    if (likely(*noted == is)) return;
    *noted = is;
    atomic_fetch_add(&p->at_gate, is ? 1u : -1u);
}

/* Returns with the launch counted in `inside`, so that the turn does not end before the driver's answer. */
static uint64_t pass(struct fr_ticket *t)
{
    struct fr_paced_card *p = t->card;
    bool at_gate = false;
    for (;;) {
        atomic_fetch_add(&p->inside, 1);
        uint32_t gate = atomic_load(&p->gate);
        uint64_t now = clock_now_quickly();
        enum answer a = gate == FR_GATE_FREE ? (is_free(p) ? GO : OVER) : gate == FR_GATE_OPEN ? may_go(p, t, now) : OVER;
        if (a != GO && gate == FR_GATE_OPEN && fr_stream_state_poll(t->state)) a = may_go(p, t, now);
        if (unlikely(gate == FR_GATE_CLOSED && atomic_load(&p->may_wait))) fr_stream_state_poll(t->state);
        if (unlikely(gate == FR_GATE_CLOSED && fr_stuck_may_launch(p, stuck_ns(t), !is_measured(t), now))) fr_blocked_takes_more(t->state), a = GO;
        if (a == GO) {
            fr_stream_state_add(t->state, t->ns);
            if (unlikely(!is_known(t->prediction) && !atomic_load_explicit(&p->guessed, memory_order_relaxed))) atomic_store(&p->guessed, 1);
            if (unlikely(!atomic_load_explicit(&p->launched_now, memory_order_relaxed))) atomic_store(&p->launched_now, 1);
            if (unlikely(gate == FR_GATE_FREE)) wake_lease_client(p, now);
            note_at_gate(p, &at_gate, false);
            return now;
        }
        note_at_gate(p, &at_gate, a != ROOM);
        atomic_fetch_sub(&p->inside, 1);
        if (a == SOON) wait_until_it_begins(p);
        else if (a == ROOM) wait_for_room(t);
        else if (gate == FR_GATE_OPEN) fr_lease_close(p);
        else knock(t, gate);
    }
}

/* A launch runs on its stream's card, in the stream's context. That need not be the current context: the stream may belong to a green
 * context, or to another card with a kernel that belongs to no context. Events are recorded in the stream's context, too. */
CUcontext fr_gate_context_of(CUstream stream)
{
    CUcontext of = NULL, current = NULL;
    if (likely(fr_one_context())) return NULL;
    bool made = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    if (!made || fr_stream_is_capturing(stream) || REAL(cuStreamGetCtx)(stream, &of)) return NULL;
    REAL(cuCtxGetCurrent)(&current);
    return of != current ? of : NULL;
}

/* A thread without a current context may launch into a stream that it names: the stream's context, if so. */
static CUcontext context_where_none_is_current(CUstream stream)
{
    CUcontext of = NULL, current = NULL;
    if (REAL(cuCtxGetCurrent)(&current) || current) return NULL;
    bool made = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    return made && !fr_stream_is_capturing(stream) && !REAL(cuStreamGetCtx)(stream, &of) ? of : NULL;
}

/* Where contexts may come and go unseen, the stream's card is looked up with every batch. */
static void look_up_again(struct fr_stream_state *st)
{
    if (unlikely(atomic_load_explicit(&fr_unseen_why, memory_order_relaxed)) && fr_paced_card_here() != st->card) st->looked_up_at = FR_NEVER;
}

static void enter(struct fr_ticket *t, const struct fr_work *w)
{
    t->card = NULL;
    t->may_wait = w->may_wait;
    if (!(t->state = fr_gate_stream(w))) return;
    struct fr_paced_card *p = atomic_load_explicit(&t->state->card, memory_order_relaxed);
    t->prediction = fr_prediction_of(w->a, w->b);
    bool measured = !w->first_ns || atomic_load_explicit(&t->prediction->samples, memory_order_relaxed);
    t->ns = measured ? fr_prediction_ns(t->prediction) : w->first_ns;
    if (!measured) atomic_store_explicit(&t->prediction->ns, w->first_ns, memory_order_relaxed); /* the first batch is compared with this */
    t->card = p;
    t->entered = pass(t);
    bool begins = fr_timing_before_launch(t->state, fr_stream_state_is_dry(t->state, t->entered));
    if (unlikely(begins)) look_up_again(t->state);
}

void fr_gate_enter(struct fr_ticket *t, const struct fr_work *w)
{
    CUcontext before = NULL;
    t->context = fr_gate_context_of(w->stream);
    if (likely(!t->context)) {
        enter(t, w);
        if (likely(t->card) || !(t->context = context_where_none_is_current(w->stream))) return;
    }
    t->card = NULL;
    REAL(cuCtxGetCurrent)(&before);
    if (REAL(cuCtxSetCurrent)(t->context)) return;
    enter(t, w);
    REAL(cuCtxSetCurrent)(before);
}

void fr_gate_leave(struct fr_ticket *t, CUresult result)
{
    struct fr_paced_card *p = t->card;
    if (!p) return;
    CUcontext before = NULL;
    if (unlikely(t->context != NULL)) {
        REAL(cuCtxGetCurrent)(&before);
        REAL(cuCtxSetCurrent)(t->context);
    }
    /* A launch of a kernel that was measured before returns at once, or when a kernel of a full queue is done. Only the first launch, in
     * which the driver may load code, takes long enough to read the clock again. */
    bool seen = atomic_load_explicit(&t->prediction->samples, memory_order_relaxed);
    uint64_t now = likely(seen) ? t->entered : clock_now();
    atomic_store_explicit(&p->last_launch, now, memory_order_relaxed);
    if (result) fr_stream_state_completed(t->state, t->ns), fr_timing_launch_failed(t->state);
    else fr_timing_after_launch(t->state, t->prediction, now, t->ns, t->may_wait);
    uint64_t end = atomic_load_explicit(&p->end, memory_order_relaxed);
    if (end && atomic_load_explicit(&p->queue_end, memory_order_relaxed) + t->ns > end) note_full(p); /* another would not be done in time */
    fr_stream_state_done(t->state);
    atomic_fetch_sub(&p->inside, 1);
    if (unlikely(t->context != NULL)) REAL(cuCtxSetCurrent)(before);
}
