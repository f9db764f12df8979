/* Launches of a stream are gathered into batches of about a millisecond, each between two marks (events). When the second mark is
 * reached the batch is done: so much less is in flight, and the time between the marks says how long its kernels took, beside
 * what else the container did on the card meanwhile. In its turn nobody else computes there.
 *
 * Marks are recorded only by the thread that launches, right beside its launch: no other thread ever uses the application's
 * stream. A stream that captures gets none. */
#include "stream_state.h"
#include "pool.h"

#include "clock.h"

#define BATCH_NS 1000000ull
#define BATCH_LAUNCHES 64

static FR_LARGE struct last { /* the mark that was reached last, of a card */
    _Atomic uint32_t busy;
    CUevent event;
    CUcontext context;
} lasts[FR_MAX_CARDS];

static struct batch *at(struct fr_lane *l, uint32_t i) { return &l->batches[(l->first + i) % MARKS]; }
static struct batch *newest(struct fr_lane *l) { return at(l, l->count - 1); }

static void less(_Atomic uint64_t *what, uint64_t ns)
{
    uint64_t was = atomic_load(what);
    while (!atomic_compare_exchange_weak(what, &was, was > ns ? was - ns : 0)) {}
}

void fr_lane_landed(struct fr_lane *l, uint64_t ns)
{
    less(&l->in_flight, ns);
    less(&l->pace->in_flight, ns);
}

static void landed(struct fr_lane *l, struct batch *b)
{
    fr_lane_landed(l, b->ns);
    for (uint32_t i = 0; i < b->kinds; i++) atomic_fetch_sub_explicit(&b->guess[i]->pending, b->of_kind[i], memory_order_relaxed);
}

/* Up to FR_HANDOVER_NS of it may be another's: it took so much less, as far as that is nearer to what was thought. */
static uint64_t less_the_others(uint64_t thought, uint64_t measured)
{
    if (thought >= measured) return measured;
    return thought + FR_HANDOVER_NS > measured ? thought : measured - FR_HANDOVER_NS;
}

static void learn(const struct batch *b, uint64_t measured)
{
    if (b->gap || !b->kinds) return;
    if (b->beside) measured = less_the_others(b->ns, measured);
    for (uint32_t i = 0; i < b->kinds; i++) fr_guess_check(b->guess[i], b->ns, measured);
    if (b->shared && b->kinds == 1) return fr_guess_bound(b->guess[0], b->of_kind[0], measured / b->of_kind[0] + 1);
    if (b->shared && measured > b->ns) measured = b->ns;
    if (b->kinds == 1) return fr_guess_learn(b->guess[0], b->of_kind[0], measured / b->of_kind[0] + 1);
    double ratio = (double)measured / (double)(b->ns ? b->ns : 1);
    for (uint32_t i = 0; i < b->kinds; i++) fr_guess_correct(b->guess[i], b->of_kind[i], ratio, b->shared);
}

static void count_gpu_time(struct fr_pace *p, uint64_t ns, uint32_t launches)
{
    struct fr_account *a = fr_account_of_pace(p);
    if (!a) return;
    atomic_fetch_add_explicit(&a->gpu_ns, ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&a->launches, launches, memory_order_relaxed);
}

/* Batches of several streams overlap: the card was busy with a batch no longer than since the last one that was done. The mark of
 * that one is kept, and the batch gets the one kept before in exchange. */
static float since_last(struct fr_lane *l, struct batch *b, float ms)
{
    struct last *last = &lasts[l->pace - fr_paces];
    uint32_t nobody = 0;
    float more = 0;
    if (!atomic_compare_exchange_strong(&last->busy, &nobody, 1)) return ms;
    if (last->context != l->context) last->event = NULL; /* died with its context, or is left to it */
    if (last->event && !REAL(cuEventElapsedTime)(&more, last->event, b->to) && more < ms) ms = more;
    if (ms >= 0) {
        CUevent mark = b->to;
        b->to = last->event;
        last->event = mark;
        last->context = l->context;
    }
    atomic_store(&last->busy, 0);
    return ms > 0 ? ms : 0; /* done before the last one: counted with it */
}

/* The oldest batch is done. */
static void finish(struct fr_lane *l)
{
    struct batch *b = at(l, 0);
    float ms = 0;
    bool timed = !REAL(cuEventElapsedTime)(&ms, b->from, b->to) && ms >= 0;
    b->shared |= atomic_load_explicit(&l->pace->shared, memory_order_relaxed);
    uint64_t passes = atomic_load_explicit(&l->pace->passes_at, memory_order_relaxed);
    b->beside |= passes && clock_now() >= passes;
    if (timed) learn(b, (uint64_t)((double)ms * 1e6));
    landed(l, b);
    uint64_t took = timed ? (uint64_t)((double)since_last(l, b, ms) * 1e6) : b->ns;
    count_gpu_time(l->pace, b->shared && took > b->ns ? b->ns : took, b->launches); /* beside others: not their work */
    l->first = (l->first + 1) % MARKS;
    l->count--;
    atomic_fetch_add(&l->finished, 1);
    atomic_store(&l->held, 0);
    atomic_store(&l->let, 0);
}

static uint32_t closed(const struct fr_lane *l) { return l->count - l->open; }
CUevent fr_marks_oldest(struct fr_lane *l) { return closed(l) ? at(l, 0)->to : NULL; }

bool fr_marks_begun(struct fr_lane *l) { return l->count && REAL(cuEventQuery)(at(l, 0)->from) != CUDA_ERROR_NOT_READY; }

bool fr_marks_behind(struct fr_lane *l) { return l->count && at(l, 0)->behind && atomic_load(&fr_held_by_host) && !fr_marks_begun(l); }

