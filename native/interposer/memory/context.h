/* What the files about contexts share: context.c (made and destroyed by the application), primary.c (one for each device,
 * counted by the driver). */
#ifndef FRACTILE_CONTEXT_H
#define FRACTILE_CONTEXT_H

#include "fractile.h"

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

/* Reserves what a context costs on the card; after the call, what it does cost, or false when the quota cannot bear it. */
struct fr_cost {
    struct fr_op op;
    uint64_t bytes, before; /* bytes: as the agent says, or 0: measured */
    bool measured;
};
bool fr_device_exists(CUdevice device);
CUresult fr_context_reserve(struct fr_cost *cost, CUdevice device);
bool fr_context_measure(struct fr_cost *cost);

/* What dies with a context gets another name before the call, so that a new context at the same address is not taken for it. */
CUcontext fr_context_doom(CUcontext context);
void fr_context_spare(CUcontext doomed, CUcontext context); /* it lives on */
uint64_t fr_context_bury(CUcontext doomed, int card);       /* bytes on this card, to be given back by the caller */

#endif
