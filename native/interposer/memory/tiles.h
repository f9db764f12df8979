/* Tiles of sparse and deferred arrays, whose memory is charged as handles (see tiles.c). */
#ifndef FRACTILE_MEMORY_TILES_H
#define FRACTILE_MEMORY_TILES_H

#include "ledger/records.h"
#include "memory/holding.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

void fr_tiles_made(uint64_t array, CUcontext context); /* an array that will have tiles */
void fr_tiles_forget(uint64_t array);                  /* it went with its context */

/* Around the destruction of an array. */
struct fr_tiles_end {
    uint64_t array;
    bool known;
    struct fr_record record;
    struct fr_release release;
};
void fr_tiles_begin(struct fr_tiles_end *e, const void *array);
void fr_tiles_end(struct fr_tiles_end *e, bool destroyed);

#endif
