/* Matches the driver's devices to the container's cards by UUID, whatever CUDA_VISIBLE_DEVICES says. */
#ifndef FRACTILE_MEMORY_DEVICES_H
#define FRACTILE_MEMORY_DEVICES_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct fr_op;

int fr_card_of(CUdevice device); /* index into the limits; FR_NO_CARD: this container has no part of it */
bool fr_is_on_a_card(const CUmemLocation *location);
CUdevice fr_device_of_location(const CUmemLocation *location);
int fr_card_of_location(const CUmemLocation *location); /* FR_NO_CARD: not on a card, or not on one of the container's */

/* Where a call is about to allocate: the card of the current context. */
struct fr_place {
    int card;
    CUdevice device;
    CUcontext context;
    CUresult error; /* why there is no place */
};

/* fr_op_begin, for a place that may be on a card that is not the container's. */
struct fr_retry;
CUresult fr_op_begin_at_within(struct fr_op *op, const struct fr_place *at, uint64_t worst, struct fr_retry *patience);
CUresult fr_op_begin_at(struct fr_op *op, const struct fr_place *at, uint64_t worst);

#endif
