/* The first use of a function makes the driver load its code. Before a launch, the code is loaded and charged here, so that a
 * launch beyond the quota returns out of memory. function_table.c remembers which functions are certainly loaded. */
#include "memory/function.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/records.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/context_buffers.h"
#include "memory/function_table.h"
#include "memory/load.h"
#include "memory/loaded.h"
#include "memory/module.h"
#include "memory/unseen.h"
#include "pacing/api_launch.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuStreamGetCtx(CUstream, CUcontext *);
CUresult cuStreamDestroy(CUstream);
CUresult cuStreamDestroy_v2(CUstream);

static _Atomic uint32_t known_in;

/* ---- the origin of a function ---- */

struct fr_home fr_home_of(CUfunction f)
{
    CUmodule from = NULL;
    struct fr_home home = {0};
    if (fr_driver_has(FR_cuFuncGetModule) && !REAL(cuFuncGetModule)(&from, f) && fr_module_known((uintptr_t)from)) home.handle = (uintptr_t)from;
    if (home.handle) home.own = fr_module_context(home.handle);
    if (home.own) return home;
    if (fr_driver_has(FR_cuKernelGetLibrary) && !REAL(cuKernelGetLibrary)(&from, (CUkernel)f) && fr_module_known((uintptr_t)from))
        return (struct fr_home){.handle = (uintptr_t)from, .kernel = true};
    home.own = fr_function_context(f);
    return home;
}

/* ---- loading ---- */

/* Code that cannot be loaded now may be loaded by the launch: it stays charged. */
static CUresult load_now(CUfunction f, bool kernel)
{
    CUfunction here = f;
    CUresult r = kernel ? REAL(cuKernelGetFunction)(&here, (CUkernel)f) : CUDA_SUCCESS;
    if (!r && fr_driver_has(FR_cuFuncLoad)) r = REAL(cuFuncLoad)(here);
    return r == CUDA_ERROR_OUT_OF_MEMORY ? r : CUDA_SUCCESS;
}

static CUresult load_code(CUfunction f, struct fr_home home)
{
    struct fr_load l;
    CUresult r = fr_load_begin(&l, home.handle, FR_LOAD_FUNCTION, f);
    if (r) return r;
    r = load_now(f, home.kernel);
    if (l.counts) fr_load_end(&l, r ? 0 : FR_CODE | FR_GLOBALS, fr_loaded_of(home.handle, home.kernel ? NULL : f, &l.question));
    return r;
}

/* The function's stack and origin (unseen.h) come second, since querying them may load the function. */
static CUresult load(CUfunction f, struct fr_home home)
{
    CUresult r = home.handle ? load_code(f, home) : CUDA_SUCCESS;
    if (r) return r;
    fr_unseen_function(f);
    return fr_stack_for(f);
}

/* Loads it in its own context or the stream's, which need not be the current one. */
static CUresult load_for(CUfunction f, struct fr_home home, CUstream stream)
{
    CUcontext there = home.own, before = NULL;
    if (!there && ((uintptr_t)stream <= FR_LAST_COMMON_STREAM || REAL(cuStreamGetCtx)(stream, &there))) there = NULL;
    bool elsewhere = there && !REAL(cuCtxGetCurrent)(&before) && there != before;
    if (elsewhere && REAL(cuCtxPushCurrent_v2)(there)) return CUDA_ERROR_INVALID_CONTEXT; /* the driver reports what is wrong */
    CUresult r = load(f, home);
    if (elsewhere) REAL(cuCtxPopCurrent_v2)(&there);
    return r;
}

static void remember(CUfunction f, struct fr_home home, uintptr_t where, bool current, uint32_t generation)
{
    bool everywhere = home.handle && fr_module_is_library(home.handle) && (home.kernel || !fr_driver_has(FR_cuKernelGetLibrary));
    if (!everywhere) return fr_function_remember((uintptr_t)f, generation);
    fr_kernel_remember((uintptr_t)f, where, generation);
    if (current && where && fr_one_context()) fr_kernel_remember((uintptr_t)f, FR_ONLY_CONTEXT, generation); /* no context: nothing loaded */
}

static __attribute__((noinline)) CUresult first_use(CUfunction f, CUstream stream, uintptr_t where)
{
    uint32_t era = atomic_load(&fr_era), generation = atomic_load(&fr_handle_generation);
    if (atomic_exchange(&known_in, era) != era) fr_functions_forget();
    struct fr_home home = fr_home_of(f);
    if (home.kernel) fr_record_put((struct fr_record){.class = FR_KERNEL_USED, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = (uintptr_t)f, .a = home.handle});
    CUresult r = load_for(f, home, stream);
    if (!r) remember(f, home, where, (uintptr_t)stream <= FR_LAST_COMMON_STREAM, generation);
    return r == CUDA_ERROR_OUT_OF_MEMORY ? r : CUDA_SUCCESS;
}

CUresult fr_kernel_used(CUfunction f, CUstream stream)
{
    CUcontext current = NULL;
    if (!f) return CUDA_SUCCESS; /* the driver answers that */
    uintptr_t where = (uintptr_t)stream;
    if (where <= FR_LAST_COMMON_STREAM) {
        if (REAL(cuCtxGetCurrent)(&current)) return CUDA_SUCCESS;
        where = (uintptr_t)current;
    }
    return likely(fr_kernel_is_loaded((uintptr_t)f, where)) ? CUDA_SUCCESS : first_use(f, stream, where);
}
