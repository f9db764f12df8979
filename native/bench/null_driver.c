/* A driver that does nothing and shares no state between processes: if many processes wait with it, they wait for the library alone. (With
 * simgpu, as with a real driver, processes wait for each other.) It has one card, GPU-00000000-0000-4000-8000-00000000be0c. */
#include "cuda_abi.h"

#include <string.h>

#define API __attribute__((visibility("default")))
#define GIB (1ull << 30)

static char the_context;
static CUdeviceptr next = 1ull << 40;

API CUresult cuInit(unsigned flags) { return (void)flags, 0; }
API CUresult cuDriverGetVersion(int *out) { return *out = 13050, 0; }
API CUresult cuDeviceGetCount(int *out) { return *out = 1, 0; }
API CUresult cuDeviceGet(CUdevice *out, int ordinal) { return *out = 0, ordinal ? CUDA_ERROR_INVALID_DEVICE : 0; }
API CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device) { return *out = 40 * GIB, device ? CUDA_ERROR_INVALID_DEVICE : 0; }
API CUresult cuMemGetInfo_v2(size_t *out, size_t *total) { return *out = *total = 40 * GIB, 0; }
API CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) { return (void)flags, (void)device, *out = (void *)&the_context, 0; }
API CUresult cuCtxGetCurrent(CUcontext *out) { return *out = (void *)&the_context, 0; }
API CUresult cuCtxGetDevice(CUdevice *out) { return *out = 0, 0; }
API CUresult cuMemFree_v2(CUdeviceptr pointer) { return (void)pointer, 0; }

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
    *out = next;
    next += (size + 0x1fffff) & ~0x1fffffull;
    return 0;
}

API CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice device)
{
    static const char bytes[16] = {0, 0, 0, 0, 0, 0, 0x40, 0, (char)0x80, 0, 0, 0, 0, 0, (char)0xbe, 0x0c};
    memcpy(out->bytes, bytes, sizeof bytes);
    return device ? CUDA_ERROR_INVALID_DEVICE : 0;
}
API CUresult cuDeviceGetUuid(CUuuid *out, CUdevice device) { return cuDeviceGetUuid_v2(out, device); }
