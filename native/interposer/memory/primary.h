/* The primary context of a device (see primary.c). */
#ifndef FRACTILE_MEMORY_PRIMARY_H
#define FRACTILE_MEMORY_PRIMARY_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct fr_context_call;
struct fr_cost;

/* Around a call that retains it. If the call also makes a green context in it, `green` gets the reservation for that one, which
 * the caller ends after a success. */
CUresult fr_primary_hold(struct fr_context_call *call, CUresult (*undo)(struct fr_context_call *), struct fr_cost *green);
CUresult fr_primary_leave(struct fr_context_call *call, bool all);                                  /* around a call that lets go of it */
CUcontext fr_primary_context(CUdevice device);                                                      /* NULL: none, or not known */
bool fr_primary_is(CUdevice device, CUcontext context);                                             /* charged, and this one */
bool fr_primary_unseen(CUdevice device);                                                            /* the driver has one that is not charged */
bool fr_primary_claim(CUdevice device, int card, uint64_t bytes);                                   /* charged from now on; false: it already was */

#endif
