/* What is in flight, stream by stream. Launches of a stream are gathered into batches of about a millisecond, each between
 * two marks (events). When the second mark is reached the batch is done: so much less is in flight, and the time between the
 * marks says how long its kernels took. In the container's turn nobody else computes on the card, so that is their own time.
 *
 * Marks are recorded only by the thread that launches, right beside its launch: no other thread ever uses the application's
 * stream. A stream that captures gets none. */
#include "pace.h"
#include "pool.h"

#include "clock.h"

#define LANES 128
#define MARKS 16       /* batches of a lane in flight */
#define BATCH_NS 1000000ull
#define BATCH_LAUNCHES 64
#define BESIDE_NS 100000ull /* of a kernel, from which on a batch of its own is worth its marks */
#define MOST_AT_ONCE 32 /* kernels that a card runs side by side */
#define KINDS 8        /* different kernels of a batch that are told apart */

struct batch {
    CUevent from, to;
    uint64_t ns;
    uint32_t launches, kinds, of_kind[KINDS];
    struct fr_guess *guess[KINDS];
    bool gap;    /* the stream ran dry in it: its length says nothing */
    bool single; /* began on a dry stream: ends with its first launch, before it can */
};

struct fr_lane {
    CUcontext context, events_of; /* the context in which its marks were made */
    uintptr_t stream; /* handle; a thread's own stream: its number */
    struct fr_pace *pace;
    CUstream handle;
    _Atomic uint32_t used, busy; /* busy: a thread works with its marks */
    uint32_t first, count;       /* batches[first ...]: in flight; the last may be open */
    bool open;
    struct batch batches[MARKS];
};

static FR_LARGE struct last { /* the mark that was reached last, of a card */
    _Atomic uint32_t busy;
    CUevent event;
    CUcontext context;
    struct fr_lane *_Atomic lane; /* of the launch before */
} lasts[FR_MAX_CARDS];

static struct fr_lock lanes_lock;
static FR_LARGE struct fr_lane lanes[LANES];
static uint32_t lanes_era;
static uint32_t victim;
static __thread uint32_t thread_number;

static uint32_t number_of_thread(void)
{
    static _Atomic uint32_t next = 1;
    if (!thread_number) thread_number = atomic_fetch_add(&next, 1);
    return thread_number;
}

static bool idle(struct fr_lane *l) { return !l->count && !atomic_load(&l->busy); }

/* With the lock: the lane of this stream, else an unused one, else one with nothing in flight. */
static struct fr_lane *place(CUcontext context, uintptr_t stream)
{
    struct fr_lane *room = NULL;
    for (uint32_t i = 0; i < LANES; i++) {
        struct fr_lane *l = &lanes[i];
        if (l->used && l->context == context && l->stream == stream) return l;
        if (!l->used && !room) room = l;
    }
    for (uint32_t i = 0; i < LANES && !room; i++, victim++)
        if (idle(&lanes[victim % LANES])) room = &lanes[victim++ % LANES];
    if (!room) return &lanes[stream / 16 % LANES]; /* more streams at work than lanes: two share one, its marks say less */
    room->context = context;
    room->stream = stream;
    room->used = 1;
    return room;
}

struct fr_lane *fr_lane_of(struct fr_pace *pace, const struct fr_work *w)
{
    CUcontext context = NULL;
    CUstream handle = w->per_thread && !w->stream ? CU_STREAM_PER_THREAD : w->stream;
    if (REAL(cuCtxGetCurrent)(&context) || !context || fr_capturing(handle)) return NULL;
    bool own = handle == CU_STREAM_PER_THREAD;
    fr_lock(&lanes_lock);
    uint32_t era = atomic_load(&fr_era);
    if (unlikely(lanes_era != era)) {
        for (int i = 0; i < LANES; i++) lanes[i] = (struct fr_lane){0};
        for (uint32_t i = 0; i < FR_MAX_CARDS; i++) lasts[i] = (struct last){0};
        lanes_era = era;
    }
    struct fr_lane *l = place(context, own ? (uintptr_t)number_of_thread() << 8 | 2 : (uintptr_t)handle);
    l->pace = pace;
    l->handle = handle;
    fr_unlock(&lanes_lock);
    return l;
}

