/* Streams that the program itself holds back: by a word that it writes later, by a callback that waits, by an event that comes
 * after one of those. A launch into such a stream must not wait for what is in flight there: the thread that waits may be the
 * one that is to let the stream go on.
 *
 *      held back   the oldest batch stands behind a wait of the program's and has not begun, nothing of ours is on the card,
 *                  and that for longer than was predicted and HELD_NS more. (Without such a wait it has only not got its turn
 *                  on the card, beside other processes.) It uses nothing of the card, so any number may go behind it, a turn ends without it, and
 *                  when it is let go its work asks for a turn
 *      held up     the oldest batch has begun and does not end, for STUCK_NS: a kernel that waits for the program, or one that
 *                  takes so long. Nobody can tell, so one launch goes, then two, then four ...
 *
 * Where a program makes a stream wait, the open batch is closed, so that what stands before it is not taken for held up. */
#include "stream_state.h"
#include "pool.h"

#include "clock.h"

#define HELD_NS 50000000ull
#define STUCK_NS 6000000000ull
#define STUCK_AGAIN_NS 2000000000ull
#define LOOK_NS 5000000ull     /* between looks at what is on the card */
#define NAP_NS 20000ull        /* the shortest; later a part of what was waited already */
#define LONG_NAP_NS 1000000ull

_Atomic uint32_t fr_held_by_host;

/* ---- is anything of ours on the card? ---- */

static bool at_work(struct fr_lane *l)
{
    if (!fr_lane_try(l)) return true; /* somebody is at it */
    fr_marks_collect(l);
    bool begun = fr_marks_begun(l);
    fr_lane_give(l);
    return begun;
}

static bool any_at_work(const struct fr_pace *pace)
{
    for (struct fr_lane *l = NULL; (l = fr_lane_next(pace, l));)
        if (at_work(l) && atomic_load(&l->held) != FR_HELD_UP) return true;
    return false;
}

static bool is_behind(struct fr_lane *l)
{
    if (!fr_lane_try(l)) return false;
    bool behind = fr_marks_behind(l);
    fr_lane_give(l);
    return behind;
}

/* ---- waiting for one stream ---- */

struct vigil {
    uint64_t began, known; /* when; what was predicted then of all streams: this one may wait for another */
    uint64_t quiet, looked; /* nothing of ours was on the card since; last look */
};

static void let_go(struct fr_lane *l, uint32_t why)
{
    uint32_t more = atomic_load(&l->let) ? 2 * atomic_load(&l->let) : 1;
    atomic_store(&l->let, more);
    atomic_store(&l->let_go, more);
    atomic_store(&l->held, why);
}

static bool is_held(struct fr_lane *l, struct vigil *v, uint64_t now)
{
    if (now >= v->looked + LOOK_NS) {
        v->looked = now;
        if (any_at_work(l->pace)) v->quiet = now;
    }
    uint64_t stuck = atomic_load(&l->let) ? STUCK_AGAIN_NS : STUCK_NS;
    if (now > v->quiet + HELD_NS && now > v->began + 4 * v->known && is_behind(l)) return let_go(l, FR_HELD_BACK), true;
    if (now > v->began + stuck + 4 * v->known) return let_go(l, FR_HELD_UP), true;
    return false;
}

/* Not later than by a part of what was waited, nor when it should be done; where lengths are known, after half of what is left. */
static uint64_t next_look(const struct vigil *v, uint64_t due, bool known, uint64_t now)
{
    uint64_t waited = now - v->began, nap = waited / 64;
    if (nap < NAP_NS) nap = NAP_NS;
    if (known && due > now && nap < (due - now) / 2) nap = (due - now) / 2;
    if (due > now && nap > due - now) nap = due - now;
    return now + (nap < LONG_NAP_NS ? nap : LONG_NAP_NS);
}

void fr_held_wait(struct fr_lane *l)
{
    uint64_t now = clock_now(), end = atomic_load(&l->pace->queue_end), due = 0;
    uint32_t finished = atomic_load(&l->finished);
    struct vigil v = {now, end > now ? end - now : 0, now, now};
    for (; atomic_load(&l->finished) == finished && atomic_load(&l->held) != FR_HELD_BACK; now = clock_now()) {
        if (is_held(l, &v, now)) return;
        if (fr_lane_try(l)) {
            fr_marks_collect(l);
            due = fr_marks_due(l);
            bool none = !l->count;
            fr_lane_give(l);
            if (none) return;
        }
        if (atomic_load(&l->finished) == finished) clock_sleep_until(next_look(&v, due, !atomic_load(&l->pace->guessed), now));
    }
}

static bool take_one(_Atomic uint32_t *left)
{
    uint32_t n = atomic_load(left);
    while (n && !atomic_compare_exchange_weak(left, &n, n - 1)) {}
    return n;
}

