/* Copies and fills. The direction chooses the driver's call; "default" leaves the choice to the addresses. */
#include "driver.h"

#include <string.h>

static cudaError_t copy(void *to, const void *from, size_t size, int kind)
{
    CUdeviceptr there = (CUdeviceptr)to, here = (CUdeviceptr)from;
    if (!size) return cudaSuccess;
    switch (kind) {
    case cudaMemcpyHostToDevice: return driver.cuMemcpyHtoD(there, from, size);
    case cudaMemcpyDeviceToHost: return driver.cuMemcpyDtoH(to, here, size);
    case cudaMemcpyDeviceToDevice: return driver.cuMemcpyDtoD(there, here, size);
    case cudaMemcpyDefault: return driver.cuMemcpy(there, here, size);
    case cudaMemcpyHostToHost: return memcpy(to, from, size), cudaSuccess;
    default: return cudaErrorInvalidMemcpyDirection;
    }
}

static cudaError_t copy_async(void *to, const void *from, size_t size, int kind, CUstream s)
{
    CUdeviceptr there = (CUdeviceptr)to, here = (CUdeviceptr)from;
    if (!size) return cudaSuccess;
    switch (kind) {
    case cudaMemcpyHostToDevice: return driver.cuMemcpyHtoDAsync(there, from, size, s);
    case cudaMemcpyDeviceToHost: return driver.cuMemcpyDtoHAsync(to, here, size, s);
    case cudaMemcpyDeviceToDevice: return driver.cuMemcpyDtoDAsync(there, here, size, s);
    case cudaMemcpyDefault:
    case cudaMemcpyHostToHost: return driver.cuMemcpyAsync(there, here, size, s);
    default: return cudaErrorInvalidMemcpyDirection;
    }
}

EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t size, int kind) { RETURN(copy(to, from, size, kind)); }
EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, CUstream s) { RETURN(copy_async(to, from, size, kind, s)); }

/* ---- between devices: by their primary contexts ---- */

static cudaError_t peers(int a, int b, CUcontext *ca, CUcontext *cb)
{
    cudaError_t e = driver.cuDevicePrimaryCtxRetain(ca, a);
    return e ? e : driver.cuDevicePrimaryCtxRetain(cb, b);
}

static cudaError_t copy_peer(void *to, int a, const void *from, int b, size_t size, CUstream s, bool wait)
{
    CUcontext ca, cb;
    cudaError_t e = peers(a, b, &ca, &cb);
    if (e) return e;
    return wait ? driver.cuMemcpyPeer((CUdeviceptr)to, ca, (CUdeviceptr)from, cb, size) : driver.cuMemcpyPeerAsync((CUdeviceptr)to, ca, (CUdeviceptr)from, cb, size, s);
}

EXPORT cudaError_t cudaMemcpyPeer(void *to, int a, const void *from, int b, size_t size) { RETURN(copy_peer(to, a, from, b, size, NULL, true)); }
EXPORT cudaError_t cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t size, CUstream s) { RETURN(copy_peer(to, a, from, b, size, s, false)); }

/* ---- in two and three dimensions ---- */

static int memory_type(int kind, bool source)
{
    if (kind == cudaMemcpyDefault) return CU_MEMORYTYPE_UNIFIED;
    bool host = source ? kind == cudaMemcpyHostToDevice : kind == cudaMemcpyDeviceToHost;
    return host || kind == cudaMemcpyHostToHost ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

static CUDA_MEMCPY2D plane(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind)
{
    return (CUDA_MEMCPY2D){.srcMemoryType = memory_type(kind, true), .srcHost = from, .srcDevice = (CUdeviceptr)from, .srcPitch = from_pitch,
                           .dstMemoryType = memory_type(kind, false), .dstHost = to, .dstDevice = (CUdeviceptr)to, .dstPitch = to_pitch,
                           .WidthInBytes = width, .Height = height};
}

EXPORT cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind)
{
    CUDA_MEMCPY2D p = plane(to, to_pitch, from, from_pitch, width, height, kind);
    RETURN(driver.cuMemcpy2DUnaligned(&p));
}

EXPORT cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind, CUstream s)
{
    CUDA_MEMCPY2D p = plane(to, to_pitch, from, from_pitch, width, height, kind);
    RETURN(driver.cuMemcpy2DAsync(&p, s));
}

