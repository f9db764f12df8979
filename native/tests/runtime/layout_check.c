/* Compiled, never run, if the vendor's header is available: compares the stand-in's layouts with the vendor's. The vendor's names are used
 * here, so the stand-in's are included under other names. */
#include <cuda_runtime_api.h>
#include <stddef.h>

#define CUuuid o_CUuuid
#define cudaError_t o_cudaError_t
#define dim3 o_dim3
#define cudaLaunchConfig_t o_cudaLaunchConfig_t
#define cudaPointerAttributes o_cudaPointerAttributes
#define cudaFuncAttributes o_cudaFuncAttributes
#define cudaPitchedPtr o_cudaPitchedPtr
#define cudaPos o_cudaPos
#define cudaExtent o_cudaExtent
#define cudaMemcpy3DParms o_cudaMemcpy3DParms
#define cudaKernelNodeParams o_cudaKernelNodeParams
#define cudaDeviceProp o_cudaDeviceProp
#define LAYOUT_ONLY
#include "properties.h"
#undef CUuuid
#undef cudaError_t
#undef dim3
#undef cudaLaunchConfig_t
#undef cudaPointerAttributes
#undef cudaFuncAttributes
#undef cudaPitchedPtr
#undef cudaPos
#undef cudaExtent
#undef cudaMemcpy3DParms
#undef cudaKernelNodeParams
#undef cudaDeviceProp

#define SAME_SIZE(type) _Static_assert(sizeof(struct o_##type) == sizeof(struct type), #type)
#define SAME_PLACE(type, field) _Static_assert(offsetof(struct o_##type, field) == offsetof(struct type, field), #type "." #field)

SAME_SIZE(cudaPointerAttributes);
SAME_PLACE(cudaPointerAttributes, hostPointer);
SAME_SIZE(cudaFuncAttributes);
SAME_PLACE(cudaFuncAttributes, maxDynamicSharedSizeBytes);
SAME_SIZE(cudaMemcpy3DParms);
SAME_PLACE(cudaMemcpy3DParms, dstPtr);
SAME_PLACE(cudaMemcpy3DParms, kind);
SAME_SIZE(cudaKernelNodeParams);
SAME_PLACE(cudaKernelNodeParams, kernelParams);
_Static_assert(sizeof(o_cudaLaunchConfig_t) == sizeof(cudaLaunchConfig_t), "cudaLaunchConfig_t");
_Static_assert(offsetof(o_cudaLaunchConfig_t, attribute_count) == offsetof(cudaLaunchConfig_t, numAttrs), "cudaLaunchConfig_t.numAttrs");
SAME_SIZE(cudaDeviceProp);
SAME_PLACE(cudaDeviceProp, uuid);
SAME_PLACE(cudaDeviceProp, totalGlobalMem);
SAME_PLACE(cudaDeviceProp, totalConstMem);
SAME_PLACE(cudaDeviceProp, major);
SAME_PLACE(cudaDeviceProp, multiProcessorCount);
SAME_PLACE(cudaDeviceProp, surfaceAlignment);
SAME_PLACE(cudaDeviceProp, memoryBusWidth);
SAME_PLACE(cudaDeviceProp, sharedMemPerMultiprocessor);
SAME_PLACE(cudaDeviceProp, cooperativeLaunch);
SAME_PLACE(cudaDeviceProp, sharedMemPerBlockOptin);
SAME_PLACE(cudaDeviceProp, memoryPoolsSupported);
SAME_PLACE(cudaDeviceProp, unifiedFunctionPointers);
SAME_PLACE(cudaDeviceProp, reserved);
