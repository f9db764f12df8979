/* Where a call works: the current context, its device, its card. */
#ifndef FRACTILE_MEMORY_PLACE_H
#define FRACTILE_MEMORY_PLACE_H

#include "cuda_abi.h"

#include <stdbool.h>

struct fr_place;

int fr_card_here(CUdevice *device); /* card of the calling thread's current context; FR_NO_CARD without one */
int fr_card_of_context(CUcontext context, CUdevice *device);

/* False: there is no context, or the driver is not ready. A call that takes memory then returns at->error and does not reach
 * the driver: nothing is reserved for it, and another thread may bring the context back under the same handle. */
bool fr_place_here(struct fr_place *at);

#endif
