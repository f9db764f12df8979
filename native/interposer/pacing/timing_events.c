/* Measures work by events. Launches of a stream are gathered into batches of about a millisecond, each between two events. When the second
 * event is reached, the batch is done: it is no longer in flight, and the time between the events is the time that its kernels took, beside
 * the container's other work on the card. During its turn no other container computes on the card.
 *
 * Events that measure are recorded only by the thread that launches, directly before or after its launch. At the end of a turn the lease
 * client records an event in a stream whose last batch is open. It cannot do that in a thread's own default stream, nor in any stream during
 * a capture, which may draw that stream in. There no batch stays open: each launch moves the second event of its batch behind itself. A
 * stream that captures gets no events.
 *
 * Work that is not seen to be done counts as running, whatever was predicted. Where no event can show that it is done, the driver can only
 * report it for the whole context. */
#include "pacing/timing_events.h"

#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/own_events.h"
#include "memory/streams.h"
#include "pacing/api_launch.h"
#include "pacing/paced_card.h"
#include "pacing/predict.h"
#include "pacing/stream_state.h"
#include "pacing/stuck.h"

#include "clock.h"
#include "cuda_abi.h"
#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BATCH_NS 1000000ull
#define BATCH_LAUNCHES 64
#define SLICE_NS 1000000ull /* the driver's slices are longer: a batch beside other work that took this much longer may contain one */

static struct batch *at(struct fr_stream_state *st, uint32_t i) { return &st->batches[(st->first + i) % BATCHES]; }
static struct batch *newest(struct fr_stream_state *st) { return at(st, st->count - 1); }

static void landed(struct fr_stream_state *st, struct batch *b)
{
    fr_stream_state_completed(st, b->ns);
    if (unlikely(b->within)) atomic_fetch_sub(&st->card->may_wait, 1), b->within = false;
    for (uint32_t i = 0; i < b->kernels; i++) atomic_fetch_sub_explicit(&b->prediction[i]->pending, b->of_kernel[i], memory_order_relaxed);
}

/* Up to FR_HANDOVER_NS of the measured time may be another container's work. Subtract that, but not to below the prediction. */
static uint64_t less_the_others(uint64_t thought, uint64_t measured)
{
    if (thought >= measured) return measured;
    return thought + FR_HANDOVER_NS > measured ? thought : measured - FR_HANDOVER_NS;
}

/* The driver may have given another container a slice meanwhile. */
static bool is_sliced(const struct batch *b, uint64_t measured) { return b->beside && measured > b->ns + SLICE_NS; }

static void learn(const struct batch *b, uint64_t measured)
{
    if (b->gap || !b->kernels) return;
    if (b->beside) measured = less_the_others(b->ns, measured);
    bool sliced = is_sliced(b, measured);
    for (uint32_t i = 0; i < b->kernels; i++) fr_prediction_check(b->prediction[i], b->ns, measured, sliced);
    if (b->shared && b->kernels == 1) return fr_prediction_bound(b->prediction[0], b->of_kernel[0], measured / b->of_kernel[0] + 1);
    if (b->shared && measured > b->ns) measured = b->ns;
    if (b->kernels == 1) return fr_prediction_learn(b->prediction[0], b->of_kernel[0], measured / b->of_kernel[0] + 1, sliced);
    double ratio = (double)measured / (double)(b->ns ? b->ns : 1);
    for (uint32_t i = 0; i < b->kernels; i++) fr_prediction_correct(b->prediction[i], b->of_kernel[i], ratio, b->shared);
}

/* While a graph waits for the program, other batches may wait for the graph, so their measured time proves no work either. */
static bool proves_work(const struct fr_paced_card *p) { return !atomic_load_explicit(&p->may_wait, memory_order_relaxed); }

