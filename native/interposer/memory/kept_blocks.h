/* Memory freed near the quota is kept for the next allocation (see kept_blocks.c). */
#ifndef FRACTILE_MEMORY_KEPT_BLOCKS_H
#define FRACTILE_MEMORY_KEPT_BLOCKS_H

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fr_pool_request;

extern _Atomic uint32_t fr_room_is_tight;    /* not 0: lately a pool had no room to grow */
extern _Atomic uint32_t fr_kept_block_count; /* number of kept blocks */
enum fr_kept { FR_NOT_KEPT, FR_KEPT, FR_KEPT_BEFORE /* it was freed twice */ };
enum fr_kept fr_kept_block_put(CUdeviceptr p, CUstream s); /* instead of the driver's free */
bool fr_kept_block_take(const struct fr_pool_request *q);  /* instead of the driver's allocation */
uint64_t fr_kept_block_bytes(CUmemoryPool pool); /* of the pool's blocks, each rounded up as the driver does */
void fr_kept_blocks_free(void);                            /* the driver frees all of them now */
void fr_room_was_short(void);

#endif
