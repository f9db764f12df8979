/* Where a call works: the context that is current, its device, its card. */
#ifndef FRACTILE_MEMORY_PLACE_H
#define FRACTILE_MEMORY_PLACE_H

#include "cuda_abi.h"

#include <stdbool.h>

struct fr_place;

int fr_card_here(CUdevice *device); /* card of the calling thread's current context; FR_NO_CARD without one */
int fr_card_of_context(CUcontext context, CUdevice *device);

/* False: there is no context, or the driver is not ready: let the driver say so. */
bool fr_place_here(struct fr_place *at);

#endif