static void count_gpu_time(struct fr_paced_card *p, const struct batch *b, uint64_t ns, bool proven)
{
    struct fr_account *a = fr_paced_card_account(p);
    if (!b->held && unlikely(!proven)) atomic_fetch_add(&p->unproven_ns, ns);
    if (!b->held) atomic_fetch_add_explicit(&p->gpu_ns, ns, memory_order_relaxed);
    if (!a) return;
    atomic_fetch_add_explicit(&a->gpu_ns, ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&a->launches, b->launches, memory_order_relaxed);
}

/* Batches of several streams overlap. A batch is charged at most the time since the last batch was done. The event of the last finished
 * batch is kept for that, and its batch gets the previously kept event in exchange. */
static float since_last(struct fr_stream_state *st, struct batch *b, float ms)
{
    struct fr_paced_card *card = atomic_load(&st->card);
    uint32_t unlocked = 0;
    float more = 0;
    if (!atomic_compare_exchange_strong(&card->last_event_busy, &unlocked, 1)) return ms;
    if (card->last_event_of != st->context) card->last_event = NULL; /* died with its context, or is left to it */
    if (card->last_event && !REAL(cuEventElapsedTime)(&more, card->last_event, b->to) && more < ms) ms = more;
    if (ms >= 0) {
        CUevent mark = b->to;
        b->to = card->last_event;
        card->last_event = mark;
        card->last_event_of = st->context;
    }
    atomic_store(&card->last_event_busy, 0);
    return ms > 0 ? ms : 0; /* done before the last one, and counted with it */
}

/* Work that the program held back and released runs at any time, in a turn or not, and its second event may be late. So the accounts show
 * its predicted length. */
static void goes_on(struct fr_stream_state *st, struct batch *b)
{
    if (b->held) return;
    b->held = true;
    count_gpu_time(st->card, b, b->ns, false);
}

/* The oldest batch is done. */
static void finish(struct fr_stream_state *st)
{
    struct batch *b = at(st, 0);
    float ms = 0;
    bool timed = !b->begun && !b->lost && !REAL(cuEventElapsedTime)(&ms, b->from, b->to) && ms >= 0;
    b->shared |= atomic_load_explicit(&st->card->shared, memory_order_relaxed);
    uint64_t passes = atomic_load_explicit(&st->card->passes_at, memory_order_relaxed);
    b->beside |= passes && clock_now() >= passes;
    b->shared |= b->held || b->apart; /* outside of a turn */
    b->shared |= b->within && atomic_load(&st->card->stuck_gone); /* it may have waited for a launch that the gate held up */
    if (timed && !b->late) learn(b, (uint64_t)((double)ms * 1e6));
    bool proven = proves_work(st->card);
    landed(st, b);
    uint64_t took = timed ? (uint64_t)((double)since_last(st, b, ms) * 1e6) : b->ns;
    bool with_others = !b->apart && (is_sliced(b, took) || (b->shared && took > b->ns));
    if (!b->held) count_gpu_time(st->card, b, with_others ? b->ns : took, proven); /* without the others' work */
    if (!b->within && took > b->ns) fr_stuck_took_longer(st->card, took - b->ns);
    st->first = (st->first + 1) % BATCHES;
    st->count--;
    atomic_fetch_add(&st->finished, 1);
    atomic_store(&st->blocked, 0);
    atomic_store(&st->let, 0);
}

static uint32_t closed(const struct fr_stream_state *st) { return st->count - st->open; }

bool fr_timing_has_begun(struct fr_stream_state *st)
{
    return st->count && (at(st, 0)->begun || REAL(cuEventQuery)(at(st, 0)->from) != CUDA_ERROR_NOT_READY);
}

bool fr_timing_may_be_blocked(struct fr_stream_state *st) { return st->count && at(st, 0)->behind && atomic_load(&fr_blocked_by_host) && !fr_timing_has_begun(st); }

bool fr_timing_may_wait(struct fr_stream_state *st) { return st->count && at(st, 0)->within; }

/* Only errors about the whole context prove that nothing runs any more: the context ended, or one of its kernels failed. Other errors may be
 * caused by the program: an event that became part of a capture cannot be queried. */
