/* Facts about devices. The runtime's numbers of attributes are the driver's. */
#include "driver.h"
#include "properties.h"

#include <string.h>

EXPORT cudaError_t cudaGetDeviceCount(int *out)
{
    if (!out) return rt_end(cudaErrorInvalidValue);
    *out = 0;
    RETURN_LOADED(driver.cuDeviceGetCount(out));
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *out, int what, int device) { RETURN_LOADED(driver.cuDeviceGetAttribute(out, what, device)); }
EXPORT cudaError_t cudaDeviceGetPCIBusId(char *out, int size, int device) { RETURN_LOADED(driver.cuDeviceGetPCIBusId(out, size, device)); }
EXPORT cudaError_t cudaDeviceGetByPCIBusId(int *out, const char *id) { RETURN_LOADED(driver.cuDeviceGetByPCIBusId(out, id)); }
EXPORT cudaError_t cudaDeviceCanAccessPeer(int *out, int a, int b) { RETURN_LOADED(driver.cuDeviceCanAccessPeer(out, a, b)); }
EXPORT cudaError_t cudaDeviceGetP2PAttribute(int *out, int what, int a, int b) { RETURN_LOADED(driver.cuDeviceGetP2PAttribute(out, what, a, b)); }
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { RETURN(driver.cuCtxGetStreamPriorityRange(least, greatest)); }
EXPORT cudaError_t cudaDeviceSynchronize(void) { RETURN(driver.cuCtxSynchronize()); }
EXPORT cudaError_t cudaDeviceGetLimit(size_t *out, int what) { RETURN(driver.cuCtxGetLimit(out, what)); }
EXPORT cudaError_t cudaDeviceSetLimit(int what, size_t value) { RETURN(driver.cuCtxSetLimit(what, value)); }
EXPORT cudaError_t cudaMemGetInfo(size_t *free, size_t *total) { RETURN(driver.cuMemGetInfo(free, total)); }

static cudaError_t peer(int device, CUresult (*call)(CUcontext))
{
    CUcontext context;
    cudaError_t e = driver.cuDevicePrimaryCtxRetain(&context, device);
    return e ? e : call(context);
}

static CUresult enable(CUcontext context) { return driver.cuCtxEnablePeerAccess(context, 0); }
EXPORT cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned flags) { (void)flags; RETURN(peer(device, enable)); }
EXPORT cudaError_t cudaDeviceDisablePeerAccess(int device) { RETURN(peer(device, driver.cuCtxDisablePeerAccess)); }

EXPORT cudaError_t cudaGetDeviceFlags(unsigned *out)
{
    int active;
    RETURN_LOADED(driver.cuDevicePrimaryCtxGetState(rt_device(), out, &active));
}
EXPORT cudaError_t cudaSetDeviceFlags(unsigned flags) { RETURN_LOADED(driver.cuDevicePrimaryCtxSetFlags(rt_device(), flags)); }

/* ---- properties: attributes, each at its place ---- */

#define AT(field, index, attribute) {offsetof(struct cudaDeviceProp, field) + sizeof(int) * (index), attribute}
static const struct { size_t offset; int attribute; } ints[] = {
    AT(regsPerBlock, 0, 12), AT(warpSize, 0, 10), AT(maxThreadsPerBlock, 0, 1), AT(maxThreadsDim, 0, 2), AT(maxThreadsDim, 1, 3),
    AT(maxThreadsDim, 2, 4), AT(maxGridSize, 0, 5), AT(maxGridSize, 1, 6), AT(maxGridSize, 2, 7), AT(major, 0, 75), AT(minor, 0, 76),
    AT(multiProcessorCount, 0, 16), AT(integrated, 0, 18), AT(canMapHostMemory, 0, 19), AT(concurrentKernels, 0, 31), AT(ECCEnabled, 0, 32),
    AT(pciBusID, 0, 33), AT(pciDeviceID, 0, 34), AT(pciDomainID, 0, 50), AT(asyncEngineCount, 0, 40), AT(unifiedAddressing, 0, 41),
    AT(memoryBusWidth, 0, 37), AT(l2CacheSize, 0, 38), AT(maxThreadsPerMultiProcessor, 0, 39), AT(streamPrioritiesSupported, 0, 78),
    AT(globalL1CacheSupported, 0, 79), AT(localL1CacheSupported, 0, 80), AT(regsPerMultiprocessor, 0, 82), AT(managedMemory, 0, 83),
    AT(isMultiGpuBoard, 0, 84), AT(multiGpuBoardGroupID, 0, 85), AT(hostNativeAtomicSupported, 0, 86), AT(pageableMemoryAccess, 0, 88),
    AT(concurrentManagedAccess, 0, 89), AT(computePreemptionSupported, 0, 90), AT(canUseHostPointerForRegisteredMem, 0, 91),
    AT(cooperativeLaunch, 0, 95), AT(maxBlocksPerMultiProcessor, 0, 106), AT(hostRegisterSupported, 0, 99), AT(memoryPoolsSupported, 0, 115),
    AT(gpuDirectRDMASupported, 0, 116), AT(memoryPoolSupportedHandleTypes, 0, 119), AT(clusterLaunch, 0, 120), AT(ipcEventSupported, 0, 125),
#if RUNTIME == 12
    AT(clockRate, 0, 13), AT(deviceOverlap, 0, 15), AT(computeMode, 0, 20), AT(memoryClockRate, 0, 36), AT(singleToDoublePrecisionPerfRatio, 0, 87),
#endif
};
static const struct { size_t offset; int attribute; } sizes[] = {
    AT(sharedMemPerBlock, 0, 8), AT(memPitch, 0, 11), AT(totalConstMem, 0, 9), AT(textureAlignment, 0, 14), AT(texturePitchAlignment, 0, 51),
    AT(sharedMemPerMultiprocessor, 0, 81), AT(sharedMemPerBlockOptin, 0, 97), AT(reservedSharedMemPerBlock, 0, 111),
};

static cudaError_t properties(struct cudaDeviceProp *p, int device)
{
    int value;
    if (!p) return cudaErrorInvalidValue;
    memset(p, 0, sizeof *p);
    cudaError_t e = driver.cuDeviceGetName(p->name, sizeof p->name, device);
    if (!e) e = driver.cuDeviceGetUuid(&p->uuid, device);
    if (!e) e = driver.cuDeviceTotalMem(&p->totalGlobalMem, device);
    for (size_t i = 0; !e && i < sizeof ints / sizeof *ints; i++) {
        e = driver.cuDeviceGetAttribute(&value, ints[i].attribute, device);
        memcpy((char *)p + ints[i].offset, &value, sizeof value);
    }
    for (size_t i = 0; !e && i < sizeof sizes / sizeof *sizes; i++) {
        e = driver.cuDeviceGetAttribute(&value, sizes[i].attribute, device);
        size_t wide = (size_t)value;
        memcpy((char *)p + sizes[i].offset, &wide, sizeof wide);
    }
    return e;
}

#if RUNTIME == 12
EXPORT cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *out, int device) { RETURN_LOADED(properties(out, device)); }
#else
EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) { RETURN_LOADED(properties(out, device)); }
#endif
