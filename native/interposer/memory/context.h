/* Contexts that the application makes and destroys. */
#ifndef FRACTILE_MEMORY_CONTEXT_H
#define FRACTILE_MEMORY_CONTEXT_H

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdint.h>

/* A driver call that may make or end a context. */
struct fr_context_call {
    CUresult (*go)(struct fr_context_call *call);
    CUcontext *out, context;
    CUdevice device;
    unsigned flags, mode;
    int count;
    void *params;
    CUgreenCtx *green_out, green;
};

/* Called before a context is destroyed; NULL: nobody wants to know. Pacing, which stands above these files, has events in streams
 * that die with their context. */
extern void (*_Atomic fr_before_context_ends)(CUcontext context);
extern void (*_Atomic fr_after_context_ends)(void); /* ... and by the same thread afterwards, also if it lives on */
#define FR_GREEN (1ull << 32)       /* in a of the record of a green context, beside its device */
#define FR_GREEN_ENDED (1ull << 33) /* its primary context has gone before it */

/* What dies with a context gets another name before the call, so that a new context at the same address is not taken for it. */
CUcontext fr_context_retire(CUcontext context);
void fr_context_follow(CUcontext context, CUcontext doomed); /* ... so do the records that came too late for that */
void fr_context_restore(CUcontext doomed, CUcontext context); /* it lives on */
void fr_context_merge(CUcontext green, CUcontext primary);    /* which takes over all that was allocated in the green one */
uint64_t fr_context_reclaim(CUcontext doomed, int card);      /* bytes on this card, to be given back by the caller */

#endif
