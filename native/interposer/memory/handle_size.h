/* The size of an allocation that came from elsewhere (see handle_size.c). */
#ifndef FRACTILE_MEMORY_HANDLE_SIZE_H
#define FRACTILE_MEMORY_HANDLE_SIZE_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

bool fr_handle_size(CUmemGenericAllocationHandle number, const CUmemAllocationProp *prop, uint64_t *bytes); /* false: not known, or above the quota */
bool fr_handle_has_size(CUmemGenericAllocationHandle number, const CUmemAllocationProp *prop, uint64_t bytes);   /* exactly this size? */

#endif
