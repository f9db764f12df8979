/* A load into the current context (see load.c). */
#ifndef FRACTILE_MEMORY_LOAD_H
#define FRACTILE_MEMORY_LOAD_H

#include "memory/loaded.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct fr_load;
struct fr_place;

/* Like fr_place_here, for code and variables: those of a green context belong to its primary one. */
bool fr_load_place(struct fr_place *at, bool *green);
CUresult fr_load_begin(struct fr_load *l, uint64_t handle, enum fr_load_what what, CUfunction function); /* function NULL: unknown */

#endif
