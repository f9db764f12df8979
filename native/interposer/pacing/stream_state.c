/* What is in flight, stream by stream: a lane is a stream that this process uses. Launches wait for their own lane only: how long
 * a kernel takes is learned beside what runs in the other streams, so all lanes together are done when the longest of them is,
 * whether their kernels run side by side or one after the other. */
#include "stream_state.h"
#include "pool.h"
#include "shared.h"

#include "clock.h"

#include <sched.h>

#define LANES 128
#define TRIES 64
#define SOON_NS 20000

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

/* One thread at a time works with a lane's marks. Who does may be held up by the driver: the others do not spin for long. */
void fr_lane_take_patiently(struct fr_lane *l)
{
    for (unsigned turn = 0; !fr_lane_try(l); turn++) {
        if (turn < TRIES) sched_yield();
        else clock_sleep_until(clock_now() + SOON_NS);
    }
}

static bool idle(struct fr_lane *l) { return !l->count && !atomic_load(&l->busy) && !atomic_load(&l->users); }

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
    room->held = room->let = 0;
    room->told = false;
    room->paced_at = FR_NEVER;
    return room;
}

struct fr_lane *fr_lane_next(const struct fr_pace *pace, struct fr_lane *after)
{
    for (struct fr_lane *l = after ? after + 1 : lanes; l < lanes + LANES; l++)
        if (atomic_load(&l->used) && l->pace == pace) return l;
    return NULL;
}

static void start_over(uint32_t era)
{
    for (int i = 0; i < LANES; i++) lanes[i] = (struct fr_lane){0};
    fr_marks_forget_last(NULL);
    lanes_era = era;
}

static uintptr_t name_of(CUstream handle)
{
    return handle == CU_STREAM_PER_THREAD ? (uintptr_t)number_of_thread() << 8 | 2 : (uintptr_t)handle;
}

static struct fr_lane *enter(CUcontext context, CUstream handle)
{
    fr_lock(&lanes_lock);
    uint32_t era = atomic_load(&fr_era);
    if (unlikely(lanes_era != era)) start_over(era);
    return place(context, name_of(handle));
}

/* With the lock. It stays this stream's until fr_lane_leave. */
static struct fr_lane *use(struct fr_lane *l, CUstream handle)
{
    if (unlikely(atomic_load_explicit(&l->handle, memory_order_relaxed) != handle)) l->handle = handle;
    atomic_fetch_add(&l->users, 1);
    fr_unlock(&lanes_lock);
    return l;
}

static struct fr_lane *look_up(CUcontext context, CUstream handle, uint32_t sequence)
{
    struct fr_pace *pace = fr_pace_here();
    if (!pace) return NULL;
    fr_pacer_start((int)(pace - fr_paces));
    struct fr_lane *l = enter(context, handle);
    l->pace = pace;
    l->paced_at = l->context == context && !(sequence & 1) ? sequence : FR_NEVER;
    return use(l, handle);
}

/* A context stays on its card for life, and its lanes are forgotten with it (fr_lanes_forget): so what was found for a lane holds
 * until the limits change. Where contexts may come and go unseen, it is looked at again with every batch (fr_lane_before). fr_joined
 * notices a forked child, whose lanes are void. */
struct fr_lane *fr_lane_of(const struct fr_work *w)
{
    CUcontext context = NULL;
    CUstream handle = w->per_thread && !w->stream ? CU_STREAM_PER_THREAD : w->stream;
    if (!fr_joined() || REAL(cuCtxGetCurrent)(&context) || !context || fr_capturing(handle)) return NULL;
    uint32_t sequence = atomic_load_explicit(&fr_shared.limits->sequence, memory_order_acquire);
    struct fr_lane *l = enter(context, handle);
    if (likely(atomic_load_explicit(&l->paced_at, memory_order_relaxed) == sequence && l->context == context)) return use(l, handle);
    fr_unlock(&lanes_lock);
    return look_up(context, handle, sequence);
}

void fr_lane_leave(struct fr_lane *l) { atomic_fetch_sub(&l->users, 1); }

struct fr_ahead fr_lane_ahead(const struct fr_lane *l, uint64_t now)
{
    uint64_t in = atomic_load(&l->in_flight), end = atomic_load(&l->queue_end), left = end > now ? end - now : 0;
    return (struct fr_ahead){in, in < left ? in : left, l->count == MARKS && !l->open};
}

bool fr_lane_is_dry(const struct fr_lane *l, uint64_t now) { return now > atomic_load(&l->queue_end) + FR_DRY_NS; }

void fr_lane_add(struct fr_lane *l, uint64_t ns)
{
    atomic_fetch_add(&l->in_flight, ns);
}

bool fr_lanes_in_flight(const struct fr_pace *pace)
{
    for (struct fr_lane *l = NULL; (l = fr_lane_next(pace, l));)
        if (atomic_load(&l->in_flight) && atomic_load(&l->held) != FR_HELD_BACK) return true;
    return false;
}

static void raise_to(_Atomic uint64_t *what, uint64_t value)
{
    uint64_t was = atomic_load(what);
    while (was < value && !atomic_compare_exchange_weak(what, &was, value)) {}
}

void fr_lane_queue(struct fr_lane *l, uint64_t now, uint64_t ns)
{
    uint64_t queue = atomic_load(&l->queue_end), end = (queue > now ? queue : now) + ns;
    if (unlikely(atomic_load(&l->held))) return; /* when, is not known */
    atomic_store_explicit(&l->queue_end, end, memory_order_relaxed);
    raise_to(&l->pace->queue_end, end);
}

/* ---- waiting ---- */

bool fr_lane_look(struct fr_lane *l)
{
    uint64_t before = atomic_load(&l->in_flight);
    if (!fr_lane_try(l)) return false;
    fr_marks_collect(l);
    fr_lane_give(l);
    return atomic_load(&l->in_flight) < before;
}

/* Until its oldest mark is reached; others may launch meanwhile. */
void fr_lane_wait(struct fr_lane *l)
{
    bool any = true;
    if (fr_lane_try(l)) { /* else somebody is at it, maybe the pacer, who waits for all of it */
        fr_marks_close(l);
        any = fr_marks_oldest(l);
        if (!any && atomic_load(&l->users) == 1) atomic_store(&l->in_flight, 0); /* nobody else launches: nothing is */
        fr_lane_give(l);
    }
    if (any) fr_held_wait(l);
    else clock_sleep_until(clock_now() + SOON_NS); /* of another thread, just on its way */
}

/* With the gate closed and nobody inside. */
void fr_lanes_drain(struct fr_pace *pace)
{
    fr_held_settle(pace);
    for (struct fr_lane *l = NULL; (l = fr_lane_next(pace, l));) {
        fr_lane_take(l);
        if (!l->count) atomic_store(&l->in_flight, 0);
        atomic_store(&l->queue_end, 0);
        fr_lane_give(l);
    }
    atomic_store(&pace->queue_end, 0);
}

/* Its events die with it. Work in flight is waited for by the driver. */
void fr_lanes_forget(CUcontext context)
{
    fr_marks_forget_last(context);
    for (uint32_t i = 0; i < LANES; i++) {
        struct fr_lane *l = &lanes[i];
        if (!l->used || l->context != context) continue;
        fr_lane_take(l);
        fr_marks_forget(l);
        l->used = 0;
        fr_lane_give(l);
    }
}
