/* Code that the driver loads when a function is used for the first time. Call it before a launch.
 * A function of a module is tied to its context, so a look into a small table is all. A kernel of a library runs in the
 * context of the stream, where its code may not be loaded yet: fr_kernel_used looks at both. */
#ifndef FRACTILE_MEMORY_FUNCTION_H
#define FRACTILE_MEMORY_FUNCTION_H

#include "base/compiler.h"
#include "memory/function_table.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdint.h>

CUresult fr_kernel_used(CUfunction function, CUstream stream);
static inline CUresult fr_function_used(CUfunction f, CUstream stream)
{
    if (likely(atomic_load_explicit(&fr_functions_loaded[FR_FUNCTION_PLACE(f)], memory_order_relaxed) == (uintptr_t)f)) return CUDA_SUCCESS;
    return fr_kernel_used(f, stream);
}

#endif