uint64_t fr_marks_due(struct fr_lane *l)
{
    uint64_t behind = 0;
    for (uint32_t i = 1; i < l->count; i++) behind += at(l, i)->ns;
    return atomic_load(&l->queue_end) - behind;
}

void fr_marks_collect(struct fr_lane *l)
{
    while (closed(l) && REAL(cuEventQuery)(at(l, 0)->to) != CUDA_ERROR_NOT_READY) finish(l);
}

/* ---- recording ---- */

static bool event(CUevent *e) { return *e || !REAL(cuEventCreate)(e, 1 /* waiting for it does not spin */); }

/* Marks belong to a context; a lane that goes on to another one makes new ones. */
static void own_events(struct fr_lane *l)
{
    if (l->events_of == l->context) return;
    for (uint32_t i = 0; i < MARKS; i++) {
        if (l->batches[i].from) REAL(cuEventDestroy_v2)(l->batches[i].from);
        if (l->batches[i].to) REAL(cuEventDestroy_v2)(l->batches[i].to);
        l->batches[i] = (struct batch){0};
    }
    l->events_of = l->context;
}

/* Behind a stream that is held any number is launched: the last batch grows, and its second mark moves. */
static void begin_again(struct fr_lane *l)
{
    if (!atomic_load(&l->held)) return;
    newest(l)->gap = true;
    l->open = true;
}

static void begin(struct fr_lane *l, bool dry)
{
    if (!l->count) own_events(l);
    if (l->count == MARKS) fr_marks_collect(l);
    if (l->count == MARKS) return begin_again(l);
    struct batch *b = at(l, l->count);
    if (!event(&b->from) || !event(&b->to) || REAL(cuEventRecord)(b->from, l->handle)) return;
    b->ns = b->launches = b->kinds = 0;
    b->gap = false;
    b->shared = atomic_load_explicit(&l->pace->shared, memory_order_relaxed);
    b->beside = clock_now() < atomic_load_explicit(&l->pace->alone_at, memory_order_relaxed);
    b->behind = l->told;
    l->told = false;
    b->single = dry;
    l->count++;
    l->open = true;
}

void fr_marks_close(struct fr_lane *l)
{
    if (!l->open) return;
    l->open = false;
    if (!REAL(cuEventRecord)(newest(l)->to, l->handle)) return;
    landed(l, newest(l)); /* it cannot be watched */
    l->count--;
}

void fr_lane_before(struct fr_lane *l, bool dry)
{
    if (atomic_load(&l->held)) dry = false; /* it is not known what should be done */
    fr_lane_take(l);
    if (l->open && dry) {
        newest(l)->gap = true;
        fr_marks_close(l);
    }
    if (!l->open) begin(l, dry);
    fr_lane_give(l);
}

static void note(struct batch *b, struct fr_guess *guess, uint64_t ns)
{
    uint32_t i = 0;
    while (i < b->kinds && b->guess[i] != guess) i++;
    b->ns += ns;
    b->launches++;
    if (i == KINDS) return;
    if (i == b->kinds) b->guess[b->kinds++] = guess, b->of_kind[i] = 0;
    b->of_kind[i]++;
    atomic_fetch_add_explicit(&guess->pending, 1, memory_order_relaxed);
}

/* Unknown kernels are a batch of their own: they are known the sooner. Behind a stream that is held marks only take room. */
static bool full(const struct fr_lane *l, const struct batch *b, const struct fr_guess *guess)
{
    if (atomic_load(&l->held)) return b->launches % BATCH_LAUNCHES == 0;
    bool unknown = !atomic_load_explicit(&guess->samples, memory_order_relaxed);
    return unknown || b->single || b->kinds == KINDS || b->ns >= BATCH_NS || b->launches >= BATCH_LAUNCHES;
}

void fr_lane_after(struct fr_lane *l, struct fr_guess *guess, uint64_t ns)
{
    fr_lane_take(l);
    if (l->open) {
        note(newest(l), guess, ns);
        if (full(l, newest(l), guess)) fr_marks_close(l);
    } else {
        fr_lane_landed(l, ns); /* it cannot be watched */
    }
    fr_lane_give(l);
}

/* ---- the end ---- */

/* What stands in an open batch has no mark behind it: then all of its context is waited for. A capture forbids that, and a stream
 * of it that waits for the program may never be done; then what was predicted is waited for. */
static void drain_open(struct fr_lane *l)
{
    struct batch *b = newest(l);
    if (!atomic_load(&fr_captures) && !atomic_load(&fr_held_by_host)) REAL(cuCtxSynchronize)();
    else clock_sleep_until(atomic_load(&l->queue_end) + FR_IDLE_NS);
    landed(l, b);
    count_gpu_time(l->pace, b->ns, b->launches);
    l->open = false;
    l->count--;
}

void fr_marks_drain(struct fr_lane *l)
{
    CUcontext before = NULL;
    REAL(cuCtxGetCurrent)(&before);
    if (before != l->context && REAL(cuCtxSetCurrent)(l->context)) return;
    while (l->count && !fr_marks_behind(l)) {
        if (!closed(l)) return drain_open(l);
        REAL(cuEventSynchronize)(at(l, 0)->to);
        finish(l);
    }
}

void fr_marks_forget(struct fr_lane *l)
{
    while (l->count) {
        landed(l, at(l, 0));
        l->first = (l->first + 1) % MARKS;
        l->count--;
    }
    for (uint32_t k = 0; k < MARKS; k++) l->batches[k] = (struct batch){0};
    l->open = false;
    l->events_of = NULL;
}

void fr_marks_forget_last(CUcontext context)
{
    for (uint32_t i = 0; i < FR_MAX_CARDS; i++)
        if (!context || lasts[i].context == context) lasts[i] = (struct last){0};
}
