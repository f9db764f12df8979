/* What this process holds, and the container's sum. Bytes are rounded up to whole units.
 *
 * An operation announces itself (others wait for it before they call themselves out of memory), reserves the most that
 * the call can take, and in the end keeps what it did take:
 *
 *      struct fr_op op;
 *      CUresult r = fr_op_begin(&op, card, worst);      0, or the error that the application gets
 *      if (!r) { r = REAL(cuMemAlloc_v2)(out, n); fr_op_end(&op, r ? 0 : took); }
 *
 * Whoever holds a reservation never waits for room with fr_op_begin: it would wait for itself, and others for it. What a call
 * needs in several parts is reserved at once and split, or asked for with fr_op_more, which does not wait.
 *
 * fr_op_begin says CUDA_ERROR_OUT_OF_MEMORY only after the dead were reaped, and after calls that were on their way (of any
 * process of the container) and may still give back what is missing were given time to end (oom_retry.c). */
#ifndef FRACTILE_LEDGER_LEDGER_H
#define FRACTILE_LEDGER_LEDGER_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

#define FR_NO_CARD (-1)

struct fr_retry;
struct fr_op {
    int card;
    uint32_t epoch;    /* of a free: see frees.c */
    uint64_t reserved; /* bytes, whole units; of a free: the most that it gives back, where that is known */
};
CUresult fr_op_begin(struct fr_op *op, int card, uint64_t worst);
CUresult fr_op_begin_within(struct fr_op *op, int card, uint64_t worst, struct fr_retry *patience); /* for a call that asks several times: oom_retry.h */
bool fr_op_try(struct fr_op *op, int card, uint64_t worst); /* without waiting for others; false: does not fit now, and nothing is to be ended */
bool fr_op_more(struct fr_op *op, uint64_t bytes);  /* reserve more inside the operation; false: does not fit now */
/* So much of what it has reserved becomes an operation of its own. A reservation for several is the sum of their fr_op_bytes. */
void fr_op_split(struct fr_op *op, struct fr_op *part, uint64_t bytes);
uint64_t fr_op_bytes(uint64_t bytes); /* in whole units */
void fr_op_end(struct fr_op *op, uint64_t kept);    /* kept <= reserved; the rest goes back */
void fr_free_begin(struct fr_op *op, int card);     /* before the driver is told to free: card FR_NO_CARD is harmless */
void fr_free_most(struct fr_op *op, uint64_t bytes);  /* then, where it is known: that it gives back so much more at most */
void fr_free_end(struct fr_op *op, uint64_t bytes); /* it did: bytes go back; 0 when it refused */
void fr_charge(int card, uint64_t bytes);           /* the driver took it already and it cannot be undone: count it, also above the quota */
/* So much of what is charged may go back when calls end that are on their way; below 0: no longer. Who is short of room waits for them. */
void fr_slack_add(int card, int64_t bytes);
uint64_t fr_used(int card);                         /* the container's sum, bytes; the dead are reaped at most 50 ms late */
bool fr_has_room(int card, uint64_t bytes);         /* surely, at this moment, whatever the dead hold. False says nothing: ask fr_used */
uint64_t fr_used_shown(int card);                   /* the same for a program that asks: the first time, the dead are looked for at once */
uint64_t fr_used_here(int card);                    /* this process's part */
void fr_contexts_add(int card, int change);         /* account.contexts */

#endif
