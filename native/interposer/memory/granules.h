/* Which granules the small allocations of this process share: see granules.c. */
#ifndef FRACTILE_GRANULES_H
#define FRACTILE_GRANULES_H

#include "fractile.h"

/* A small allocation on its way. `own` granules are reserved for it alone. */
struct fr_small {
    CUcontext context;
    int card;
    uint32_t units, own;
    bool in_group, claims; /* claims: without a reservation */
    bool crowded;          /* refused, but only because of others on their way */
};

/* Before the driver's call. False: nothing is reserved for it and no hole is sure to be left for it. */
bool fr_small_enter(struct fr_small *s, CUcontext context, int card, uint64_t size, uint32_t own);

/* After it. p: where it landed, 0 when it did not. Granules that it takes and that nobody reserved are answered in missing:
 * then nothing is booked, and it is to be called again. Else the operation keeps `kept` of its own granules, and what the
 * others have left over goes back with `spare`. */
struct fr_small_end {
    uint32_t missing, kept, back;
    struct fr_op spare; /* a free that was announced; ends with `back` granules */
    bool booked;        /* false: no memory for the table */
};
struct fr_small_end fr_small_leave(struct fr_small *s, CUdeviceptr p, uint64_t size);

/* A piece that is being freed, and was: answers whether its granule is to be given back, and the object that it was. */
void fr_small_freeing(CUdeviceptr p, uint64_t size);
void fr_small_stays(CUdeviceptr p, uint64_t size, uint32_t *owed);
void fr_small_freed(CUcontext context, CUdeviceptr p, uint64_t size, uint32_t *back, int *object);

bool fr_small_object(CUdeviceptr p, int *card, int *object);
bool fr_small_set_object(CUdeviceptr p, int object);

/* Granules that die with a context take another name before it is destroyed, so that a new context at the same address is not
 * taken for it; in the end they are dropped one by one. */
void fr_small_rename(CUcontext from, CUcontext to);
bool fr_small_drop(CUcontext context, int *object);

#endif
