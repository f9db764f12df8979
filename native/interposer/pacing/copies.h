/* Describes copies and fills that run on a card as work for the gate: see copies.c. */
#ifndef FRACTILE_COPIES_H
#define FRACTILE_COPIES_H

#include "pacing/stream_state.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

bool fr_copy_within(CUdeviceptr to, CUdeviceptr from); /* the driver reports both ends as memory of a card */
struct fr_work fr_copy_work(const void *function, uint64_t bytes, CUstream s, bool own);

#endif
