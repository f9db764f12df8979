/* The gate: decides whether a launch may go now, and makes it wait otherwise. See gate.c. */
#ifndef FRACTILE_PACING_GATE_H
#define FRACTILE_PACING_GATE_H

#include "base/compiler.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fr_paced_card;
struct fr_prediction;
struct fr_stream_state;
struct fr_work;

/* Most programs are unpaced, so this check must cost next to nothing. Every change of the limits page changes its sequence number.
 * fr_unpaced_sequence is the number at which no card was to be paced. */
extern const _Atomic uint32_t *_Atomic fr_limits_sequence;
extern _Atomic uint32_t fr_unpaced_sequence;
static ALWAYS_INLINE bool fr_unpaced(void)
{
    const _Atomic uint32_t *sequence = atomic_load_explicit(&fr_limits_sequence, memory_order_relaxed);
    return likely(atomic_load_explicit(sequence, memory_order_relaxed) == atomic_load_explicit(&fr_unpaced_sequence, memory_order_relaxed));
}

struct fr_ticket {
    struct fr_paced_card *card; /* NULL: not paced */
    struct fr_stream_state *state;
    struct fr_prediction *prediction;
    uint64_t ns, entered; /* predicted length; when it passed the gate */
    bool may_wait;        /* as in the work */
    CUcontext context;    /* the stream's context if another one is current; else NULL */
};
void fr_gate_enter(struct fr_ticket *t, const struct fr_work *w);
void fr_gate_leave(struct fr_ticket *t, CUresult result);

/* The body of a hook: enter the gate, make the call, leave the gate. */
#define PACED(work, call)            \
    do {                             \
        struct fr_ticket t_;         \
        fr_gate_enter(&t_, &(work)); \
        CUresult r_ = (call);        \
        fr_gate_leave(&t_, r_);      \
        return r_;                   \
    } while (0)

struct fr_stream_state *fr_gate_stream(const struct fr_work *w); /* on the current context's card; NULL: it is not paced, or no work starts */
CUcontext fr_gate_context_of(CUstream stream); /* the stream's context if another one is current; else NULL */
struct fr_paced_card *fr_paced_card_here(void); /* the current context's card; NULL: it is not paced */
bool fr_card_is_paced(int card);

#endif
