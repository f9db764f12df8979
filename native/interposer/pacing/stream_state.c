/* The work in flight, per stream. A launch waits for its own stream only. The time of a kernel is learned beside the work of the other
 * streams. So all streams together are done when the longest one is, whether their kernels run side by side or one after the other. */
#include "pacing/stream_state.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "ledger/process.h"
#include "ledger/shared.h"
#include "memory/api_memory.h"
#include "memory/own_events.h"
#include "memory/streams.h"
#include "pacing/paced_card.h"

#include "clock.h"
#include "cuda_abi.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FEW_STATES 128      /* this many streams get a new state each; further ones reuse that of a stream with nothing in flight, if there is one */
#define STREAM_STATES 4096  /* most streams with work in flight: a launch into another stream waits until one of these is done */
#define HINTS 4096
#define TRIES 64
#define SOON_NS 20000

_Atomic uint32_t fr_blocked_by_host;

static struct fr_lock states_lock;
static FR_LARGE struct fr_stream_state states[STREAM_STATES];
static _Atomic uint32_t states_era;
static _Atomic uint32_t states_made; /* states beyond this were never used */
static uint32_t victim;
static FR_LARGE _Atomic uint16_t hints[HINTS]; /* index of the state that a stream with this hash had last */
static __thread uint32_t thread_number;

static uint32_t number_of_thread(void)
{
    static _Atomic uint32_t next = 1;
    if (!thread_number) thread_number = atomic_fetch_add(&next, 1);
    return thread_number;
}

/* Only one thread at a time works with a stream's events. The driver may keep that thread waiting, so the others do not spin for long. */
static void wait_for_lock(unsigned turn)
{
    if (turn < TRIES) sched_yield();
    else clock_sleep_until(clock_now() + SOON_NS);
}

void fr_stream_state_lock_patiently(struct fr_stream_state *st)
{
    for (unsigned turn = 0; !fr_stream_state_try_lock(st); turn++) wait_for_lock(turn);
}

/* Another thread may hold the lock for long, in a call to the driver that waits for the program. */
void fr_stream_state_lock_alive(struct fr_stream_state *st, struct fr_paced_card *card)
{
    for (unsigned turn = 0; !fr_stream_state_try_lock(st); turn++) wait_for_lock(turn), fr_lease_client_is_alive(card);
}

/* With the lock. A state with nothing in flight may be given to another stream, preferably if the program has put no wait into its stream,
 * since that fact would be lost. First the state is marked as one whose card has to be looked up. A thread that becomes its user by a hint
 * at that moment finds the mark and takes the lock. */
static bool take_over(struct fr_stream_state *st, bool told)
{
    uint32_t before = atomic_load(&st->looked_up_at);
    if (st->count || atomic_load(&st->busy) || atomic_load(&st->users) || atomic_load(&st->waited_for) || st->told > told) return false;
    atomic_store(&st->looked_up_at, FR_NEVER);
    if (likely(!atomic_load(&st->users))) return true;
    atomic_store(&st->looked_up_at, before);
    return false;
}

static struct fr_stream_state *idle_state(bool told)
{
    uint32_t made = atomic_load(&states_made);
    for (uint32_t i = 0; i < made; i++, victim++)
        if (take_over(&states[victim % made], told)) return &states[victim++ % made];
    return NULL;
}

static struct fr_stream_state *another_state(bool collected)
{
    uint32_t made = atomic_load(&states_made);
    struct fr_stream_state *room = made < FEW_STATES ? NULL : idle_state(false);
    if (room || (made >= FEW_STATES && !collected)) return room;
    if (made == STREAM_STATES) return idle_state(true);
    atomic_store(&states_made, made + 1);
    return &states[made];
}

/* With the lock. Returns the state of this stream, else an unused one, else one with nothing in flight, else a new one. NULL: finished work
 * has to be collected first, or, if it was collected, all states are taken. Two streams never share a state: their work in flight could not
 * be told apart. */
static struct fr_stream_state *place(CUcontext context, uintptr_t stream, bool collected)
{
    struct fr_stream_state *room = NULL;
    uint32_t made = atomic_load(&states_made);
    for (uint32_t i = 0; i < made; i++) {
        struct fr_stream_state *st = &states[i];
        if (st->used && st->context == context && st->stream == stream) return st;
        if (!st->used && !room) room = st;
    }
    if (!room && !(room = another_state(collected))) return NULL;
    room->context = context;
    room->stream = stream;
    room->blocked = room->let = 0;
    room->told = false;
    room->looked_up_at = FR_NEVER;
    room->used = 1; /* last, when the other fields are set */
    return room;
}

