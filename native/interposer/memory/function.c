/* The first use of a function makes the driver load its code. Before a launch it is loaded, and charged, here, so that a launch
 * beyond the quota is answered with out of memory. Two tables say for which functions that is done:
 *
 *      fr_functions_loaded   functions, which belong to one context
 *      loaded_where          kernels of libraries, which run in every context: with the place where they are launched, a
 *                            stream, or the current context for the streams that every context has
 *
 * A table is a memory of what is surely loaded, no more: what was pushed out by another function is looked up again. */
#include "memory/function.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/function_table.h"
#include "memory/loaded.h"
#include "memory/unseen.h"
#include "pacing/api_launch.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLACES 4096
#define LAST_COMMON_STREAM 2 /* NULL, legacy, per thread */

FR_LARGE _Atomic uintptr_t fr_functions_loaded[FR_FUNCTION_PLACES];

struct loaded {
    _Atomic uint32_t writes; /* odd: being written */
    _Atomic uint32_t streams; /* generation of the streams' handles when it was written */
    _Atomic uintptr_t function, where;
};
static FR_LARGE struct loaded loaded_where[PLACES];
static _Atomic uint32_t known_in, streams;
static struct fr_lock lock;

CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuGraphAddKernelNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphAddKernelNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuStreamGetCtx(CUstream, CUcontext *);
CUresult cuStreamDestroy(CUstream);
CUresult cuStreamDestroy_v2(CUstream);

/* ---- the tables ---- */

static struct loaded *place_of(uintptr_t function, uintptr_t where)
{
    uint64_t x = (function ^ where << 7) * 0x9E3779B97F4A7C15ull;
    return &loaded_where[x >> 52];
}

