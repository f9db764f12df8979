/* The primary context of a device: see primary.c. */
#ifndef FRACTILE_MEMORY_PRIMARY_H
#define FRACTILE_MEMORY_PRIMARY_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct fr_context_call;

CUresult fr_primary_hold(struct fr_context_call *call, CUresult (*undo)(struct fr_context_call *)); /* around a call that retains it */
CUresult fr_primary_leave(struct fr_context_call *call, bool all);                                  /* and one that lets go of it */
CUcontext fr_primary_context(CUdevice device);                                                      /* NULL: none, or not known */
bool fr_primary_is(CUdevice device, CUcontext context);                                             /* charged, and this one */
bool fr_primary_unseen(CUdevice device);                                                            /* the driver has one that is not charged */
bool fr_primary_claim(CUdevice device, int card, uint64_t bytes);                                   /* from now on it is charged; false: it was already */

#endif
