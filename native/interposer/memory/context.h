/* Contexts that the application makes and destroys (see context.c). */
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

/* Called before a context is destroyed; NULL: not set. Pacing, which is layered above these files, has events in streams that
 * end with their context. */
extern void (*_Atomic fr_before_context_ends)(CUcontext context);
extern void (*_Atomic fr_after_context_ends)(void); /* ... and by the same thread afterwards, even if the context lives on */
#define FR_GREEN (1ull << 32)       /* in a of the record of a green context, beside its device */
#define FR_GREEN_ENDED (1ull << 33) /* its primary context has ended before it */

CUresult fr_context_end(struct fr_context_call *call); /* around a call that ends context; not the primary one */

/* Renames what ends with a context before the driver's call, so that a new context at the same address is not mistaken for it. */
CUcontext fr_context_retire(CUcontext context);
void fr_context_follow(CUcontext context, CUcontext doomed); /* ... the same for records that came too late for that */
void fr_context_restore(CUcontext doomed, CUcontext context); /* it lives on */
void fr_context_merge(CUcontext green, CUcontext primary);    /* the primary context takes over all that was allocated in the green one */
uint64_t fr_context_reclaim(CUcontext doomed, int card);      /* bytes on this card, which the caller has to give back */

#endif
