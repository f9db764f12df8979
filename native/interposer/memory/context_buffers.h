/* What a context's limits size. */
#ifndef FRACTILE_MEMORY_CONTEXT_BUFFERS_H
#define FRACTILE_MEMORY_CONTEXT_BUFFERS_H

#include "cuda_abi.h"

#include <stdint.h>

CUresult fr_stack_for(CUfunction function); /* before the first launch of a function: room for the stack that it needs */
uint64_t fr_buffers_take(CUcontext context); /* what a green context's own buffers held, when it goes */

#endif
