/* The pacing of one process: what its launches go through on cards whose time is shared out.
 *
 *      launch.c   a hook per launch call: unpaced, one look and on; else  enter -> the driver -> leave
 *      copies.c   the same for copies and fills within the card; copies over the bus pass
 *      batches.c  the same for calls that make many copies at once
 *      gate.c     may this launch go now? Waits until the container holds the card and there is room in the queue
 *      stream_state.c    how much work is in flight, by stream
 *      timing_events.c    events in the streams that say when it is done and how long it took
 *      blocked_streams.c     streams that the program itself holds back: nobody waits for them
 *      predict.c  how long a kernel takes, learned by function and shape
 *      lease_client.c    the process's thread that speaks to the arbiter and gives leases back
 */
#ifndef FRACTILE_PACE_H
#define FRACTILE_PACE_H

#include "api_memory.h"
#include "api_pace.h"
#include "fractile.h"
#include "region.h"

#define FR_CARD_PACED 1u /* flag of a card in the limits: its neighbours have shares, so this container is paced too */

/* ---- gate.c ---- */
enum fr_gate {
    FR_GATE_FREE = 0, /* not paced: no shares on this card, or no arbiter */
    FR_GATE_IDLE,     /* the container's turn was not asked for */
    FR_GATE_ASKED,
    FR_GATE_OPEN,     /* launches may go until `end` */
    FR_GATE_CLOSED,   /* the turn is over: what is in flight runs out, nothing is added */
};

struct fr_pace {
    _Atomic uint32_t gate;   /* a futex */
    _Atomic uint32_t inside; /* launches between the gate and the driver's answer */
    _Atomic uint32_t waiting;
    _Atomic uint32_t shared; /* others have the card too: what is measured contains their work */
    _Atomic uint32_t full;   /* a launch was refused because it would not be done before the turn ends */
    _Atomic uint32_t guessed; /* something was launched in this turn whose length is not known */
    _Atomic uint64_t alone_at, passes_at; /* before and after that (0: never) another container's work may be on the card, too */
    _Atomic uint64_t end, granted, closed, lease; /* of the turn; end 0: until recalled */
    _Atomic uint64_t in_flight, queue_end;      /* predicted ns of all lanes; when the last of them should be done */
    _Atomic uint64_t last_launch, launched_now; /* when; how many in this turn */
};
extern struct fr_pace fr_paces[FR_MAX_CARDS];

/* Unpaced is the usual case and must cost next to nothing: the limits page changes its sequence with every change, and at
 * this sequence nothing was to be paced. */
extern const _Atomic uint32_t *_Atomic fr_pace_sequence;
extern _Atomic uint32_t fr_unpaced_at;
static inline bool fr_unpaced(void)
{
    const _Atomic uint32_t *sequence = atomic_load_explicit(&fr_pace_sequence, memory_order_relaxed);
    return likely(atomic_load_explicit(sequence, memory_order_relaxed) == atomic_load_explicit(&fr_unpaced_at, memory_order_relaxed));
}

struct fr_work { /* what is about to be launched */
    uint64_t a, b;     /* the function or graph; its shape */
    CUstream stream;
    bool per_thread;   /* the stream named NULL is the thread's own */
    uint32_t first_ns; /* taken for its length until it was measured; 0: nothing is known */
};
struct fr_ticket {
    struct fr_pace *pace; /* NULL: not paced */
    struct fr_lane *lane;
    struct fr_guess *guess;
    uint64_t ns;
};
void fr_pace_enter(struct fr_ticket *t, const struct fr_work *w);
void fr_pace_leave(struct fr_ticket *t, CUresult result);

/* The body of a hook: through the gate, the call, and out. */
#define PACED(work, call)            \
    do {                             \
        struct fr_ticket t_;         \
        fr_pace_enter(&t_, &(work)); \
        CUresult r_ = (call);        \
        fr_pace_leave(&t_, r_);      \
        return r_;                   \
    } while (0)

struct fr_pace *fr_pace_here(void); /* of the current context's card; NULL: it is not paced */
void fr_pace_close(struct fr_pace *p); /* the turn is over */

