/* The granules of 2 MiB in which the small allocations of this process lie (see granules.c). */
#ifndef FRACTILE_GRANULES_H
#define FRACTILE_GRANULES_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

#define FR_GRANULE (2ull << 20)
#define FR_SMALL (1ull << 20) /* smaller allocations share granules */

static inline uint64_t fr_round_to_granules(uint64_t bytes)
{
    return bytes > UINT64_MAX - FR_GRANULE ? UINT64_MAX / FR_GRANULE * FR_GRANULE : (bytes + FR_GRANULE - 1) / FR_GRANULE * FR_GRANULE;
}

/* A piece below 1 MiB, and the numbers of the first and second granule in which it lies; 0: none. */
struct fr_piece {
    int card;
    CUdeviceptr p;
    uint64_t size;
    uint32_t in[2];
};

/* After the driver's call: books a piece at its address, and returns its granules. `added`: how many held no piece before and
 * have to be charged. False: no memory for the table, and nothing is booked. */
bool fr_granules_add(CUcontext context, struct fr_piece *piece, uint32_t *added);

/* Before the driver frees a piece; afterwards the piece is removed, or stays. */
uint32_t fr_granules_leaving(const struct fr_piece *piece); /* how many granules come back when all pieces that are being freed are gone */
void fr_granules_stay(const struct fr_piece *piece);

/* After the driver freed a piece: how many granules are empty now, and the object of its granule. */
void fr_granules_remove(const struct fr_piece *piece, bool was_leaving, uint32_t *emptied, int *object);

bool fr_granule_object(const struct fr_piece *piece, int *object);
bool fr_granule_set_object(const struct fr_piece *piece, int object);

/* Granules that end with a context take another name before it is destroyed, so that a new context at the same address is not
 * mistaken for it, nor a new granule for one of them. In the end they are dropped one by one. */
void fr_granules_rename(CUcontext from, CUcontext to, bool ends);
bool fr_granules_drop(CUcontext context, int *object);

#endif
