/* The last of the quota (see margin_pool.c). */
#ifndef FRACTILE_MEMORY_MARGIN_POOL_H
#define FRACTILE_MEMORY_MARGIN_POOL_H

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fr_place;
struct fr_pool_request;

bool fr_margin_allocate(const struct fr_pool_request *q); /* false: not possible there */
extern _Atomic uint32_t fr_margin_pieces;                 /* number of small linear pieces in these pools */
bool fr_margin_piece_gone(CUdeviceptr p);                 /* it was freed; false: not one of these */
void fr_margin_piece_free(CUdeviceptr p);                 /* its context ends, which the pool outlives */
void fr_margin_tidy(int card);                            /* after frees that have waited: empty pools give back their memory */
bool fr_margin_holds(CUdeviceptr p);
bool fr_margin_small(CUdeviceptr *out, size_t size, const struct fr_place *at);

#endif