/* ---- predict.c ---- */
struct fr_guess {
    _Atomic uint64_t key;
    _Atomic uint32_t ns, slow; /* means: of late, and over many launches */
    _Atomic uint32_t samples, pending; /* launches measured; in flight */
    _Atomic uint32_t steady;           /* batches in a row that took what was thought */
    _Atomic uint32_t doubtful;         /* measured beside others' work only: the first time without them replaces it */
};
struct fr_guess *fr_guess_of(uint64_t a, uint64_t b);
uint64_t fr_guess_ns(const struct fr_guess *g);
void fr_guess_learn(struct fr_guess *g, uint32_t launches, uint64_t each_ns);   /* a batch of only g */
void fr_guess_check(struct fr_guess *g, uint64_t thought_ns, uint64_t measured_ns); /* of a batch with it */
void fr_guess_bound(struct fr_guess *g, uint32_t launches, uint64_t each_ns);   /* a batch of only g, beside others' work */
void fr_guess_correct(struct fr_guess *g, uint32_t launches, double ratio, bool beside); /* among others: ratio x what was thought of all; beside others' work */

/* ---- stream_state.c, timing_events.c ---- */
struct fr_ahead {
    uint64_t in_flight, left; /* predicted ns that are not known to be done; of these, what should still be to come */
    bool full;                /* no mark is left: what went now would not be counted */
};
struct fr_lane *fr_lane_of(struct fr_pace *pace, const struct fr_work *w); /* NULL: the stream is capturing, nothing runs */
void fr_lane_leave(struct fr_lane *lane);                                  /* by who got it, after the launch */
struct fr_ahead fr_lane_ahead(const struct fr_lane *lane, uint64_t now);
bool fr_lane_is_dry(const struct fr_lane *lane, uint64_t now);             /* nothing should be in flight */
void fr_lane_add(struct fr_lane *lane, uint64_t ns);                       /* in flight, from now on ... */
void fr_lane_landed(struct fr_lane *lane, uint64_t ns);                    /* ... and no more */
void fr_lane_queue(struct fr_lane *lane, uint64_t now, uint64_t ns);
void fr_lane_before(struct fr_lane *lane, bool dry);                       /* a batch begins: its first mark */
void fr_lane_after(struct fr_lane *lane, struct fr_guess *guess, uint64_t ns);
bool fr_lane_look(struct fr_lane *lane);   /* true: less is in flight than was thought */
void fr_lane_wait(struct fr_lane *lane);   /* until some of what is in flight is done */
void fr_lanes_drain(struct fr_pace *pace); /* until all is, but for streams that are held back; by the pacer */
void fr_lanes_forget(CUcontext context);   /* it is about to be destroyed */

/* ---- blocked_streams.c ---- */
bool fr_held_may_go(struct fr_lane *lane); /* the stream is held, so launches do not wait for it */
void fr_held_settle(struct fr_pace *pace); /* with the gate closed: which of the streams that have not begun are held back? */
bool fr_held_any(const struct fr_pace *pace);
bool fr_held_released(struct fr_pace *pace); /* one that was held back goes on: its work needs a turn */
extern _Atomic uint32_t fr_held_by_host;     /* the program has used what lets a stream wait for itself */

/* ---- lease_client.c ---- */
void fr_pacer_start(int card); /* a thread per card that this process uses and that is paced */
void fr_pacer_wake(int card);  /* the gate is ASKED or CLOSED: see to it */
void fr_pacer_after_fork(void);
uint64_t fr_pace_gang(uint64_t now); /* cards that this process has used lately, bit set */
struct fr_account *fr_account_of_pace(const struct fr_pace *pace); /* NULL: none */

#define FR_WINDOW_NS 10000000ull   /* of work in flight in a stream: what a newcomer waits at most */
#define FR_BESIDE_WINDOW_NS 3000000ull /* ... while others have the card too: it takes as many times longer, and none stands idle */
#define FR_HANDOVER_NS 400000ull   /* so long before its last kernel should be done, a turn is passed on: the next begins at once */
#define FR_IDLE_NS 200000ull       /* nothing new for so long after the last is done: the turn is given back to who waits */
#define FR_ALONE_NS 20000000ull    /* ... when nobody was waiting */
#define FR_QUIET_NS 1000000000ull  /* no launch for so long: an arbiter that is not there is not looked for */
#define FR_DRY_NS 50000ull         /* so long after all of a stream should be done, it has run dry */
#define FR_UNKNOWN_NS 2000000ull   /* taken for a kernel that was never seen */

#endif
