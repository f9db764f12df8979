/* Code that the driver loads when a function is used for the first time. Call it before a launch.
 * A function of a module is tied to its context, so a look into a small table is all. A kernel of a library runs in the
 * context of the stream, where its code may not be loaded yet: fr_kernel_used looks at both. */
#ifndef FRACTILE_MEMORY_FUNCTION_H
#define FRACTILE_MEMORY_FUNCTION_H

#include "base/compiler.h"
#include "memory/function_table.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fr_home {
    uint64_t handle; /* a module or library that we know; 0: none */
    bool kernel;     /* it is a handle of a library's kernel, which stands for a function in every context */
};
struct fr_home fr_home_of(CUfunction f);

CUresult fr_kernel_used(CUfunction function, CUstream stream);
static inline CUresult fr_function_used(CUfunction f, CUstream stream)
{
    if (likely(atomic_load_explicit(&fr_functions_loaded[FR_FUNCTION_PLACE(f)], memory_order_relaxed) == (uintptr_t)f)) return CUDA_SUCCESS;
    return fr_kernel_used(f, stream);
}

/* Is it known without asking the driver that this launch loads nothing? In a stream that every context has, a library's kernel
 * runs in the current context, which only the driver knows: then the answer is no. */
static inline bool fr_function_ready(CUfunction f, CUstream stream)
{
    uintptr_t at = (uintptr_t)f;
    if (likely(atomic_load_explicit(&fr_functions_loaded[FR_FUNCTION_PLACE(f)], memory_order_relaxed) == at)) return true;
    return (uintptr_t)stream > FR_LAST_COMMON_STREAM && at && fr_kernel_is_loaded(at, (uintptr_t)stream);
}

#endif
