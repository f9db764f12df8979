/* The driver's devices are the container's cards, by UUID, whatever CUDA_VISIBLE_DEVICES says. */
#ifndef FRACTILE_MEMORY_DEVICES_H
#define FRACTILE_MEMORY_DEVICES_H

#include "cuda_abi.h"

int fr_card_of(CUdevice device); /* index into the limits; FR_NO_CARD: this container has no part of it */

#endif