struct fr_stream_state *fr_stream_state_next(const struct fr_paced_card *card, struct fr_stream_state *after)
{
    for (struct fr_stream_state *st = after ? after + 1 : states; st < states + atomic_load(&states_made); st++)
        if (atomic_load(&st->used) && (!card || st->card == card)) return st;
    return NULL;
}

static void start_over(uint32_t era)
{
    for (uint32_t i = 0; i < atomic_load(&states_made); i++) states[i] = (struct fr_stream_state){0};
    atomic_store(&states_made, 0);
    fr_own_events_forget();
    atomic_store(&states_era, era);
}

static uintptr_t name_of(CUstream handle)
{
    return handle == CU_STREAM_PER_THREAD ? (uintptr_t)number_of_thread() << 8 | 2 : (uintptr_t)handle;
}

void (*_Atomic fr_collect_states)(void);

static void collect_states(bool again)
{
    void (*collect)(void) = atomic_load(&fr_collect_states);
    if (again) clock_sleep_until(clock_now() + SOON_NS);
    if (collect) collect();
}

static struct fr_stream_state *enter(CUcontext context, CUstream handle)
{
    for (bool collected = false;; collected = true) {
        fr_lock(&states_lock);
        uint32_t era = atomic_load(&fr_era);
        if (unlikely(atomic_load_explicit(&states_era, memory_order_relaxed) != era)) start_over(era);
        struct fr_stream_state *st = place(context, name_of(handle), collected);
        if (likely(st != NULL)) return st;
        fr_unlock(&states_lock);
        collect_states(collected);
    }
}

static _Atomic uint16_t *hint_of(CUcontext context, CUstream handle) { return &hints[((uintptr_t)context + (uintptr_t)handle) * 0x9E3779B97F4A7C15ull >> 52]; }

/* With the lock. The state stays with this stream until fr_stream_state_done. */
static struct fr_stream_state *use(struct fr_stream_state *st, CUstream handle)
{
    _Atomic uint16_t *hint = hint_of(st->context, handle);
    uint16_t at = (uint16_t)(st - states);
    if (unlikely(atomic_load_explicit(&st->handle, memory_order_relaxed) != handle)) st->handle = handle;
    if (unlikely(atomic_load_explicit(hint, memory_order_relaxed) != at)) atomic_store_explicit(hint, at, memory_order_relaxed);
    atomic_fetch_add(&st->users, 1);
    fr_unlock(&states_lock);
    return st;
}

/* Without the lock. The state named by the hint is first given a user: from then on place() gives it to no other stream. NULL: the state
 * belongs to another stream, or its card has to be looked up. */
static struct fr_stream_state *use_hint(const struct fr_stream_place *place)
{
    struct fr_stream_state *st = &states[atomic_load_explicit(hint_of(place->context, place->handle), memory_order_relaxed)];
    if (unlikely(atomic_load_explicit(&states_era, memory_order_acquire) != atomic_load_explicit(&fr_era, memory_order_relaxed))) return NULL;
    atomic_fetch_add(&st->users, 1);
    bool same = atomic_load(&st->used) && atomic_load(&st->looked_up_at) == place->sequence &&
                atomic_load_explicit(&st->context, memory_order_relaxed) == place->context && atomic_load_explicit(&st->handle, memory_order_relaxed) == place->handle;
    if (likely(same && (place->handle != CU_STREAM_PER_THREAD || atomic_load_explicit(&st->stream, memory_order_relaxed) == name_of(place->handle)))) return st;
    atomic_fetch_sub(&st->users, 1);
    return NULL;
}

static CUstream handle_of(const struct fr_work *w) { return w->per_thread && !w->stream ? CU_STREAM_PER_THREAD : w->stream; }

struct fr_stream_state *fr_stream_state_use(struct fr_paced_card *card, const struct fr_work *w)
{
    CUcontext context = NULL;
    CUstream handle = handle_of(w);
    if (REAL(cuCtxGetCurrent)(&context) || !context || fr_stream_is_capturing(handle)) return NULL;
    struct fr_stream_state *st = enter(context, handle);
    st->card = card;
    return use(st, handle);
}