bool fr_lane_is_free(const struct fr_lane *l) { return !l->count; }
bool fr_lane_is_full(const struct fr_lane *l) { return l->count == MARKS && !l->open; }

/* ---- marks ---- */

static struct batch *at(struct fr_lane *l, uint32_t i) { return &l->batches[(l->first + i) % MARKS]; }

/* One thread at a time works with a lane's marks; another goes without, which costs precision only. */
static bool take(struct fr_lane *l)
{
    uint32_t nobody = 0;
    return atomic_compare_exchange_strong(&l->busy, &nobody, 1);
}

static void let_go(struct fr_lane *l) { atomic_store(&l->busy, 0); }

static void done(struct fr_pace *p, uint64_t ns)
{
    uint64_t was = atomic_load(&p->in_flight);
    while (!atomic_compare_exchange_weak(&p->in_flight, &was, was > ns ? was - ns : 0)) {}
}

static void learn(const struct batch *b, uint64_t measured)
{
    if (b->gap || !b->kinds) return;
    if (b->kinds == 1) return fr_guess_learn(b->guess[0], 1, measured / b->of_kind[0] + 1);
    double ratio = (double)measured / (double)(b->ns ? b->ns : 1);
    for (uint32_t i = 0; i < b->kinds && i < KINDS; i++) fr_guess_learn(b->guess[i], ratio, 0);
}

static void count_gpu_time(struct fr_pace *p, uint64_t ns, uint32_t launches)
{
    struct fr_account *a = fr_account_of_pace(p);
    if (!a) return;
    atomic_fetch_add_explicit(&a->gpu_ns, ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&a->launches, launches, memory_order_relaxed);
}

/* Batches of several streams overlap: a batch took the card no longer than since the last one that was done. The mark of that
 * one is kept, and the batch gets the one kept before in exchange. */
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
    return ms;
}

/* The oldest batch is done. */
static void finish(struct fr_lane *l)
{
    struct batch *b = at(l, 0);
    float ms = 0;
    bool timed = !REAL(cuEventElapsedTime)(&ms, b->from, b->to) && ms >= 0;
    float own = ms / MOST_AT_ONCE;
    if (timed) ms = since_last(l, b, ms);
    if (ms < 0) ms = 0, b->gap = true; /* done before the last one: counted with it */
    done(l->pace, b->ns);
    if (timed) learn(b, (uint64_t)((double)(ms > own ? ms : own) * 1e6));
    count_gpu_time(l->pace, timed ? (uint64_t)((double)ms * 1e6) : b->ns, b->launches);
    l->first = (l->first + 1) % MARKS;
    l->count--;
}

static uint32_t closed(const struct fr_lane *l) { return l->count - l->open; }

static void collect(struct fr_lane *l)
{
    while (closed(l) && REAL(cuEventQuery)(at(l, 0)->to) != CUDA_ERROR_NOT_READY) finish(l);
}

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

static bool begin(struct fr_lane *l, bool dry)
{
    if (!l->count) own_events(l);
    if (l->count == MARKS) collect(l);
    if (l->count == MARKS) return false;
    struct batch *b = at(l, l->count);
    if (!event(&b->from) || !event(&b->to) || REAL(cuEventRecord)(b->from, l->handle)) return false;
    b->ns = b->launches = b->kinds = 0;
    b->gap = false;
    b->single = dry;
    l->count++;
    return l->open = true;
}

static void end(struct fr_lane *l)
{
    struct batch *b = at(l, l->count - 1);
    l->open = false;
    if (!REAL(cuEventRecord)(b->to, l->handle)) return;
    done(l->pace, b->ns); /* it cannot be watched */
    l->count--;
}

void fr_lane_before(struct fr_lane *l, bool dry)
{
    if (!take(l)) return;
    if (l->open && dry) {
        at(l, l->count - 1)->gap = true;
        end(l);
    }
    if (!l->open) begin(l, dry);
    let_go(l);
}

static void note(struct batch *b, struct fr_guess *guess, uint64_t ns)
{
    uint32_t i = 0;
    b->ns += ns;
    b->launches++;
    while (i < b->kinds && b->guess[i] != guess) i++;
    if (i == KINDS) return;
    if (i == b->kinds) b->guess[b->kinds++] = guess, b->of_kind[i] = 0;
    b->of_kind[i]++;
}

