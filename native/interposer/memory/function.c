/* The first use of a function makes the driver load its code. Launches ask fr_function_used first, which costs a look into a
 * small table of functions whose code is known to be there; the others come here once, and the code is loaded and charged
 * before the launch, so that a launch beyond the quota is answered with out of memory. */
#include "api_memory.h"
#include "context.h"
#include "module.h"

FR_LARGE _Atomic uintptr_t fr_functions_loaded[FR_FUNCTION_PLACES];
static _Atomic uint32_t known_in;

CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuLaunchKernelEx(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **);
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **);
CUresult cuGraphAddKernelNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphAddKernelNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *);

void fr_functions_forget(void)
{
    for (int i = 0; i < FR_FUNCTION_PLACES; i++) atomic_store_explicit(&fr_functions_loaded[i], 0, memory_order_relaxed);
}

/* The module or library that it is from; 0: cannot be told. */
static uint64_t home_of(CUfunction f)
{
    CUmodule module = NULL;
    if (fr_has(FR_cuFuncGetModule) && !REAL(cuFuncGetModule)(&module, f)) return (uintptr_t)module;
    if (fr_has(FR_cuKernelGetLibrary) && !REAL(cuKernelGetLibrary)(&module, (CUkernel)f)) return (uintptr_t)module;
    return 0;
}

static CUresult load(struct fr_loading *c) { return fr_has(FR_cuFuncLoad) ? REAL(cuFuncLoad)(c->function) : CUDA_SUCCESS; }
static CUresult get_function(struct fr_loading *c) { return REAL(cuKernelGetFunction)(c->out, c->kernel); }
static CUresult nothing(struct fr_loading *c) { return (void)c, CUDA_SUCCESS; }

CUresult fr_function_load(CUfunction f)
{
    if (!f) return CUDA_SUCCESS; /* the driver has an answer to that */
    if (fr_function_first(f)) return CUDA_ERROR_OUT_OF_MEMORY; /* its stack, and where it came from: context.h */
    uint32_t era = atomic_load(&fr_era);
    if (atomic_exchange(&known_in, era) != era) fr_functions_forget();
    struct fr_loading c = {.go = load, .handle = home_of(f), .parts = FR_CODE | FR_GLOBALS, .function = f};
    CUresult r = c.handle ? fr_module_load_parts(&c) : nothing(&c);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) return r;
    /* A library's code is loaded in each context anew: its functions are looked at each time. */
    if (!r && !fr_module_is_library(c.handle)) atomic_store_explicit(&fr_functions_loaded[FR_FUNCTION_PLACE(f)], (uintptr_t)f, memory_order_relaxed);
    return CUDA_SUCCESS;
}

HOOK CUresult cuFuncLoad(CUfunction f)
{
    struct fr_loading c = {.go = load, .handle = f ? home_of(f) : 0, .parts = FR_CODE | FR_GLOBALS, .function = f};
    return c.handle ? fr_module_load_parts(&c) : REAL(cuFuncLoad)(f);
}

HOOK CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel)
{
    struct fr_loading c = {.go = get_function, .handle = kernel ? home_of((CUfunction)kernel) : 0, .parts = FR_CODE | FR_GLOBALS,
                           .out = out, .kernel = kernel};
    return out && c.handle ? fr_module_load_parts(&c) : REAL(cuKernelGetFunction)(out, kernel);
}

/* ---- kernels of graphs; those that are launched: launch.c ---- */

HOOK CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
    CUresult r = params ? fr_function_used(params->func) : CUDA_SUCCESS;
    return r ? r : REAL(cuGraphAddKernelNode)(out, graph, after, count, params);
}

HOOK CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
    CUresult r = params ? fr_function_used(params->func ? params->func : (CUfunction)params->kern) : CUDA_SUCCESS;
    return r ? r : REAL(cuGraphAddKernelNode_v2)(out, graph, after, count, params);
}
