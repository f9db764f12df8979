/* Calls that may load a function. Those that return or load a function do. For every function that was not loaded with its
 * module, the driver API's reference says that calls "may load the function automatically" when they are given it. It does not
 * say which calls: those that query or set what depends on the code (attributes, occupancy) are assumed to. Names, parameters
 * and the module are known from the image in host memory.
 *
 * Each call reserves the most that the function can take, and keeps it if the driver then reports that the function is loaded.
 * If the function has a context of its own, the room is reserved there, and that context is current during the call. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/api_memory.h"
#include "memory/code_room.h"
#include "memory/function.h"
#include "memory/function_table.h"
#include "memory/load.h"
#include "memory/loaded.h"
#include "memory/module.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

CUresult cuModuleGetFunctionCount(unsigned *, CUmodule);

/* Makes a function's own context current. In a green context nothing changes: the code of its primary context is its own. */
static bool visit(CUcontext own)
{
    struct fr_place at;
    bool green;
    if (!own || !fr_load_place(&at, &green) || at.context == own) return false;
    return !REAL(cuCtxPushCurrent_v2)(own);
}

static CUresult back(bool visiting, CUresult r)
{
    CUcontext popped;
    if (visiting) REAL(cuCtxPopCurrent_v2)(&popped);
    return r;
}

/* ---- calls that return or load functions ---- */

static bool is_loaded(CUfunction f)
{
    int state = 1;
    return !fr_driver_has(FR_cuFuncIsLoaded) || REAL(cuFuncIsLoaded)(&state, f) || state != 0;
}

/* Ends a call that returned this function, whether it is now loaded or not. */
static void got(struct fr_load *l, CUresult r, CUfunction f)
{
    bool loaded = !r;
    l->function = f;
    if (!r && fr_may_ask(&l->question)) loaded = is_loaded(f), fr_asked(&l->question);
    fr_load_end(l, r ? 0 : FR_GLOBALS | (loaded ? FR_CODE : 0), loaded ? fr_loaded_of(l->handle, f, &l->question) : (struct fr_count){0});
}

static CUresult load(CUfunction f, uint64_t handle)
{
    struct fr_load l;
    CUresult r = fr_load_begin(&l, handle, FR_LOAD_FUNCTION, f);
    if (r) return r;
    r = REAL(cuFuncLoad)(f);
    if (l.counts) fr_load_end(&l, r ? 0 : FR_CODE | FR_GLOBALS, fr_loaded_of(l.handle, f, &l.question));
    return r;
}

HOOK CUresult cuFuncLoad(CUfunction f)
{
    struct fr_home home = f ? fr_home_of(f) : (struct fr_home){0};
    bool visiting = visit(home.own);
    return back(visiting, load(f, home.handle));
}

/* Drivers before 12.2 load the function here. A driver that has returned a function that is not loaded does not. */
static _Atomic bool loads_nothing;

static CUresult get(CUfunction *out, CUmodule module, const char *name, bool may_load)
{
    struct fr_load l;
    CUresult r = fr_load_begin(&l, may_load ? (uintptr_t)module : 0, FR_LOAD_FUNCTION, NULL);
    if (r) return r;
    CUfunction f = NULL; /* another thread may change what is returned */
    r = REAL(cuModuleGetFunction)(out ? &f : NULL, module, name);
    if (may_load && !r && !is_loaded(f)) atomic_store_explicit(&loads_nothing, true, memory_order_relaxed);
    if (l.counts) got(&l, r, f);
    if (!r && out) *out = f;
    return r;
}

HOOK CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    bool may_load = out && name && !atomic_load_explicit(&loads_nothing, memory_order_relaxed);
    bool visiting = visit(may_load ? fr_module_context((uintptr_t)module) : NULL);
    return back(visiting, get(out, module, name, may_load));
}

/* The function's own module in this context becomes known as another name of the library, and the function as one of this
 * context. */
HOOK CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel)
{
    struct fr_load l;
    CUmodule here;
    CUfunction f = NULL; /* another thread may change what is returned */
    CUresult r = fr_load_begin(&l, out && kernel ? fr_home_of((CUfunction)kernel).handle : 0, FR_LOAD_FUNCTION, (CUfunction)kernel);
    if (r) return r;
    r = REAL(cuKernelGetFunction)(out ? &f : NULL, kernel);
    if (!r && l.handle && fr_driver_has(FR_cuFuncGetModule) && !REAL(cuFuncGetModule)(&here, f) && !fr_module_known((uintptr_t)here))
        fr_module_alias((uintptr_t)here, l.handle, l.at.context);
    if (!r && l.handle) fr_function_got(f, l.handle, l.at.context);
    if (l.counts) got(&l, r, f);
    if (!r && out) *out = f;
    return r;
}