/* A launch has gone. Unknown kernels are a batch of their own: they are known the sooner. */
void fr_lane_after(struct fr_lane *l, struct fr_pace *pace, struct fr_guess *guess, uint64_t ns)
{
    if (!take(l)) return done(pace, ns);
    if (l->open) {
        struct batch *b = at(l, l->count - 1);
        note(b, guess, ns);
        bool unknown = !atomic_load_explicit(&guess->samples, memory_order_relaxed);
        bool beside = ns >= BESIDE_NS && atomic_exchange(&lasts[pace - fr_paces].lane, l) != l; /* streams in turn: what each takes is learned one by one */
        if (unknown || beside || b->single || b->ns >= BATCH_NS || b->launches >= BATCH_LAUNCHES) end(l);
    } else {
        done(pace, ns);
    }
    let_go(l);
}

/* ---- waiting ---- */

/* What is done of all streams at work on this card; how many there are. */
static uint32_t collect_all(struct fr_pace *pace)
{
    uint32_t at_work = 0;
    for (uint32_t i = 0; i < LANES; i++) {
        struct fr_lane *l = &lanes[i];
        if (!l->used || l->pace != pace || !l->count) continue;
        at_work++;
        if (!take(l)) continue;
        collect(l);
        let_go(l);
    }
    return at_work;
}

static void wait_for_mark(struct fr_lane *l)
{
    if (!take(l)) return;
    if (closed(l)) REAL(cuEventSynchronize)(at(l, 0)->to);
    collect(l);
    let_go(l);
}

/* One stream: until its oldest mark. Several: whichever is done first makes room. */
void fr_lane_wait(struct fr_lane *l, struct fr_pace *pace)
{
    uint64_t before = atomic_load(&pace->in_flight), some = before / 4;
    if (take(l)) {
        if (l->open) end(l);
        let_go(l);
    }
    uint32_t at_work = collect_all(pace);
    if (at_work <= 1) wait_for_mark(l);
    if (atomic_load(&pace->in_flight) < before) return;
    clock_sleep_until(clock_now() + (some < 50000 ? 50000 : some < 2000000 ? some : 2000000));
}

/* With the gate closed and nobody inside. What stands in an open batch has no mark behind it: then all of its context is
 * waited for, which a capture forbids; then what was predicted is. */
static void drain(struct fr_lane *l)
{
    CUcontext before = NULL;
    REAL(cuCtxGetCurrent)(&before);
    if (before != l->context && REAL(cuCtxSetCurrent)(l->context)) return;
    if (l->open) {
        struct batch *b = at(l, l->count - 1);
        if (!atomic_load(&fr_captures)) REAL(cuCtxSynchronize)();
        else clock_sleep_until(atomic_load(&l->pace->queue_end) + FR_IDLE_NS);
        done(l->pace, b->ns);
        count_gpu_time(l->pace, b->ns, b->launches);
        l->open = false;
        l->count--;
    }
    while (l->count) {
        REAL(cuEventSynchronize)(at(l, 0)->to);
        finish(l);
    }
}

void fr_lanes_drain(struct fr_pace *pace)
{
    for (uint32_t i = 0; i < LANES; i++) {
        struct fr_lane *l = &lanes[i];
        if (!l->used || l->pace != pace || !l->count) continue;
        while (!take(l)) clock_sleep_until(clock_now() + 20000);
        drain(l);
        let_go(l);
    }
    atomic_store(&pace->in_flight, 0);
}

/* Its events die with it. Work in flight is waited for by the driver. */
void fr_lanes_forget(CUcontext context)
{
    for (uint32_t i = 0; i < FR_MAX_CARDS; i++)
        if (lasts[i].context == context) lasts[i].event = NULL, lasts[i].context = NULL;
    for (uint32_t i = 0; i < LANES; i++) {
        struct fr_lane *l = &lanes[i];
        if (!l->used || l->context != context) continue;
        while (!take(l)) clock_sleep_until(clock_now() + 20000);
        for (; l->count; l->count--, l->first = (l->first + 1) % MARKS) done(l->pace, at(l, 0)->ns);
        for (uint32_t k = 0; k < MARKS; k++) l->batches[k] = (struct batch){0};
        l->open = false;
        l->used = 0;
        l->events_of = NULL;
        let_go(l);
    }
}