static bool is_over(CUresult r)
{
    switch ((int)r) {
    case CUDA_SUCCESS:
    case 3: case 4:                                         /* the driver is not initialized, or is shutting down */
    case 709:                                               /* the context has ended */
    case 214: case 220: case 226:                           /* the card failed */
    case 700: case 702: case 710:                           /* a kernel failed */
    case 714: case 715: case 716: case 717: case 718: case 719: return true;
    default: return false;
    }
}

static bool is_reached(CUevent e) { return is_over(REAL(cuEventQuery)(e)); }
/* Can the lease client record an event here? Not in a thread's own default stream, nor in a stream that a capture may draw in. */
static bool can_close(const struct fr_stream_state *st) { return atomic_load(&st->handle) != CU_STREAM_PER_THREAD && !atomic_load(&fr_capture_count); }

bool fr_timing_runs(struct fr_stream_state *st)
{
    if (!fr_timing_has_begun(st)) return false;
    if (can_close(st) && st->open) {
        fr_timing_close(st);
        newest(st)->late = !newest(st)->lost && is_reached(newest(st)->to);
    }
    return true;
}

void fr_timing_goes_on(struct fr_stream_state *st)
{
    for (uint32_t i = 0; i < st->count; i++) goes_on(st, at(st, i));
}

uint64_t fr_timing_due(struct fr_stream_state *st)
{
    uint64_t behind = 0;
    for (uint32_t i = 1; i < st->count; i++) behind += at(st, i)->ns;
    return atomic_load(&st->queue_end) - behind;
}

static bool oldest_is_done(struct fr_stream_state *st) { return closed(st) && !at(st, 0)->lost && is_reached(at(st, 0)->to); }

void fr_timing_collect(struct fr_stream_state *st)
{
    if (!oldest_is_done(st)) return;
    bool apart = atomic_load(&st->blocked) == FR_BLOCKED;
    for (uint32_t i = 0; i < st->count; i++) at(st, i)->apart |= apart;
    do finish(st);
    while (oldest_is_done(st));
}

/* ---- recording ---- */

static bool event(CUevent *e) { return *e || fr_own_event_make(e); }

static void destroy(CUevent e)
{
    if (!e) return;
    fr_own_event_gone(e);
    REAL(cuEventDestroy_v2)(e);
}

/* Events belong to a context. A state that is reused for another context makes new ones. */
static void own_events(struct fr_stream_state *st)
{
    if (st->events_of == st->context) return;
    for (uint32_t i = 0; i < BATCHES; i++) {
        destroy(st->batches[i].from);
        destroy(st->batches[i].to);
        st->batches[i] = (struct batch){0};
    }
    st->events_of = st->context;
}

/* Any number of launches may go into a blocked stream: the last batch grows, and its second event moves. The same happens if two threads
 * launch at once and there was room for only one. */
static void begin_again(struct fr_stream_state *st)
{
    newest(st)->gap = true;
    st->open = true;
}

static void begin(struct fr_stream_state *st, bool dry, bool launched)
{
    if (!st->count) own_events(st);
    if (st->count == BATCHES) fr_timing_collect(st);
    if (st->count == BATCHES) return begin_again(st);
    struct batch *b = at(st, st->count);
    b->begun = launched || !event(&b->from) || REAL(cuEventRecord)(b->from, st->handle);
    b->ns = b->launches = b->kernels = 0;
    b->gap = b->held = b->apart = b->late = b->over = b->lost = b->within = false;
    b->shared = atomic_load_explicit(&st->card->shared, memory_order_relaxed);
    b->beside = clock_now() < atomic_load_explicit(&st->card->alone_at, memory_order_relaxed);
    b->behind = st->told;
    st->told = false;
    b->single = dry;
    st->count++;
    st->open = true;
}

void fr_timing_close(struct fr_stream_state *st)
{
    if (!st->open) return;
    struct batch *b = newest(st);
    st->open = false;
    b->lost = !event(&b->to) || REAL(cuEventRecord)(b->to, st->handle);
}

