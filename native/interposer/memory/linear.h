/* Linear memory: memory at an address that cuMemFree gives back; small pieces share granules of 2 MiB (see linear.c). */
#ifndef FRACTILE_MEMORY_LINEAR_H
#define FRACTILE_MEMORY_LINEAR_H

#include "ledger/oom_retry.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The driver's call behind an allocation: returns the address and its size. */
struct fr_request {
    CUresult (*call)(struct fr_request *request);
    uint64_t size;  /* requested, or a lower bound; in the end the actual size */
    uint64_t worst; /* upper bound */
    bool whole;     /* never packed with others, however small */
    bool plain;     /* any device memory of that size will do */
    struct fr_retry patience;
    CUdeviceptr address;
    /* arguments of the calls */
    size_t width, height, pitch;
    unsigned element, flags;
};
CUresult fr_linear_request(struct fr_request *request);

/* Like cuMemAlloc_v2 in the current context; also the last resort of pools, which have waited already. */
CUresult fr_linear_alloc(CUdeviceptr *out, size_t size, struct fr_retry *patience);

#endif