/* ---- calls that query or configure functions ---- */

static bool is_known(CUfunction f)
{
    return atomic_load_explicit(&fr_functions_loaded[FR_FUNCTION_PLACE(f)], memory_order_relaxed) == (uintptr_t)f;
}

static CUresult begin(struct fr_load *l, CUfunction f, bool *visiting)
{
    struct fr_home home = f && !is_known(f) ? fr_home_of(f) : (struct fr_home){0};
    *visiting = visit(home.own);
    CUresult r = fr_load_begin(l, home.handle, FR_LOAD_FUNCTION, f);
    if (home.kernel) l->function = NULL; /* whether a kernel is loaded cannot be queried */
    return r;
}

static CUresult end(struct fr_load *l, CUfunction f, CUresult r)
{
    if (!l->counts) return r;
    CUmodule here = (CUmodule)(uintptr_t)l->handle;
    struct fr_count loaded = {0};
    if (!fr_may_ask(&l->question)) return fr_load_end(l, FR_CODE | FR_GLOBALS, (struct fr_count){0, true}), r;
    bool library = fr_module_is_library(l->handle), made = !library || !REAL(cuLibraryGetModule)(&here, (CUlibrary)(uintptr_t)l->handle);
    if (l->function ? is_loaded(f) : made) loaded = fr_functions_in(here, &l->question);
    fr_asked(&l->question);
    fr_load_end(l, FR_GLOBALS | (loaded.functions || loaded.whole ? FR_CODE : 0), loaded); /* the function may be loaded even after an error */
    return r;
}

#define MAY_LOAD(name, f, parameters, arguments)                       \
    CUresult name parameters;                                          \
    HOOK CUresult name parameters                                      \
    {                                                                  \
        struct fr_load l;                                              \
        bool visiting;                                                 \
        CUresult r = begin(&l, f, &visiting);                          \
        return back(visiting, r ? r : end(&l, f, REAL(name) arguments)); \
    }

MAY_LOAD(cuFuncGetAttribute, f, (int *out, int what, CUfunction f), (out, what, f))
MAY_LOAD(cuFuncSetAttribute, f, (CUfunction f, int what, int value), (f, what, value))
MAY_LOAD(cuFuncSetCacheConfig, f, (CUfunction f, int config), (f, config))
MAY_LOAD(cuFuncSetSharedMemConfig, f, (CUfunction f, int config), (f, config))
MAY_LOAD(cuFuncSetBlockShape, f, (CUfunction f, int x, int y, int z), (f, x, y, z))
MAY_LOAD(cuFuncSetSharedSize, f, (CUfunction f, unsigned bytes), (f, bytes))
MAY_LOAD(cuKernelGetAttribute, (CUfunction)k, (int *out, int what, CUkernel k, CUdevice device), (out, what, k, device))
MAY_LOAD(cuKernelSetAttribute, (CUfunction)k, (int what, int value, CUkernel k, CUdevice device), (what, value, k, device))
MAY_LOAD(cuKernelSetCacheConfig, (CUfunction)k, (CUkernel k, int config, CUdevice device), (k, config, device))
MAY_LOAD(cuOccupancyMaxActiveBlocksPerMultiprocessor, f, (int *out, CUfunction f, int threads, size_t shared), (out, f, threads, shared))
MAY_LOAD(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, f, (int *out, CUfunction f, int threads, size_t shared, unsigned flags),
         (out, f, threads, shared, flags))
MAY_LOAD(cuOccupancyAvailableDynamicSMemPerBlock, f, (size_t *out, CUfunction f, int blocks, int threads), (out, f, blocks, threads))
MAY_LOAD(cuOccupancyMaxPotentialBlockSize, f, (int *grid, int *block, CUfunction f, void *sizes, size_t shared, int limit),
         (grid, block, f, sizes, shared, limit))
MAY_LOAD(cuOccupancyMaxPotentialBlockSizeWithFlags, f, (int *grid, int *block, CUfunction f, void *sizes, size_t shared, int limit, unsigned flags),
         (grid, block, f, sizes, shared, limit, flags))
MAY_LOAD(cuOccupancyMaxPotentialClusterSize, f, (int *out, CUfunction f, const CUlaunchConfig *config), (out, f, config))
MAY_LOAD(cuOccupancyMaxActiveClusters, f, (int *out, CUfunction f, const CUlaunchConfig *config), (out, f, config))
