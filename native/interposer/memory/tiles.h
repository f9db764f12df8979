/* Around the destruction of an array whose tiles hold memory (see tiles.c). */
#ifndef FRACTILE_MEMORY_TILES_H
#define FRACTILE_MEMORY_TILES_H

#include <stdbool.h>
#include <stdint.h>

struct fr_release;

void fr_tiles_begin(struct fr_release *g, const void *array);
void fr_tiles_end(struct fr_release *g, const void *array, bool destroyed);
void fr_tiles_forget(uint64_t array); /* it went with its context */

#endif
