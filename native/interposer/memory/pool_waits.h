/* Calls of this process that are waiting for work (see pool_waits.c). */
#ifndef FRACTILE_MEMORY_POOL_WAITS_H
#define FRACTILE_MEMORY_POOL_WAITS_H

int fr_pool_wait_begin(void); /* -1: all places are taken, and no free is announced for this call */
void fr_pool_wait_end(int wait);

void fr_pools_free_beside_waits(void); /* before memory of a pool is freed */

#endif
