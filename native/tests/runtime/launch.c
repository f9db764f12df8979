/* Launches of kernels, and facts about them. */
#include "driver.h"

#include <string.h>

/* The arguments between <<< and >>> are stored here for the stub that the compiler made. */
static __thread struct { dim3 grid, block; size_t shared; CUstream stream; } pushed[8];
static __thread unsigned depth;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream stream)
{
    if (depth == sizeof pushed / sizeof *pushed) return 1;
    pushed[depth].grid = grid, pushed[depth].block = block, pushed[depth].shared = shared, pushed[depth].stream = stream;
    depth++;
    return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    if (!depth) return rt_end(52); /* cudaErrorMissingConfiguration */
    depth--;
    *grid = pushed[depth].grid, *block = pushed[depth].block, *shared = pushed[depth].shared;
    *(CUstream *)stream = pushed[depth].stream;
    return cudaSuccess;
}

static cudaError_t launch(const void *host, dim3 g, dim3 b, void **arguments, size_t shared, CUstream s)
{
    CUfunction f;
    cudaError_t e = rt_kernel(host, &f);
    return e ? e : driver.cuLaunchKernel(f, g.x, g.y, g.z, b.x, b.y, b.z, (unsigned)shared, s, arguments, NULL);
}

static cudaError_t cooperative(const void *host, dim3 g, dim3 b, void **arguments, size_t shared, CUstream s)
{
    CUfunction f;
    cudaError_t e = rt_kernel(host, &f);
    return e ? e : driver.cuLaunchCooperativeKernel(f, g.x, g.y, g.z, b.x, b.y, b.z, (unsigned)shared, s, arguments);
}

static cudaError_t extended(const cudaLaunchConfig_t *c, const void *host, void **arguments)
{
    CUfunction f;
    if (!c) return cudaErrorInvalidValue;
    cudaError_t e = rt_kernel(host, &f);
    CUlaunchConfig d = {c->grid.x, c->grid.y, c->grid.z, c->block.x, c->block.y, c->block.z, (unsigned)c->shared, c->stream, c->attributes, c->attribute_count};
    return e ? e : driver.cuLaunchKernelEx(&d, f, arguments, NULL);
}

EXPORT cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t shared, CUstream s) { RETURN(launch(f, g, b, a, shared, s)); }
EXPORT cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 g, dim3 b, void **a, size_t shared, CUstream s) { RETURN(cooperative(f, g, b, a, shared, s)); }
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **a) { RETURN(extended(c, f, a)); }

/* Since version 13, start-up code looks the kernel up once and launches the result. */
EXPORT cudaError_t __cudaGetKernel(CUkernel *out, const void *host) { RETURN(rt_kernel(host, (CUfunction *)out)); }
EXPORT cudaError_t cudaGetKernel(CUkernel *out, const void *host) { RETURN(rt_kernel(host, (CUfunction *)out)); }
EXPORT cudaError_t __cudaLaunchKernel(CUkernel k, dim3 g, dim3 b, void **a, size_t shared, CUstream s)
{
    RETURN(driver.cuLaunchKernel((CUfunction)k, g.x, g.y, g.z, b.x, b.y, b.z, (unsigned)shared, s, a, NULL));
}

static cudaError_t function_of(const void *host, CUfunction *out)
{
    CUfunction k;
    cudaError_t e = rt_kernel(host, &k);
    return e ? e : driver.cuKernelGetFunction(out, (CUkernel)k);
}

EXPORT cudaError_t cudaGetFuncBySymbol(CUfunction *out, const void *host) { RETURN(function_of(host, out)); }

static cudaError_t attributes(struct cudaFuncAttributes *out, const void *host)
{
    CUfunction f;
    int v[10];
    cudaError_t e = function_of(host, &f);
    for (int i = 0; !e && i < 10; i++) e = driver.cuFuncGetAttribute(&v[i], i, f);
    if (e) return e;
    *out = (struct cudaFuncAttributes){.maxThreadsPerBlock = v[0], .sharedSizeBytes = (size_t)v[1], .constSizeBytes = (size_t)v[2], .localSizeBytes = (size_t)v[3],
                                       .numRegs = v[4], .ptxVersion = v[5], .binaryVersion = v[6], .cacheModeCA = v[7], .maxDynamicSharedSizeBytes = v[8],
                                       .preferredShmemCarveout = v[9]};
    return cudaSuccess;
}

static cudaError_t set_attribute(const void *host, int what, int value)
{
    CUfunction k;
    cudaError_t e = rt_kernel(host, &k);
    return e ? e : driver.cuKernelSetAttribute(what, value, (CUkernel)k, rt_device());
}

static cudaError_t occupancy(int *out, const void *host, int block, size_t shared, unsigned flags)
{
    CUfunction f;
    cudaError_t e = function_of(host, &f);
    return e ? e : driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, f, block, shared, flags);
}

static cudaError_t cache(const void *host, int config)
{
    CUfunction f;
    cudaError_t e = function_of(host, &f);
    return e ? e : driver.cuFuncSetCacheConfig(f, config);
}

EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *f) { RETURN(attributes(out, f)); }
EXPORT cudaError_t cudaFuncSetAttribute(const void *f, int what, int value) { RETURN(set_attribute(f, what, value)); }
EXPORT cudaError_t cudaFuncSetCacheConfig(const void *f, int config) { RETURN(cache(f, config)); }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *f, int block, size_t shared) { RETURN(occupancy(out, f, block, shared, 0)); }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *f, int block, size_t shared, unsigned flags)
{
    RETURN(occupancy(out, f, block, shared, flags));
}