bool fr_held_may_go(struct fr_lane *l)
{
    uint32_t held = atomic_load_explicit(&l->held, memory_order_relaxed);
    if (likely(!held)) return false;
    if (held == FR_HELD_UP) return take_one(&l->let_go);
    return !at_work(l) && atomic_load(&l->held);
}

/* ---- the end of a turn ---- */

/* True: something was done. */
static bool drain(struct fr_lane *l)
{
    fr_lane_take(l);
    uint32_t before = l->count;
    if (l->count) fr_marks_drain(l);
    bool less = l->count < before;
    fr_lane_give(l);
    return less;
}

/* Has any that is not known to be held still to begin? */
static bool any_to_come(const struct fr_pace *pace)
{
    for (struct fr_lane *l = NULL; (l = fr_lane_next(pace, l));)
        if (l->count && atomic_load(&l->held) != FR_HELD_BACK) return true;
    return false;
}

void fr_held_settle(struct fr_pace *pace)
{
    uint64_t quiet = clock_now();
    for (;;) {
        bool less = false;
        for (struct fr_lane *l = NULL; (l = fr_lane_next(pace, l));) less |= drain(l);
        if (!any_to_come(pace)) return;
        if (less) quiet = clock_now();
        else if (clock_now() > quiet + HELD_NS) break;
        else clock_sleep_until(clock_now() + (clock_now() - quiet) / 32 + NAP_NS);
    }
    for (struct fr_lane *l = NULL; (l = fr_lane_next(pace, l));)
        if (l->count && !atomic_load(&l->held)) let_go(l, FR_HELD_BACK);
}

bool fr_held_any(const struct fr_pace *pace)
{
    for (struct fr_lane *l = NULL; (l = fr_lane_next(pace, l));)
        if (atomic_load(&l->held) == FR_HELD_BACK) return true;
    return false;
}

bool fr_held_released(struct fr_pace *pace)
{
    bool any = false;
    for (struct fr_lane *l = NULL; (l = fr_lane_next(pace, l));) {
        if (atomic_load(&l->held) != FR_HELD_BACK || !at_work(l)) continue;
        atomic_store(&l->held, 0);
        fr_lane_queue(l, clock_now(), atomic_load(&l->in_flight));
        any = true;
    }
    return any;
}

/* ---- where a program makes a stream wait ---- */

static void cut(struct fr_pace *pace, CUstream s, bool own)
{
    struct fr_lane *l = fr_lane_of(pace, &(struct fr_work){.stream = s, .per_thread = own});
    if (!l) return;
    fr_lane_take(l);
    fr_marks_close(l);
    l->told = true;
    fr_lane_give(l);
    fr_lane_leave(l);
}

/* What is launched into the stream NULL later waits for this one. */
static void cut_here(CUstream s, bool own, bool by_host)
{
    struct fr_pace *pace = fr_pace_here();
    if (by_host) atomic_store(&fr_held_by_host, 1);
    if (!pace) return;
    cut(pace, s, own);
    if ((s || own) && !atomic_load(&fr_captures)) cut(pace, NULL, false);
}

#define WAITS(name, own, by_host, parameters, arguments) \
    HOOK CUresult name parameters                        \
    {                                                    \
        if (!fr_unpaced()) cut_here(s, own, by_host);    \
        return REAL(name) arguments;                     \
    }
#define BOTH(name, by_host, parameters, arguments)  \
    WAITS(name, false, by_host, parameters, arguments) \
    WAITS(name##_ptsz, true, by_host, parameters, arguments)

BOTH(cuStreamWaitEvent, false, (CUstream s, CUevent e, unsigned flags), (s, e, flags))
BOTH(cuLaunchHostFunc, true, (CUstream s, CUhostFn f, void *data), (s, f, data))
BOTH(cuStreamAddCallback, true, (CUstream s, CUstreamCallback f, void *data, unsigned flags), (s, f, data, flags))
BOTH(cuStreamWaitValue32, true, (CUstream s, CUdeviceptr at, uint32_t v, unsigned flags), (s, at, v, flags))
BOTH(cuStreamWaitValue32_v2, true, (CUstream s, CUdeviceptr at, uint32_t v, unsigned flags), (s, at, v, flags))
BOTH(cuStreamWaitValue64, true, (CUstream s, CUdeviceptr at, uint64_t v, unsigned flags), (s, at, v, flags))
BOTH(cuStreamWaitValue64_v2, true, (CUstream s, CUdeviceptr at, uint64_t v, unsigned flags), (s, at, v, flags))
BOTH(cuStreamBatchMemOp, true, (CUstream s, unsigned n, void *operations, unsigned flags), (s, n, operations, flags))
BOTH(cuStreamBatchMemOp_v2, true, (CUstream s, unsigned n, void *operations, unsigned flags), (s, n, operations, flags))
