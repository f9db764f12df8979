/* Code that the driver loads when a function is used for the first time. Call it before a launch. A function of a module, and
 * one that was returned for a kernel, is tied to its context ("ctx ... is ignored if func is set": CUDA_KERNEL_NODE_PARAMS), so
 * one look-up in a small table suffices. A kernel of a library runs in the context of the stream, where its code may not be
 * loaded yet: fr_kernel_used looks up both. */
#ifndef FRACTILE_MEMORY_FUNCTION_H
#define FRACTILE_MEMORY_FUNCTION_H

#include "base/compiler.h"
#include "memory/context_cost.h"
#include "memory/function_table.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fr_home {
    uint64_t handle; /* a known module or library; 0: none */
    bool kernel;     /* f is the handle of a library's kernel, which stands for a function in every context */
    CUcontext own;   /* the context in which it runs, whichever is current; NULL: where it is launched, or not known */
};
struct fr_home fr_home_of(CUfunction f);

CUresult fr_kernel_used(CUfunction function, CUstream stream);
/* Is it known, without querying the driver, that this launch loads nothing? In a stream that every context has, a library's
 * kernel runs in the current context. Only the driver knows which one that is: then the answer is false, unless there is only
 * one context. */
static ALWAYS_INLINE bool fr_function_ready(CUfunction f, CUstream stream)
{
    uintptr_t at = (uintptr_t)f, where = (uintptr_t)stream;
    if (likely(atomic_load_explicit(&fr_functions_loaded[FR_FUNCTION_PLACE(f)], memory_order_relaxed) == at)) return true;
    if (where <= FR_LAST_COMMON_STREAM && !fr_one_context()) return false;
    return at && fr_kernel_is_loaded(at, where > FR_LAST_COMMON_STREAM ? where : FR_ONLY_CONTEXT);
}

static ALWAYS_INLINE CUresult fr_function_used(CUfunction f, CUstream stream)
{
    return likely(fr_function_ready(f, stream)) ? CUDA_SUCCESS : fr_kernel_used(f, stream);
}

#endif