/* fr_process_join notices a forked child, in which all states are void. */
struct fr_stream_state *fr_stream_state_known(const struct fr_work *w, struct fr_stream_place *place)
{
    *place = (struct fr_stream_place){.handle = handle_of(w)};
    CUcontext context = NULL;
    if (!fr_process_join() || REAL(cuCtxGetCurrent)(&context) || !context || fr_stream_is_capturing(place->handle)) return NULL;
    place->context = context;
    place->sequence = atomic_load_explicit(&fr_shared.limits->sequence, memory_order_acquire);
    if (unlikely(place->sequence & 1)) return NULL; /* the page is being written: no card was looked up at an odd sequence */
    struct fr_stream_state *st = use_hint(place);
    if (likely(st != NULL)) return st;
    st = enter(context, place->handle);
    if (likely(atomic_load_explicit(&st->looked_up_at, memory_order_relaxed) == place->sequence && st->context == context)) return use(st, place->handle);
    fr_unlock(&states_lock);
    return NULL;
}

struct fr_stream_state *fr_stream_state_found(const struct fr_stream_place *place, struct fr_paced_card *card)
{
    struct fr_stream_state *st = enter(place->context, place->handle);
    st->card = card;
    st->handle = place->handle; /* before the next line, which would make a hint of the previous stream valid again */
    st->looked_up_at = st->context == place->context && !(place->sequence & 1) ? place->sequence : FR_NEVER;
    return use(st, place->handle);
}

void fr_stream_state_done(struct fr_stream_state *st) { atomic_fetch_sub(&st->users, 1); }

struct fr_backlog fr_stream_state_backlog(const struct fr_stream_state *st, uint64_t now)
{
    uint64_t in = atomic_load(&st->in_flight), end = atomic_load(&st->queue_end), left = end > now ? end - now : 0;
    return (struct fr_backlog){in, in < left ? in : left, st->count == BATCHES && !st->open};
}

bool fr_stream_state_is_dry(const struct fr_stream_state *st, uint64_t now) { return now > atomic_load(&st->queue_end) + FR_DRY_NS; }

void fr_stream_state_add(struct fr_stream_state *st, uint64_t ns)
{
    atomic_fetch_add(&st->in_flight, ns);
}

static void less(_Atomic uint64_t *what, uint64_t ns)
{
    uint64_t was = atomic_load(what);
    while (!atomic_compare_exchange_weak(what, &was, was > ns ? was - ns : 0)) {}
}

void fr_stream_state_completed(struct fr_stream_state *st, uint64_t ns)
{
    less(&st->in_flight, ns);
}

bool fr_stream_states_in_flight(const struct fr_paced_card *card)
{
    for (struct fr_stream_state *st = NULL; (st = fr_stream_state_next(card, st));)
        if (atomic_load(&st->in_flight) && atomic_load(&st->blocked) != FR_BLOCKED) return true;
    return false;
}

static bool is_among(const CUcontext *known, uint32_t n, CUcontext context)
{
    while (n--)
        if (known[n] == context) return true;
    return false;
}

uint32_t fr_stream_states_contexts(const struct fr_paced_card *card)
{
    CUcontext known[FR_MOST_CONTEXTS];
    uint32_t n = 0;
    for (struct fr_stream_state *st = NULL; n < FR_MOST_CONTEXTS && (st = fr_stream_state_next(card, st));) {
        CUcontext context = atomic_load(&st->context);
        bool works = atomic_load(&st->in_flight) || atomic_load(&st->count);
        if (works && !is_among(known, n, context)) known[n++] = context;
    }
    return n;
}

static void raise_to(_Atomic uint64_t *what, uint64_t value)
{
    uint64_t was = atomic_load(what);
    while (was < value && !atomic_compare_exchange_weak(what, &was, value)) {}
}

void fr_stream_state_queue(struct fr_stream_state *st, uint64_t now, uint64_t ns)
{
    uint64_t queue = atomic_load(&st->queue_end), alone = atomic_load_explicit(&st->card->alone_at, memory_order_relaxed);
    if (unlikely(now < alone)) now = alone; /* it begins after the rest of the turn before */
    uint64_t end = (queue > now ? queue : now) + ns;
    if (unlikely(atomic_load(&st->blocked))) return; /* the end is unknown */
    atomic_store_explicit(&st->queue_end, end, memory_order_relaxed);
    raise_to(&st->card->queue_end, end);
}