static bool is_loaded(uintptr_t function, uintptr_t where)
{
    struct loaded *l = place_of(function, where);
    uint32_t before = atomic_load_explicit(&l->writes, memory_order_acquire);
    bool same = atomic_load_explicit(&l->function, memory_order_relaxed) == function && atomic_load_explicit(&l->where, memory_order_relaxed) == where &&
                atomic_load_explicit(&l->streams, memory_order_relaxed) == atomic_load_explicit(&streams, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    return same && !(before & 1) && atomic_load_explicit(&l->writes, memory_order_relaxed) == before;
}

static void write_place(struct loaded *l, uintptr_t function, uintptr_t where, uint32_t generation)
{
    atomic_fetch_add_explicit(&l->writes, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&l->function, function, memory_order_relaxed);
    atomic_store_explicit(&l->where, where, memory_order_relaxed);
    atomic_store_explicit(&l->streams, generation, memory_order_relaxed);
    atomic_fetch_add_explicit(&l->writes, 1, memory_order_release);
}

void fr_functions_forget(void)
{
    fr_lock(&lock);
    for (int i = 0; i < FR_FUNCTION_PLACES; i++) atomic_store_explicit(&fr_functions_loaded[i], 0, memory_order_relaxed);
    for (int i = 0; i < PLACES; i++)
        if (atomic_load_explicit(&loaded_where[i].function, memory_order_relaxed)) write_place(&loaded_where[i], 0, 0, 0);
    fr_unlock(&lock);
}

void fr_functions_stream_gone(void) { atomic_fetch_add(&streams, 1); }

/* ---- where a function is from ---- */

struct home {
    uint64_t handle; /* a module or library that we know; 0: none */
    bool kernel;     /* it is a handle of a library's kernel, which stands for a function in every context */
};

static struct home home_of(CUfunction f)
{
    CUmodule from = NULL;
    struct home home = {0};
    if (fr_driver_has(FR_cuFuncGetModule) && !REAL(cuFuncGetModule)(&from, f) && fr_module_known((uintptr_t)from)) home.handle = (uintptr_t)from;
    if (home.handle && !fr_module_is_library(home.handle)) return home;
    if (!fr_driver_has(FR_cuKernelGetLibrary) || REAL(cuKernelGetLibrary)(&from, (CUkernel)f) || !fr_module_known((uintptr_t)from)) return home;
    return (struct home){(uintptr_t)from, true};
}

/* ---- loading ---- */

/* What cannot be loaded now may be loaded by the launch: it stays charged. */
static CUresult load_function(struct fr_loading *c)
{
    CUresult r = fr_driver_has(FR_cuFuncLoad) ? REAL(cuFuncLoad)(c->function) : CUDA_SUCCESS;
    return r == CUDA_ERROR_OUT_OF_MEMORY ? r : CUDA_SUCCESS;
}

static CUresult load_kernel(struct fr_loading *c)
{
    CUfunction here = NULL;
    CUresult r = REAL(cuKernelGetFunction)(&here, (CUkernel)c->function);
    if (!r && fr_driver_has(FR_cuFuncLoad)) r = REAL(cuFuncLoad)(here);
    return r == CUDA_ERROR_OUT_OF_MEMORY ? r : CUDA_SUCCESS;
}

static CUresult load(CUfunction f, struct home home)
{
    CUresult r = fr_function_first_use(f); /* its stack, and where it came from: context.h */
    if (r) return r;
    struct fr_loading c = {.go = home.kernel ? load_kernel : load_function, .handle = home.handle, .parts = FR_CODE | FR_GLOBALS, .function = f};
    return home.handle ? fr_load_parts(&c) : CUDA_SUCCESS;
}

/* In the stream's context, which need not be the current one. */
static CUresult load_for(CUfunction f, struct home home, CUstream stream)
{
    CUcontext there = NULL, before = NULL;
    bool elsewhere = (uintptr_t)stream > LAST_COMMON_STREAM && !REAL(cuStreamGetCtx)(stream, &there) && !REAL(cuCtxGetCurrent)(&before) && there != before;
    if (elsewhere && REAL(cuCtxPushCurrent_v2)(there)) return CUDA_ERROR_INVALID_CONTEXT; /* the driver will say what is wrong */
    CUresult r = load(f, home);
    if (elsewhere) REAL(cuCtxPopCurrent_v2)(&there);
    return r;
}

static void remember(CUfunction f, struct home home, uintptr_t where, uint32_t generation)
{
    fr_lock(&lock);
    bool everywhere = home.handle && fr_module_is_library(home.handle) && (home.kernel || !fr_driver_has(FR_cuKernelGetLibrary));
    if (everywhere) write_place(place_of((uintptr_t)f, where), (uintptr_t)f, where, generation);
    else atomic_store_explicit(&fr_functions_loaded[FR_FUNCTION_PLACE(f)], (uintptr_t)f, memory_order_relaxed);
    fr_unlock(&lock);
}

static CUresult first_use(CUfunction f, CUstream stream, uintptr_t where)
{
    uint32_t era = atomic_load(&fr_era), generation = atomic_load(&streams);
    if (atomic_exchange(&known_in, era) != era) fr_functions_forget();
    struct home home = home_of(f);
    CUresult r = load_for(f, home, stream);
    if (!r) remember(f, home, where, generation);
    return r == CUDA_ERROR_OUT_OF_MEMORY ? r : CUDA_SUCCESS;
}

CUresult fr_kernel_used(CUfunction f, CUstream stream)
{
    CUcontext current = NULL;
    if (!f) return CUDA_SUCCESS; /* the driver has an answer to that */
    uintptr_t where = (uintptr_t)stream;
    if (where <= LAST_COMMON_STREAM) {
        if (REAL(cuCtxGetCurrent)(&current)) return CUDA_SUCCESS;
        where = (uintptr_t)current;
    }
    return likely(is_loaded((uintptr_t)f, where)) ? CUDA_SUCCESS : first_use(f, stream, where);
}

/* ---- calls that load a function, or may: drivers before 12.2 loaded it with cuModuleGetFunction ---- */

static CUresult func_load(struct fr_loading *c) { return REAL(cuFuncLoad)(c->function); }
static CUresult kernel_function(struct fr_loading *c) { return REAL(cuKernelGetFunction)(c->out, c->kernel); }
static CUresult module_function(struct fr_loading *c) { return REAL(cuModuleGetFunction)(c->out, c->module, c->name); }

static int if_it_is_loaded(struct fr_loading *c)
{
    int state = 1;
    bool loaded = !fr_driver_has(FR_cuFuncIsLoaded) || REAL(cuFuncIsLoaded)(&state, *c->out) || state != 0;
    return loaded ? c->parts : c->parts & FR_GLOBALS;
}

HOOK CUresult cuFuncLoad(CUfunction f)
{
    struct home home = f ? home_of(f) : (struct home){0};
    struct fr_loading c = {.go = func_load, .handle = home.handle, .parts = FR_CODE | FR_GLOBALS, .function = f};
    return home.handle ? fr_load_parts(&c) : REAL(cuFuncLoad)(f);
}

HOOK CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel)
{
    struct home home = kernel ? home_of((CUfunction)kernel) : (struct home){0};
    struct fr_loading c = {.go = kernel_function, .loaded = if_it_is_loaded, .handle = home.handle, .parts = FR_CODE | FR_GLOBALS,
                           .out = out, .kernel = kernel};
    return out && home.handle ? fr_load_parts(&c) : REAL(cuKernelGetFunction)(out, kernel);
}

HOOK CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    struct fr_loading c = {.go = module_function, .loaded = if_it_is_loaded, .handle = (uintptr_t)module, .parts = FR_CODE | FR_GLOBALS,
                           .out = out, .module = module, .name = name};
    return out && module ? fr_load_parts(&c) : REAL(cuModuleGetFunction)(out, module, name);
}

/* ---- kernels of graphs; those that are launched: launch.c ---- */

HOOK CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
    CUresult r = params ? fr_function_used(params->func, NULL) : CUDA_SUCCESS;
    return r ? r : REAL(cuGraphAddKernelNode)(out, graph, after, count, params);
}

HOOK CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
    CUresult r = params ? fr_function_used(params->func ? params->func : (CUfunction)params->kern, NULL) : CUDA_SUCCESS;
    return r ? r : REAL(cuGraphAddKernelNode_v2)(out, graph, after, count, params);
}