CUDA_MEMCPY3D rt_copy_3d(const struct cudaMemcpy3DParms *p)
{
    return (CUDA_MEMCPY3D){
        .srcXInBytes = p->srcPos.x, .srcY = p->srcPos.y, .srcZ = p->srcPos.z, .srcHost = p->srcPtr.ptr, .srcDevice = (CUdeviceptr)p->srcPtr.ptr,
        .srcMemoryType = p->srcArray ? CU_MEMORYTYPE_ARRAY : memory_type(p->kind, true), .srcArray = p->srcArray, .srcPitch = p->srcPtr.pitch,
        .srcHeight = p->srcPtr.ysize, .dstXInBytes = p->dstPos.x, .dstY = p->dstPos.y, .dstZ = p->dstPos.z, .dstHost = p->dstPtr.ptr,
        .dstDevice = (CUdeviceptr)p->dstPtr.ptr, .dstMemoryType = p->dstArray ? CU_MEMORYTYPE_ARRAY : memory_type(p->kind, false),
        .dstArray = p->dstArray, .dstPitch = p->dstPtr.pitch, .dstHeight = p->dstPtr.ysize, .WidthInBytes = p->extent.width,
        .Height = p->extent.height, .Depth = p->extent.depth};
}

EXPORT cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms *p)
{
    CUDA_MEMCPY3D c = rt_copy_3d(p);
    RETURN(driver.cuMemcpy3D(&c));
}

EXPORT cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *p, CUstream s)
{
    CUDA_MEMCPY3D c = rt_copy_3d(p);
    RETURN(driver.cuMemcpy3DAsync(&c, s));
}

/* ---- fills ---- */

EXPORT cudaError_t cudaMemset(void *at, int value, size_t size) { RETURN(size ? driver.cuMemsetD8((CUdeviceptr)at, (unsigned char)value, size) : 0); }
EXPORT cudaError_t cudaMemsetAsync(void *at, int value, size_t size, CUstream s) { RETURN(size ? driver.cuMemsetD8Async((CUdeviceptr)at, (unsigned char)value, size, s) : 0); }
EXPORT cudaError_t cudaMemset2D(void *at, size_t pitch, int value, size_t width, size_t height) { RETURN(driver.cuMemsetD2D8((CUdeviceptr)at, pitch, (unsigned char)value, width, height)); }
EXPORT cudaError_t cudaMemset2DAsync(void *at, size_t pitch, int value, size_t width, size_t height, CUstream s)
{
    RETURN(driver.cuMemsetD2D8Async((CUdeviceptr)at, pitch, (unsigned char)value, width, height, s));
}

/* ---- variables of the device, by their host symbols ---- */

static cudaError_t symbol(const void *host, size_t offset, size_t size, char **at)
{
    CUdeviceptr begin;
    size_t room;
    cudaError_t e = rt_variable(host, &begin, &room);
    if (e) return e;
    *at = (char *)begin + offset;
    return offset + size > room ? cudaErrorInvalidValue : cudaSuccess;
}

static cudaError_t to_symbol(const void *host, const void *from, size_t size, size_t offset, int kind)
{
    char *at;
    cudaError_t e = symbol(host, offset, size, &at);
    return e ? e : copy(at, from, size, kind);
}

static cudaError_t from_symbol(void *to, const void *host, size_t size, size_t offset, int kind)
{
    char *at;
    cudaError_t e = symbol(host, offset, size, &at);
    return e ? e : copy(to, at, size, kind);
}

EXPORT cudaError_t cudaMemcpyToSymbol(const void *host, const void *from, size_t size, size_t offset, int kind) { RETURN(to_symbol(host, from, size, offset, kind)); }
EXPORT cudaError_t cudaMemcpyFromSymbol(void *to, const void *host, size_t size, size_t offset, int kind) { RETURN(from_symbol(to, host, size, offset, kind)); }
EXPORT cudaError_t cudaGetSymbolAddress(void **out, const void *host)
{
    size_t size;
    RETURN(rt_variable(host, (CUdeviceptr *)out, &size));
}
EXPORT cudaError_t cudaGetSymbolSize(size_t *out, const void *host)
{
    CUdeviceptr at;
    RETURN(rt_variable(host, &at, out));
}