/* The batch was closed only because no other thread could close it later. */
static bool may_grow(struct fr_stream_state *st)
{
    const struct batch *b = st->count ? newest(st) : NULL;
    return b && !b->over && !b->held && !b->late;
}

static bool must_close(const struct fr_stream_state *st) { return unlikely(!can_close(st)); }

bool fr_timing_before_launch(struct fr_stream_state *st, bool dry)
{
    if (atomic_load(&st->blocked)) dry = false; /* the predicted end is unknown */
    /* The batch goes on. If another thread closes it before the launch, fr_timing_after_launch sees that, as it does without this check. */
    if (likely(!dry && atomic_load(&st->open))) return false;
    fr_stream_state_lock(st);
    if (st->open && dry) {
        newest(st)->gap = true;
        fr_timing_close(st);
    }
    if (!st->open && !dry && must_close(st) && may_grow(st)) st->open = true;
    if (!st->open) begin(st, dry, false);
    fr_stream_state_unlock(st);
    return true;
}

static void note(struct batch *b, struct fr_prediction *prediction, uint64_t ns)
{
    uint32_t i = 0;
    while (i < b->kernels && b->prediction[i] != prediction) i++;
    b->ns += ns;
    b->launches++;
    if (i == KERNELS) return;
    if (i == b->kernels) b->prediction[b->kernels++] = prediction, b->of_kernel[i] = 0;
    b->of_kernel[i]++;
    atomic_fetch_add_explicit(&prediction->pending, 1, memory_order_relaxed);
}

/* An unknown kernel gets its own batch, so that it is measured sooner. In a blocked stream many events would only use up batches, except where
 * stuck.c goes by what was measured. */
static bool full(const struct fr_stream_state *st, const struct batch *b, const struct fr_prediction *prediction)
{
    if (atomic_load(&st->blocked) && !atomic_load(&st->card->may_wait)) return b->launches % BATCH_LAUNCHES == 0;
    bool unknown = !atomic_load_explicit(&prediction->samples, memory_order_relaxed);
    return unknown || b->single || b->kernels == KERNELS || b->ns >= BATCH_NS || b->launches >= BATCH_LAUNCHES;
}

static void note_wait(struct fr_stream_state *st, struct batch *b)
{
    if (!b->within) atomic_fetch_add(&st->card->may_wait, 1);
    b->within = true;
}

/* Another thread may have closed the batch before the launch. */
void fr_timing_after_launch(struct fr_stream_state *st, struct fr_prediction *prediction, uint64_t now, uint64_t ns, bool may_wait)
{
    fr_stream_state_lock(st);
    fr_stream_state_queue(st, now, ns);
    if (unlikely(!st->open)) begin(st, false, true);
    struct batch *b = newest(st);
    note(b, prediction, ns);
    if (unlikely(may_wait)) note_wait(st, b);
    b->over = may_wait || full(st, b, prediction);
    if (b->over || must_close(st)) fr_timing_close(st);
    fr_stream_state_unlock(st);
}

void fr_timing_launch_failed(struct fr_stream_state *st)
{
    fr_stream_state_lock(st);
    if (must_close(st)) fr_timing_close(st);
    fr_stream_state_unlock(st);
}

/* ---- the end ---- */

/* Open batches of several streams ran together and are found done together. Each counts with its predicted time, but with no more than the
 * time since the one before. */
static uint64_t not_counted_yet(struct fr_paced_card *p, uint64_t ns)
{
    uint64_t now = clock_now(), from = atomic_exchange(&p->open_done, now), granted = atomic_load(&p->granted);
    if (from < granted) from = granted;
    return now < from ? 0 : ns < now - from ? ns : now - from;
}

/* The lease client waits without the lock, and launches may go into the stream meanwhile (stuck.c). */
static struct fr_paced_card *begin_wait(struct fr_stream_state *st)
{
    atomic_store(&st->waited_for, true);
    fr_stream_state_unlock(st);
    return atomic_load(&st->card);
}

