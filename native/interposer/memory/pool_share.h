/* Pools in several processes: see pool_share.c. */
#ifndef FRACTILE_MEMORY_POOL_SHARE_H
#define FRACTILE_MEMORY_POOL_SHARE_H

#include "cuda_abi.h"

struct fr_pool;

CUresult fr_pool_import_ends(struct fr_pool *p); /* the application destroys an imported pool */

#endif
