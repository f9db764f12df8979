/* What this process holds, and the container's sum. Bytes are rounded up to whole units.
 *
 * An operation announces itself (other processes wait for it before they report that they are out of memory), reserves the most
 * that the call can take, and at the end keeps what the call did take:
 *
 *      struct fr_op op;
 *      CUresult r = fr_op_begin(&op, card, worst);      0, or the error that the application gets
 *      if (!r) { r = REAL(cuMemAlloc_v2)(out, n); fr_op_end(&op, r ? 0 : took); }
 *
 * A thread that holds a reservation must not wait for memory with fr_op_begin: it would wait for itself, and others would wait
 * for it. What a call needs in several parts is reserved at once and split, or requested with fr_op_more, which does not wait.
 *
 * fr_op_begin returns CUDA_ERROR_OUT_OF_MEMORY only after dead processes were reaped, and after running calls (of any process
 * of the container) that may still give back what is missing were given time to end (oom_retry.c). */
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
    uint64_t reserved; /* bytes, whole units; of a free: the most that it gives back, where known */
};
CUresult fr_op_begin(struct fr_op *op, int card, uint64_t worst);
CUresult fr_op_begin_within(struct fr_op *op, int card, uint64_t worst, struct fr_retry *patience); /* for several attempts: oom_retry.h */
void fr_refusal_count(int card); /* of a request that fr_op_begin let through: it counts those that it refuses */
bool fr_op_try(struct fr_op *op, int card, uint64_t worst); /* without waiting; false: does not fit now, and no fr_op_end is needed */
bool fr_op_more(struct fr_op *op, uint64_t bytes);  /* reserve more inside the operation; false: does not fit now */
/* Makes these bytes of the reservation an operation of its own. A reservation for several is the sum of their fr_op_bytes. */
void fr_op_split(struct fr_op *op, struct fr_op *part, uint64_t bytes);
uint64_t fr_op_bytes(uint64_t bytes); /* rounded up to whole units */
void fr_op_end(struct fr_op *op, uint64_t kept);    /* kept <= reserved; the rest goes back */
void fr_free_begin(struct fr_op *op, int card);     /* before the driver frees; with FR_NO_CARD it does nothing */
void fr_free_most(struct fr_op *op, uint64_t bytes);  /* then, where known: the free gives back at most this much more */
void fr_free_end(struct fr_op *op, uint64_t bytes); /* the driver freed: these bytes go back; 0 if it refused */
void fr_charge(int card, uint64_t bytes);           /* the driver has already taken it and that cannot be undone: charged even above the quota */
/* This much of the charge may go back when running calls end; below 0: no longer. A process that is short of memory waits for
 * those calls. */
void fr_slack_add(int card, int64_t bytes);
uint64_t fr_used(int card);                         /* the container's sum, bytes; dead processes are reaped at most 50 ms late */
bool fr_has_room(int card, uint64_t bytes);         /* certain at this moment, whatever dead processes hold. False proves nothing: use fr_used */
uint64_t fr_used_shown(int card);                   /* the same for a program's own query: the first one searches for dead processes at once */
uint64_t fr_used_here(int card);                    /* this process's part */
void fr_contexts_add(int card, int change);         /* account.contexts */

#endif
