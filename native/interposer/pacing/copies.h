/* Copies and fills, as far as they are the card's work. */
#ifndef FRACTILE_COPIES_H
#define FRACTILE_COPIES_H

#include "pacing/stream_state.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

bool fr_copy_within(CUdeviceptr to, CUdeviceptr from); /* both ends are on a card, as the driver says */
struct fr_work fr_copy_work(const void *function, uint64_t bytes, CUstream s, bool own);

#endif
