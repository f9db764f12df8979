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
    bool single; /* began on a dry stream: ends with its first launch, before it can */
};

struct fr_lane {
    CUcontext context, events_of; /* the context in which its marks were made */
    uintptr_t stream;             /* handle; a thread's own stream: its number */
    struct fr_pace *pace;
    CUstream handle;
    _Atomic uint64_t in_flight, queue_end; /* predicted ns not known to be done; when they should be */
    _Atomic uint32_t used, busy, users;    /* busy: a thread works with its marks; users: threads that launch or wait */
    uint32_t first, count;                 /* batches[first ...]: in flight; the last may be open */
    bool open;
    struct batch batches[MARKS];
};

/* marks.c: with the lane taken */
void fr_marks_collect(struct fr_lane *l);     /* what is done */
void fr_marks_drain(struct fr_lane *l);       /* waits for all */
void fr_marks_close(struct fr_lane *l);       /* a mark behind what was launched last */
CUevent fr_marks_oldest(struct fr_lane *l);   /* NULL: none */
void fr_marks_forget(struct fr_lane *l);      /* they died with their context */
void fr_marks_forget_last(CUcontext context); /* NULL: of all */

static inline bool fr_lane_try(struct fr_lane *l)
{
    uint32_t nobody = 0;
    return atomic_compare_exchange_strong(&l->busy, &nobody, 1);
}
void fr_lane_take(struct fr_lane *l);
static inline void fr_lane_give(struct fr_lane *l) { atomic_store(&l->busy, 0); }

#endif
