/* A lane: what this process has in flight in one stream. */
#ifndef FRACTILE_LANES_H
#define FRACTILE_LANES_H

#include "pace.h"

#define MARKS 16 /* batches of a lane in flight */
#define KINDS 8  /* different kernels of a batch */

struct batch {
    CUevent from, to;
    uint64_t ns;
    uint32_t launches, kinds, of_kind[KINDS];
    struct fr_guess *guess[KINDS];
    bool gap;    /* the stream ran dry in it: its length says nothing */
    bool shared; /* others had the card too meanwhile */
    bool beside; /* the turn before or the one after may have had a part of FR_HANDOVER_NS in it */
    bool behind; /* a wait that the program put into the stream */
    bool single; /* began on a dry stream: ends with its first launch, before it can */
};

struct fr_lane {
    CUcontext context, events_of; /* the context in which its marks were made */
    uintptr_t stream;             /* handle; a thread's own stream: its number */
    struct fr_pace *_Atomic pace;
    _Atomic(CUstream) handle;
    _Atomic uint64_t in_flight, queue_end; /* predicted ns not known to be done; when they should be */
    _Atomic uint32_t used, busy, users;    /* busy: a thread works with its marks; users: threads that launch or wait */
    _Atomic uint32_t held, let_go, let;    /* see blocked_streams.c; 0, or why its launches do not wait; so many of them may go, of so many */
    _Atomic uint32_t finished;             /* batches, ever */
    bool told;                             /* to wait, since the last batch */
    uint32_t first;
    _Atomic uint32_t count;                /* batches[first ...]: in flight; the last may be open */
    _Atomic bool open;
    struct batch batches[MARKS];
};

enum { FR_HELD_BACK = 1, FR_HELD_UP }; /* before its oldest batch; in it */

/* timing_events.c: with the lane taken */
void fr_marks_collect(struct fr_lane *l);     /* what is done */
bool fr_marks_begun(struct fr_lane *l);       /* the oldest batch is on the card */
bool fr_marks_behind(struct fr_lane *l);      /* it may be waiting for the program, and not for its turn on the card */
void fr_marks_drain(struct fr_lane *l);       /* waits for all that has begun */
uint64_t fr_marks_due(struct fr_lane *l);     /* when the oldest should be done */
void fr_marks_close(struct fr_lane *l);       /* a mark behind what was launched last */
CUevent fr_marks_oldest(struct fr_lane *l);   /* NULL: none */
void fr_marks_forget(struct fr_lane *l);      /* they died with their context */
void fr_marks_forget_last(CUcontext context); /* NULL: of all */

/* stream_state.c */
struct fr_lane *fr_lane_next(const struct fr_pace *pace, struct fr_lane *after); /* of those in use; the first after NULL */

/* blocked_streams.c */
void fr_held_wait(struct fr_lane *l); /* until its oldest batch is done, or it is known to be held */

static inline bool fr_lane_try(struct fr_lane *l)
{
    uint32_t nobody = 0;
    return atomic_compare_exchange_strong(&l->busy, &nobody, 1);
}
void fr_lane_take(struct fr_lane *l);
static inline void fr_lane_give(struct fr_lane *l) { atomic_store(&l->busy, 0); }

#endif
