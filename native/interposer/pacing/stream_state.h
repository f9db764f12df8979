/* What this process has in flight in one stream. */
#ifndef FRACTILE_STREAM_STATE_H
#define FRACTILE_STREAM_STATE_H

#include "pacing.h"

#define BATCHES 16 /* batches of a stream in flight */
#define KERNELS 8  /* different kernels of a batch */

struct batch {
    CUevent from, to;
    uint64_t ns;
    uint32_t launches, kernels, of_kernel[KERNELS];
    struct fr_prediction *prediction[KERNELS];
    bool gap;    /* the stream ran dry in it: its length says nothing */
    bool shared; /* others had the card too meanwhile */
    bool behind; /* a wait that the program put into the stream */
    bool single; /* began on a dry stream: ends with its first launch, before it can */
};

struct fr_stream_state {
    CUcontext context, events_of; /* the context in which its events were made */
    uintptr_t stream;             /* handle; a thread's own stream: its number */
    struct fr_paced_card *_Atomic card;
    _Atomic(CUstream) handle;
    _Atomic uint64_t in_flight, queue_end; /* predicted ns not known to be done; when they should be */
    _Atomic uint32_t used, busy, users;    /* busy: a thread works with its events; users: threads that launch or wait */
    _Atomic uint32_t blocked, let_go, let;    /* see blocked_streams.c; 0, or why its launches do not wait; so many of them may go, of so many */
    _Atomic uint32_t finished;             /* batches, ever */
    bool told;                             /* to wait, since the last batch */
    uint32_t first;
    _Atomic uint32_t count;                /* batches[first ...]: in flight; the last may be open */
    _Atomic bool open;
    struct batch batches[BATCHES];
};

enum { FR_BLOCKED = 1, FR_STALLED }; /* before its oldest batch; in it */

/* timing_events.c: with the stream's state locked */
void fr_timing_collect(struct fr_stream_state *st);     /* what is done */
bool fr_timing_has_begun(struct fr_stream_state *st);       /* the oldest batch is on the card */
bool fr_timing_may_be_blocked(struct fr_stream_state *st);      /* it may be waiting for the program, and not for its turn on the card */
void fr_timing_drain(struct fr_stream_state *st);       /* waits for all that has begun */
uint64_t fr_timing_due(struct fr_stream_state *st);     /* when the oldest should be done */
void fr_timing_close(struct fr_stream_state *st);       /* a event behind what was launched last */
CUevent fr_timing_oldest(struct fr_stream_state *st);   /* NULL: none */
void fr_timing_forget(struct fr_stream_state *st);      /* they died with their context */
void fr_timing_forget_last(CUcontext context); /* NULL: of all */

/* stream_state.c */
struct fr_stream_state *fr_stream_state_next(const struct fr_paced_card *card, struct fr_stream_state *after); /* of those in use; the first after NULL */

/* blocked_streams.c */
void fr_blocked_wait(struct fr_stream_state *st); /* until its oldest batch is done, or it is known to be held */

static inline bool fr_stream_state_try_lock(struct fr_stream_state *st)
{
    uint32_t nobody = 0;
    return atomic_compare_exchange_strong(&st->busy, &nobody, 1);
}
void fr_stream_state_lock(struct fr_stream_state *st);
static inline void fr_stream_state_unlock(struct fr_stream_state *st) { atomic_store(&st->busy, 0); }

#endif
