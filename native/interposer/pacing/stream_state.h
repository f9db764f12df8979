/* The work that this process has in flight, per stream: see stream_state.c. */
#ifndef FRACTILE_PACING_STREAM_STATE_H
#define FRACTILE_PACING_STREAM_STATE_H

#include "base/compiler.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fr_paced_card;
struct fr_prediction;

struct fr_work { /* one launch, before it is made */
    uint64_t a, b;     /* the function or graph; its shape */
    CUstream stream;
    bool per_thread;   /* the stream NULL means the thread's own default stream */
    uint32_t first_ns; /* assumed length until one is measured; 0: unknown */
    bool may_wait;     /* a graph with nodes that may wait for the program */
};

#define FR_NEVER 1u /* never the sequence of readable limits: those are even */
#define BATCHES 16 /* most batches of a stream in flight */
#define KERNELS 8  /* most different kernels that a batch tells apart */

struct batch {
    CUevent from, to;
    uint64_t ns; /* predicted */
    uint32_t launches, kernels, of_kernel[KERNELS];
    struct fr_prediction *prediction[KERNELS];
    bool gap;    /* the stream ran dry during the batch, so the measured length means nothing */
    bool shared; /* other containers had the card at the same time */
    bool beside; /* up to FR_HANDOVER_NS of it may overlap the turn before or the turn after */
    bool held;   /* held back by the program, then released: counted at that moment, and the arbiter charges the time */
    bool apart;  /* held back by the program, and done before it was seen to run */
    bool late;   /* the second event was recorded after the batch was done: its length is unknown */
    bool within; /* contains such a graph: it may have begun and wait for the program */
    bool behind; /* behind a wait that the program put into the stream */
    bool single; /* began on a dry stream: closed after its first launch, before the stream can run dry in it */
    bool over;   /* takes no more launches */
    bool begun;  /* the first event was not recorded before the first launch: counts as begun, and is not timed */
    bool lost;   /* the second event could not be recorded: done only when the whole context is */
};

struct fr_stream_state {
    _Atomic(CUcontext) context;
    CUcontext events_of;          /* the context in which its events were made */
    _Atomic uintptr_t stream;     /* the handle; for a thread's own default stream, a value made of the thread's number */
    struct fr_paced_card *_Atomic card;
    _Atomic(CUstream) handle;
    _Atomic uint32_t looked_up_at;         /* sequence of the limits at which `card` was looked up for this context; FR_NEVER: look it up again */
    _Atomic uint64_t in_flight, queue_end; /* predicted ns not known to be done; when they should be done */
    _Atomic uint32_t used, busy, users;    /* busy: a thread works with its events; users: threads that launch or wait */
    _Atomic uint32_t blocked, let_go, let; /* 0, or why launches do not wait; launches that may still go; of how many. See blocked_streams.c */
    _Atomic uint32_t finished;             /* number of batches ever finished */
    _Atomic bool waited_for;               /* the lease client waits for it in the driver, without the lock */
    _Atomic bool told;                     /* the program has put a wait into the stream since the last batch */
    uint32_t first;
    _Atomic uint32_t count;                /* batches[first ...] are in flight; the last may be open */
    _Atomic bool open;
    struct batch batches[BATCHES];
};

enum { FR_BLOCKED = 1, FR_STALLED }; /* before its oldest batch; within it */

extern _Atomic uint32_t fr_blocked_by_host; /* the program has used a call by which a stream can wait for the program */

extern void (*_Atomic fr_collect_states)(void); /* collects finished work to free states; called without a lock by a thread that needs one */

struct fr_backlog {
    uint64_t in_flight, left; /* predicted ns not known to be done; the part that should still remain */
    bool full;                /* no event is left: another launch would not be counted */
};

/* A context stays on one card for life, and its states are dropped when it ends (stream_wait.c). So a card that was looked up stays right
 * until the limits change. Where contexts may come and go unseen, the card is looked up again with every batch (gate.c). Returns NULL if
 * the card has to be looked up, or, where `place` has no context, if the call starts no work that has to be counted. */
struct fr_stream_place {
    CUcontext context;
    CUstream handle;
    uint32_t sequence; /* of the limits */
};
struct fr_stream_state *fr_stream_state_known(const struct fr_work *w, struct fr_stream_place *place);
struct fr_stream_state *fr_stream_state_found(const struct fr_stream_place *place, struct fr_paced_card *card); /* remembers the card */
struct fr_stream_state *fr_stream_state_use(struct fr_paced_card *card, const struct fr_work *w); /* NULL: the stream is capturing, nothing runs */
void fr_stream_state_done(struct fr_stream_state *st); /* by the thread that got the state, after the launch */
/* Iterates over the states in use of a card (card NULL: of all cards); after NULL: the first. */
struct fr_stream_state *fr_stream_state_next(const struct fr_paced_card *card, struct fr_stream_state *after);
struct fr_backlog fr_stream_state_backlog(const struct fr_stream_state *st, uint64_t now);
bool fr_stream_state_is_dry(const struct fr_stream_state *st, uint64_t now);       /* nothing should be in flight */
void fr_stream_state_add(struct fr_stream_state *st, uint64_t ns);                 /* ns more are in flight */
void fr_stream_state_completed(struct fr_stream_state *st, uint64_t ns);           /* ns less are in flight */
void fr_stream_state_queue(struct fr_stream_state *st, uint64_t now, uint64_t ns); /* with the state locked: moves the predicted end */
bool fr_stream_states_in_flight(const struct fr_paced_card *card);                 /* any work that is not blocked */

#define FR_MOST_CONTEXTS 64u
uint32_t fr_stream_states_contexts(const struct fr_paced_card *card); /* in which work is in flight, at most FR_MOST_CONTEXTS */

/* Only one thread at a time works with the events of a stream. */
static inline bool fr_stream_state_try_lock(struct fr_stream_state *st)
{
    uint32_t unlocked = 0;
    return atomic_compare_exchange_strong(&st->busy, &unlocked, 1);
}
void fr_stream_state_lock_patiently(struct fr_stream_state *st);
void fr_stream_state_lock_alive(struct fr_stream_state *st, struct fr_paced_card *card); /* by the card's lease client */
static inline void fr_stream_state_lock(struct fr_stream_state *st)
{
    if (unlikely(!fr_stream_state_try_lock(st))) fr_stream_state_lock_patiently(st);
}
static inline void fr_stream_state_unlock(struct fr_stream_state *st) { atomic_store_explicit(&st->busy, 0, memory_order_release); }

#endif
