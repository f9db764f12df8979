/* Waits for work in flight: in one stream, in all streams of a card, and when a context ends. */
#include "pacing/stream_wait.h"

#include "resolve/real.h"
#include "memory/api_memory.h"
#include "memory/streams.h"
#include "pacing/api_launch.h"
#include "pacing/blocked_streams.h"
#include "pacing/paced_card.h"
#include "pacing/stream_state.h"
#include "pacing/timing_events.h"

#include "clock.h"
#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SOON_NS 20000

bool fr_stream_state_poll(struct fr_stream_state *st)
{
    uint64_t before = atomic_load(&st->in_flight);
    if (!fr_stream_state_try_lock(st)) return false;
    fr_timing_collect(st);
    fr_stream_state_unlock(st);
    return atomic_load(&st->in_flight) < before;
}

void fr_stream_states_collect(void)
{
    for (struct fr_stream_state *st = NULL; (st = fr_stream_state_next(NULL, st));)
        if (st->count) fr_stream_state_poll(st);
}

/* Until the stream's oldest event is reached. Other threads may launch meanwhile. */
void fr_stream_state_wait(struct fr_stream_state *st)
{
    bool any = true;
    if (fr_stream_state_try_lock(st)) { /* else another thread works with it, maybe the lease client, which waits for all of its work */
        fr_timing_close(st);
        any = st->count;
        if (!any && atomic_load(&st->users) == 1) atomic_store(&st->in_flight, 0); /* no other thread launches, so nothing is in flight */
        fr_stream_state_unlock(st);
    }
    if (any) fr_blocked_wait(st);
    else clock_sleep_until(clock_now() + SOON_NS); /* the work in flight is another thread's launch that is on its way */
}

/* With the gate closed and no launch inside. */
void fr_stream_states_drain(struct fr_paced_card *card)
{
    fr_blocked_settle(card);
    for (struct fr_stream_state *st = NULL; (st = fr_stream_state_next(card, st));) {
        fr_stream_state_lock_alive(st, card);
        if (!st->count) atomic_store(&st->in_flight, 0);
        atomic_store(&st->queue_end, 0);
        fr_stream_state_unlock(st);
    }
    atomic_store(&card->queue_end, 0);
}

/* The lease client may wait for the stream (`waited_for`) until the program continues. Then it closes the batch itself. */
static void close_batch(struct fr_stream_state *st, uint32_t tries)
{
    CUcontext before = NULL;
    bool locked = fr_stream_state_try_lock(st);
    for (; !locked && !atomic_load(&st->waited_for) && tries--; locked = fr_stream_state_try_lock(st)) clock_sleep_until(clock_now() + SOON_NS);
    if (!locked) return;
    REAL(cuCtxGetCurrent)(&before);
    bool other = before != st->context;
    if (st->open && !(other && REAL(cuCtxSetCurrent)(st->context))) {
        fr_timing_close(st);
        if (other) REAL(cuCtxSetCurrent)(before);
    }
    fr_stream_state_unlock(st);
}

/* Closes the batch before the stream is destroyed, so that the lease client does not record an event in a destroyed stream. */
void fr_stream_states_close(CUstream stream)
{
    for (struct fr_stream_state *st = NULL; (st = fr_stream_state_next(NULL, st));)
        if (atomic_load(&st->handle) == stream) close_batch(st, UINT32_MAX), st->told = false;
}

/* Before a capture begins: during a capture only the thread that launches closes a batch. A launch that is on its way closes its own batch,
 * since it sees the capture. A thread that holds the lock for long may be waiting in the driver for this thread, so this gives up after
 * TRIES. A batch that stays open counts as running. */
#define TRIES 50
void fr_stream_states_close_all(void)
{
    for (struct fr_stream_state *st = NULL; (st = fr_stream_state_next(NULL, st));)
        if (atomic_load(&st->open) && atomic_load(&st->handle) != CU_STREAM_PER_THREAD) close_batch(st, TRIES);
}

/* A thread's own stream is told too, but its batches are closed already: they never stay open. */
void fr_stream_states_tell(CUcontext context)
{
    for (struct fr_stream_state *st = NULL; (st = fr_stream_state_next(NULL, st));) {
        if (context && atomic_load(&st->context) != context) continue;
        if (atomic_load(&st->open) && atomic_load(&st->handle) != CU_STREAM_PER_THREAD && !atomic_load(&fr_capture_count)) close_batch(st, TRIES);
        atomic_store(&st->told, true);
    }
}

/* Takes the lock when the lease client waits for none of the stream's events: it waits without the lock. */
static void lock_unwaited(struct fr_stream_state *st)
{
    for (fr_stream_state_lock(st); atomic_load(&st->waited_for); fr_stream_state_lock(st)) {
        fr_stream_state_unlock(st);
        clock_sleep_until(clock_now() + SOON_NS);
    }
}

static __thread uint64_t ending; /* bit set of the cards on which this thread ends a context with work in flight */

/* The driver may wait for that work. Until it has answered, no turn ends on that card. */
static void hold_turn(struct fr_paced_card *card)
{
    uint64_t bit = 1ull << (card - fr_paced_cards);
    if (ending & bit) return;
    ending |= bit;
    atomic_fetch_add(&card->inside, 1);
}

void fr_stream_states_forgotten(void)
{
    for (; ending; ending &= ending - 1) atomic_fetch_sub(&fr_paced_cards[__builtin_ctzll(ending)].inside, 1);
}

/* The context's events die with it. */
void fr_stream_states_forget(CUcontext context)
{
    fr_timing_forget_last(context);
    for (struct fr_stream_state *st = NULL; (st = fr_stream_state_next(NULL, st));) {
        if (st->context != context) continue;
        lock_unwaited(st);
        if (st->count) hold_turn(st->card);
        fr_timing_forget(st);
        st->used = 0;
        fr_stream_state_unlock(st);
    }
}
