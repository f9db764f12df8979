/* Stream-ordered memory and its pools: the runtime's forms are the driver's. */
#include "driver.h"

EXPORT cudaError_t cudaMallocAsync(void **out, size_t size, CUstream s)
{
    if (!out) return rt_end(cudaErrorInvalidValue);
    *out = NULL;
    if (!size) return rt_end(rt_enter());
    RETURN(driver.cuMemAllocAsync((CUdeviceptr *)out, size, s));
}

EXPORT cudaError_t cudaMallocFromPoolAsync(void **out, size_t size, CUmemoryPool pool, CUstream s) { RETURN(driver.cuMemAllocFromPoolAsync((CUdeviceptr *)out, size, pool, s)); }
EXPORT cudaError_t cudaFreeAsync(void *at, CUstream s)
{
    if (!at) return rt_end(rt_enter());
    RETURN(driver.cuMemFreeAsync((CUdeviceptr)at, s));
}

EXPORT cudaError_t cudaDeviceGetDefaultMemPool(CUmemoryPool *out, int device) { RETURN_LOADED(driver.cuDeviceGetDefaultMemPool(out, device)); }
EXPORT cudaError_t cudaDeviceGetMemPool(CUmemoryPool *out, int device) { RETURN_LOADED(driver.cuDeviceGetMemPool(out, device)); }
EXPORT cudaError_t cudaDeviceSetMemPool(int device, CUmemoryPool pool) { RETURN_LOADED(driver.cuDeviceSetMemPool(device, pool)); }
EXPORT cudaError_t cudaMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *p) { RETURN_LOADED(driver.cuMemPoolCreate(out, p)); }
EXPORT cudaError_t cudaMemPoolDestroy(CUmemoryPool pool) { RETURN_LOADED(driver.cuMemPoolDestroy(pool)); }
EXPORT cudaError_t cudaMemPoolTrimTo(CUmemoryPool pool, size_t keep) { RETURN_LOADED(driver.cuMemPoolTrimTo(pool, keep)); }
EXPORT cudaError_t cudaMemPoolSetAttribute(CUmemoryPool pool, int what, void *value) { RETURN_LOADED(driver.cuMemPoolSetAttribute(pool, what, value)); }
EXPORT cudaError_t cudaMemPoolGetAttribute(CUmemoryPool pool, int what, void *value) { RETURN_LOADED(driver.cuMemPoolGetAttribute(pool, what, value)); }
EXPORT cudaError_t cudaMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *list, size_t n) { RETURN_LOADED(driver.cuMemPoolSetAccess(pool, list, n)); }
EXPORT cudaError_t cudaMemPoolGetAccess(int *out, CUmemoryPool pool, CUmemLocation *where) { RETURN_LOADED(driver.cuMemPoolGetAccess(out, pool, where)); }
EXPORT cudaError_t cudaMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type, unsigned flags) { RETURN_LOADED(driver.cuMemPoolExportToShareableHandle(out, pool, type, flags)); }
EXPORT cudaError_t cudaMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type, unsigned flags) { RETURN_LOADED(driver.cuMemPoolImportFromShareableHandle(out, handle, type, flags)); }
EXPORT cudaError_t cudaMemPoolExportPointer(CUmemPoolPtrExportData *out, void *at) { RETURN_LOADED(driver.cuMemPoolExportPointer(out, (CUdeviceptr)at)); }
EXPORT cudaError_t cudaMemPoolImportPointer(void **out, CUmemoryPool pool, CUmemPoolPtrExportData *data) { RETURN_LOADED(driver.cuMemPoolImportPointer((CUdeviceptr *)out, pool, data)); }
