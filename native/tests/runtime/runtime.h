/* A stand-in for CUDA's runtime library on top of the driver API, for tests: see README.md. It was written independently of the vendor's code;
 * if the vendor's headers are available, layout_check.c compares the layouts that programs see with them. */
#ifndef RUNTIME_H
#define RUNTIME_H

#include "cuda_abi.h"

#include <stdbool.h>

#ifndef RUNTIME
#error "RUNTIME is the major version that is built, 12 or 13"
#endif
#define RUNTIME_VERSION (RUNTIME == 12 ? 12080 : 13000)
#define EXPORT __attribute__((visibility("default")))

/* Since CUDA 10.1 the runtime's error numbers are the driver's if both have the error. */
typedef int cudaError_t;
#ifndef LAYOUT_ONLY
enum { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInitializationError = 3, cudaErrorInvalidMemcpyDirection = 21,
       cudaErrorInsufficientDriver = 35, cudaErrorInvalidDeviceFunction = 98, cudaErrorInvalidDevice = 101,
       cudaErrorDeviceUninitialized = 201, cudaErrorSymbolNotFound = 500, cudaErrorNotSupported = 801 };
enum { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
#endif

typedef struct { unsigned x, y, z; } dim3;
typedef struct { dim3 grid, block; size_t shared; CUstream stream; void *attributes; unsigned attribute_count; } cudaLaunchConfig_t;
struct cudaPointerAttributes {
    int type, device;
    void *devicePointer, *hostPointer;
#if RUNTIME >= 13
    long reserved[8];
#endif
};
struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA, maxDynamicSharedSizeBytes, preferredShmemCarveout,
        clusterDimMustBeSet, requiredClusterWidth, requiredClusterHeight, requiredClusterDepth, clusterSchedulingPolicyPreference,
        nonPortableClusterSizeAllowed, reserved[16];
};
struct cudaPitchedPtr { void *ptr; size_t pitch, xsize, ysize; };
struct cudaPos { size_t x, y, z; };
struct cudaExtent { size_t width, height, depth; };
struct cudaMemcpy3DParms {
    CUarray srcArray;
    struct cudaPos srcPos;
    struct cudaPitchedPtr srcPtr;
    CUarray dstArray;
    struct cudaPos dstPos;
    struct cudaPitchedPtr dstPtr;
    struct cudaExtent extent;
    int kind;
};
struct cudaKernelNodeParams { void *func; dim3 grid, block; unsigned shared; void **kernelParams, **extra; };

/* runtime.c: entry of every call, and its result */
cudaError_t rt_load(void);                   /* the driver is loaded and initialised */
cudaError_t rt_enter(void);                  /* ... and this thread has a context */
cudaError_t rt_end(cudaError_t result);      /* keeps the thread's last error */
int rt_device(void);
#define RETURN(expression) do { cudaError_t e_ = rt_enter(); return rt_end(e_ ? e_ : (cudaError_t)(expression)); } while (0)
#define RETURN_LOADED(expression) do { cudaError_t e_ = rt_load(); return rt_end(e_ ? e_ : (cudaError_t)(expression)); } while (0)

/* registration.c */
cudaError_t rt_kernel(const void *host, CUfunction *out);
cudaError_t rt_variable(const void *host, CUdeviceptr *at, size_t *size);

/* copy.c */
CUDA_MEMCPY3D rt_copy_3d(const struct cudaMemcpy3DParms *p);

#endif
