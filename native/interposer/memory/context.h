/* What the files about contexts share: context.c (made and destroyed by the application), primary.c (one for each device,
 * counted by the driver), green.c (parts of it), unseen.c (made by the driver past our functions). */
#ifndef FRACTILE_CONTEXT_H
#define FRACTILE_CONTEXT_H

#include "fractile.h"
#include "own_figure.h"

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
    struct fr_neighbours neighbours;
};
uint64_t fr_context_size(int card); /* as far as it is known, or the most that it is taken for */
bool fr_device_exists(CUdevice device);
CUresult fr_context_reserve(struct fr_cost *cost, CUdevice device);
bool fr_context_measure(struct fr_cost *cost);

#define FR_GREEN (1ull << 32) /* in a of the record of a green context, beside its device */

/* What dies with a context gets another name before the call, so that a new context at the same address is not taken for it. */
CUcontext fr_context_doom(CUcontext context);
void fr_context_spare(CUcontext doomed, CUcontext context); /* it lives on */
uint64_t fr_context_bury(CUcontext doomed, int card);       /* bytes on this card, to be given back by the caller */

/* context_buffers.c: what its limits size. Before the first launch of a function, room for the stack that it needs; and when a
 * green context goes, what its own buffers held. */
CUresult fr_stack_for(CUfunction function);
uint64_t fr_buffers_take(CUcontext context);

/* primary.c */
CUresult fr_primary_hold(struct fr_context_call *call, CUresult (*undo)(struct fr_context_call *)); /* around a call that retains it */
CUresult fr_primary_leave(struct fr_context_call *call, bool all);                                  /* and one that lets go of it */
CUcontext fr_primary_context(CUdevice device);          /* NULL: none, or not known */
bool fr_primary_is(CUdevice device, CUcontext context); /* charged, and this one */
bool fr_primary_unseen(CUdevice device);                /* the driver has one that is not charged */
bool fr_primary_claim(CUdevice device, int card, uint64_t bytes); /* from now on it is charged; false: it was already */

/* unseen.c: contexts and modules that the driver made past our functions */
#define FR_DUE_MS 100
extern _Atomic uint32_t fr_unseen_why; /* 0: nothing can be unseen */
void fr_tables_given(void);
void fr_context_made(int card, CUcontext context); /* by us: known, and its size is to be looked at in FR_DUE_MS */
void fr_context_known(CUcontext context);
void fr_context_forget(CUcontext context);
void fr_unseen_expect(int card);       /* something was loaded there: compare in FR_DUE_MS */
void fr_unseen_look(CUdevice device);  /* in a call that allocates, loads or asks, with a context current on that device */
uint64_t fr_unseen_take(int card); /* before its last context is counted off: what was charged beyond what we know of */
CUresult fr_function_first(CUfunction function);

#endif
