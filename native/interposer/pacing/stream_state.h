/* What this process has in flight, stream by stream: see stream_state.c. */
#ifndef FRACTILE_PACING_STREAM_STATE_H
#define FRACTILE_PACING_STREAM_STATE_H

#include "base/compiler.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fr_paced_card;
struct fr_prediction;

struct fr_work { /* what is about to be launched */
    uint64_t a, b;     /* the function or graph; its shape */
    CUstream stream;
    bool per_thread;   /* the stream named NULL is the thread's own */
    uint32_t first_ns; /* taken for its length until it was measured; 0: nothing is known */
};

#define FR_NEVER 1u /* no sequence at which the limits can be read: those are even */
#define BATCHES 16 /* batches of a stream in flight */
#define KERNELS 8  /* different kernels of a batch */

struct batch {
    CUevent from, to;
    uint64_t ns; /* predicted */
    uint32_t launches, kernels, of_kernel[KERNELS];
    struct fr_prediction *prediction[KERNELS];
    bool gap;    /* the stream ran dry in it: its length says nothing */
    bool shared; /* others had the card too meanwhile */
    bool beside; /* the turn before or the one after may have had a part of FR_HANDOVER_NS in it */
    bool held;   /* back by the program, and let go: it was counted then, and the arbiter charges the time */
    bool apart;  /* back by the program, and done before anybody saw that it ran */
    bool late;   /* its second event was recorded when it was done: its length is not known */
    bool behind; /* a wait that the program put into the stream */
    bool single; /* began on a dry stream: ends with its first launch, before it can */
    bool over;   /* takes no more launches */
    bool begun;  /* its first event was not recorded before its first launch: taken for begun, not timed */
    bool lost;   /* its second event could not be recorded: it is done when all of the context is */
};

struct fr_stream_state {
    _Atomic(CUcontext) context;
    CUcontext events_of;          /* the context in which its events were made */
    _Atomic uintptr_t stream;     /* handle; a thread's own stream: its number */
    struct fr_paced_card *_Atomic card;
    _Atomic(CUstream) handle;
    _Atomic uint32_t looked_up_at;         /* the sequence of the limits at which `card` was looked up for this context; FR_NEVER: look again */
    _Atomic uint64_t in_flight, queue_end; /* predicted ns not known to be done; when they should be */
    _Atomic uint32_t used, busy, users;    /* busy: a thread works with its events; users: threads that launch or wait */
    _Atomic uint32_t blocked, let_go, let; /* see blocked_streams.c; 0, or why its launches do not wait; so many of them may go, of so many */
    _Atomic uint32_t finished;             /* batches, ever */
    _Atomic bool waited_for;               /* by the lease client, which does not use the stream meanwhile */
    _Atomic bool told;                     /* to wait, since the last batch */
    uint32_t first;
    _Atomic uint32_t count;                /* batches[first ...]: in flight; the last may be open */
    _Atomic bool open;
    struct batch batches[BATCHES];
};

enum { FR_BLOCKED = 1, FR_STALLED }; /* before its oldest batch; in it */

extern _Atomic uint32_t fr_blocked_by_host; /* the program has used what lets a stream wait for itself */

extern void (*_Atomic fr_collect_states)(void); /* sees what is done, so that states are free; by who needs one, without a lock */

struct fr_backlog {
    uint64_t in_flight, left; /* predicted ns that are not known to be done; of these, what should still be to come */
    bool full;                /* no event is left: what went now would not be counted */
};

/* A context stays on its card for life, and its states are forgotten with it (stream_wait.c): so the card that was found is right
 * until the limits change. Where contexts may come and go unseen, it is looked up again with every batch (gate.c). NULL:
 * it has to be looked up, or, without a context in `place`, nothing runs there that is to be counted. */
struct fr_stream_place {
    CUcontext context;
    CUstream handle;
    uint32_t sequence; /* of the limits */
};
struct fr_stream_state *fr_stream_state_known(const struct fr_work *w, struct fr_stream_place *place);
struct fr_stream_state *fr_stream_state_found(const struct fr_stream_place *place, struct fr_paced_card *card); /* from now on it is known */
struct fr_stream_state *fr_stream_state_use(struct fr_paced_card *card, const struct fr_work *w); /* NULL: the stream is capturing, nothing runs */
void fr_stream_state_done(struct fr_stream_state *st); /* by who got it, after the launch */
struct fr_stream_state *fr_stream_state_next(const struct fr_paced_card *card, struct fr_stream_state *after); /* of those in use, card NULL: of all; the first after NULL */
struct fr_backlog fr_stream_state_backlog(const struct fr_stream_state *st, uint64_t now);
bool fr_stream_state_is_dry(const struct fr_stream_state *st, uint64_t now);       /* nothing should be in flight */
void fr_stream_state_add(struct fr_stream_state *st, uint64_t ns);                 /* in flight, from now on ... */
void fr_stream_state_completed(struct fr_stream_state *st, uint64_t ns);           /* ... and no more */
void fr_stream_state_queue(struct fr_stream_state *st, uint64_t now, uint64_t ns); /* with the state locked: when it should be done */
bool fr_stream_states_in_flight(const struct fr_paced_card *card);                 /* anything that is not blocked? */

/* One thread at a time works with the events of a stream. */
static inline bool fr_stream_state_try_lock(struct fr_stream_state *st)
{
    uint32_t nobody = 0;
    return atomic_compare_exchange_strong(&st->busy, &nobody, 1);
}
void fr_stream_state_lock_patiently(struct fr_stream_state *st);
void fr_stream_state_lock_alive(struct fr_stream_state *st, struct fr_paced_card *card); /* by the card's lease client */
static inline void fr_stream_state_lock(struct fr_stream_state *st)
{
    if (unlikely(!fr_stream_state_try_lock(st))) fr_stream_state_lock_patiently(st);
}
static inline void fr_stream_state_unlock(struct fr_stream_state *st) { atomic_store_explicit(&st->busy, 0, memory_order_release); }

#endif
