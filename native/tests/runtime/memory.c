/* Memory of device and host, and facts about pointers. */
#include "driver.h"

EXPORT cudaError_t cudaMalloc(void **out, size_t size)
{
    if (!out) return rt_end(cudaErrorInvalidValue);
    *out = NULL;
    if (!size) return rt_end(rt_enter()); /* unlike the driver, which refuses size 0 */
    RETURN(driver.cuMemAlloc((CUdeviceptr *)out, size));
}

EXPORT cudaError_t cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height) { RETURN(driver.cuMemAllocPitch((CUdeviceptr *)out, pitch, width, height, 4)); }
EXPORT cudaError_t cudaMallocManaged(void **out, size_t size, unsigned flags) { RETURN(driver.cuMemAllocManaged((CUdeviceptr *)out, size, flags)); }

EXPORT cudaError_t cudaFree(void *at)
{
    if (!at) return rt_end(rt_enter());
    RETURN(driver.cuMemFree((CUdeviceptr)at));
}

EXPORT cudaError_t cudaMallocHost(void **out, size_t size) { RETURN(driver.cuMemHostAlloc(out, size, 0)); }
EXPORT cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags) { RETURN(driver.cuMemHostAlloc(out, size, flags)); }
EXPORT cudaError_t cudaFreeHost(void *at)
{
    if (!at) return rt_end(rt_enter());
    RETURN(driver.cuMemFreeHost(at));
}
EXPORT cudaError_t cudaHostRegister(void *at, size_t size, unsigned flags) { RETURN(driver.cuMemHostRegister(at, size, flags)); }
EXPORT cudaError_t cudaHostUnregister(void *at) { RETURN(driver.cuMemHostUnregister(at)); }
EXPORT cudaError_t cudaHostGetDevicePointer(void **out, void *at, unsigned flags) { RETURN(driver.cuMemHostGetDevicePointer((CUdeviceptr *)out, at, flags)); }
EXPORT cudaError_t cudaHostGetFlags(unsigned *out, void *at) { RETURN(driver.cuMemHostGetFlags(out, at)); }

enum { MEMORY_TYPE = 2, DEVICE_POINTER, HOST_POINTER, IS_MANAGED = 8, DEVICE_ORDINAL };

/* A pointer that the driver does not know gives a valid answer, not an error. */
static cudaError_t pointer(struct cudaPointerAttributes *out, const void *at)
{
    unsigned type = 0, managed = 0;
    int device = -2, what[] = {MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, IS_MANAGED, DEVICE_ORDINAL};
    void *on_device = NULL, *on_host = NULL, *into[] = {&type, &on_device, &on_host, &managed, &device};
    if (!out) return cudaErrorInvalidValue;
    cudaError_t e = driver.cuPointerGetAttributes(5, what, into, (CUdeviceptr)at);
    if (e) return e;
    if (!type) *out = (struct cudaPointerAttributes){.type = cudaMemoryTypeUnregistered, .device = -2, .hostPointer = (void *)at};
    else *out = (struct cudaPointerAttributes){.type = managed ? cudaMemoryTypeManaged : (int)type, .device = device, .devicePointer = on_device, .hostPointer = on_host};
    return cudaSuccess;
}

EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *at) { RETURN(pointer(out, at)); }

#if RUNTIME == 12
EXPORT cudaError_t cudaMemPrefetchAsync(const void *at, size_t size, int device, CUstream s) { RETURN(driver.cuMemPrefetchAsync((CUdeviceptr)at, size, device, s)); }
#endif

/* ---- between processes ---- */

EXPORT cudaError_t cudaIpcGetMemHandle(CUipcMemHandle *out, void *at) { RETURN(driver.cuIpcGetMemHandle(out, (CUdeviceptr)at)); }
EXPORT cudaError_t cudaIpcOpenMemHandle(void **out, CUipcMemHandle handle, unsigned flags) { RETURN(driver.cuIpcOpenMemHandle((CUdeviceptr *)out, handle, flags)); }
EXPORT cudaError_t cudaIpcCloseMemHandle(void *at) { RETURN(driver.cuIpcCloseMemHandle((CUdeviceptr)at)); }
EXPORT cudaError_t cudaIpcGetEventHandle(CUipcEventHandle *out, CUevent event) { RETURN(driver.cuIpcGetEventHandle(out, event)); }
EXPORT cudaError_t cudaIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle) { RETURN(driver.cuIpcOpenEventHandle(out, handle)); }