static void end_wait(struct fr_stream_state *st, struct fr_paced_card *card)
{
    fr_lease_client_is_alive(card);
    fr_stream_state_lock_alive(st, card);
    atomic_store(&st->waited_for, false);
}

static void look_later(struct fr_stream_state *st)
{
    struct fr_paced_card *card = begin_wait(st);
    clock_sleep_until(clock_now() + FR_IDLE_NS);
    end_wait(st, card);
}

/* Shows in `waits_for` what it waits for. True: that is done. */
static bool wait_in_driver(struct fr_stream_state *st, CUevent event)
{
    struct fr_paced_card *card = begin_wait(st);
    atomic_store(&card->waits_for, event ? event : FR_WAITS_FOR_ALL);
    bool over = is_over(event ? REAL(cuEventSynchronize)(event) : REAL(cuCtxSynchronize)());
    atomic_store(&card->waits_for, NULL);
    if (over) fr_stuck_goes_on(card);
    end_wait(st, card);
    return over;
}

/* No event shows when the oldest batch is done. The driver can wait for the whole context, but not during a capture. */
static void wait_for_all(struct fr_stream_state *st)
{
    uint32_t until = atomic_load(&st->finished) + closed(st);
    if (atomic_load(&fr_capture_count) || !wait_in_driver(st, NULL)) return look_later(st);
    while (closed(st) && (int32_t)(until - atomic_load(&st->finished)) > 0) finish(st);
}

static void wait_for_oldest(struct fr_stream_state *st)
{
    uint32_t finished = atomic_load(&st->finished);
    if (at(st, 0)->lost) return wait_for_all(st);
    bool over = wait_in_driver(st, at(st, 0)->to);
    if (!over && closed(st) && atomic_load(&st->finished) == finished) at(st, 0)->lost = true;
}

/* The work of an open batch has no event behind it. An event recorded now ends the batch, and measures it if it still runs. (If the stream
 * is gone, fr_stream_states_close() has closed the batch.) Where this thread can record no event, the thread that launches is about to.
 * True: the batch is done. */
static bool drain_open(struct fr_stream_state *st)
{
    struct batch *b = newest(st);
    if (!can_close(st)) return look_later(st), false;
    fr_timing_close(st);
    if (b->lost || !is_reached(b->to)) return false;
    bool proven = proves_work(st->card);
    landed(st, b);
    if (!b->held) count_gpu_time(st->card, b, not_counted_yet(st->card, b->ns), proven);
    st->count--;
    if (atomic_load(&st->blocked) == FR_STALLED) atomic_store(&st->blocked, 0);
    return true;
}

/* A context that cannot be made current has ended. */
void fr_timing_drain(struct fr_stream_state *st)
{
    CUcontext before = NULL;
    REAL(cuCtxGetCurrent)(&before);
    if (before != st->context && REAL(cuCtxSetCurrent)(st->context)) return fr_timing_forget(st);
    CUcontext of = st->context;
    while (st->count && st->context == of && !fr_timing_may_be_blocked(st)) {
        if (oldest_is_done(st)) finish(st);
        else if (closed(st)) wait_for_oldest(st);
        else if (drain_open(st)) return;
    }
}

void fr_timing_forget(struct fr_stream_state *st)
{
    while (st->count) {
        landed(st, at(st, 0));
        st->first = (st->first + 1) % BATCHES;
        st->count--;
    }
    for (uint32_t k = 0; k < BATCHES; k++) {
        fr_own_event_gone(st->batches[k].from);
        fr_own_event_gone(st->batches[k].to);
        st->batches[k] = (struct batch){0};
    }
    st->open = false;
    st->events_of = NULL;
}

void fr_timing_forget_last(CUcontext context)
{
    for (struct fr_paced_card *card = fr_paced_cards; card < fr_paced_cards + FR_MAX_CARDS; card++) {
        if (card->last_event_of != context) continue;
        fr_own_event_gone(card->last_event);
        card->last_event = NULL;
        card->last_event_of = NULL;
        atomic_store(&card->last_event_busy, 0);
    }
}
