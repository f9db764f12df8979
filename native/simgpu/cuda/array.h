/* Arrays and mipmapped arrays: declarations shared by array.c and its users. */
#ifndef SIMGPU_ARRAY_H
#define SIMGPU_ARRAY_H

#include "local.h"

struct sim_array {
    uint32_t magic;
    struct sim_ctx *ctx;
    uint32_t charge;
    bool level; /* belongs to a mipmapped array */
    size_t row, rows, layers, size; /* bytes of a row, rows of a layer, layers, total bytes */
    CUDA_ARRAY3D_DESCRIPTOR desc;
    struct sim_bytes *bytes;
    unsigned level_count;
    struct sim_array *levels[32];
    struct sim_array *next; /* next of all arrays that hold memory or to which memory is mapped */
};

void sim_tiles_forget(struct sim_array *a);

#endif
