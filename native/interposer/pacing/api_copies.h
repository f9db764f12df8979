/* Declarations of the driver's copy functions that may stay within a card, in addition to those in api_launch.h. */
#ifndef FRACTILE_API_COPIES_H
#define FRACTILE_API_COPIES_H

#include "memory/api_pool.h"

#include "cuda_abi.h"

#include <stddef.h>

#define CU_POINTER_ATTRIBUTE_MEMORY_TYPE 2
CUresult cuPointerGetAttribute(void *, int, CUdeviceptr);

#define SYNC(name, ...)         \
    CUresult name(__VA_ARGS__); \
    CUresult name##_ptds(__VA_ARGS__);
#define ASYNC(name, ...)                  \
    CUresult name(__VA_ARGS__, CUstream); \
    CUresult name##_ptsz(__VA_ARGS__, CUstream);

SYNC(cuMemcpy, CUdeviceptr, CUdeviceptr, size_t)
ASYNC(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, size_t)
SYNC(cuMemcpyPeer, CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)
ASYNC(cuMemcpyPeerAsync, CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)
SYNC(cuMemcpyAtoA_v2, CUarray, size_t, CUarray, size_t, size_t)
SYNC(cuMemcpyAtoD_v2, CUdeviceptr, CUarray, size_t, size_t)
SYNC(cuMemcpyDtoA_v2, CUarray, size_t, CUdeviceptr, size_t)
SYNC(cuMemcpy2D_v2, const CUDA_MEMCPY2D *)
SYNC(cuMemcpy2DUnaligned_v2, const CUDA_MEMCPY2D *)
ASYNC(cuMemcpy2DAsync_v2, const CUDA_MEMCPY2D *)
SYNC(cuMemcpy3D_v2, const CUDA_MEMCPY3D *)
ASYNC(cuMemcpy3DAsync_v2, const CUDA_MEMCPY3D *)
SYNC(cuMemcpy3DPeer, const CUDA_MEMCPY3D_PEER *)
ASYNC(cuMemcpy3DPeerAsync, const CUDA_MEMCPY3D_PEER *)
ASYNC(cuMemcpyBatchAsync, CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, size_t *)
ASYNC(cuMemcpyBatchAsync_v2, CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t)
ASYNC(cuMemcpyWithAttributesAsync, CUdeviceptr, CUdeviceptr, size_t, CUmemcpyAttributes *)
ASYNC(cuMemcpy3DBatchAsync, size_t, CUDA_MEMCPY3D_BATCH_OP *, size_t *, unsigned long long)
ASYNC(cuMemcpy3DBatchAsync_v2, size_t, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long)
ASYNC(cuMemcpy3DWithAttributesAsync, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long)
ASYNC(cuMemBatchDecompressAsync, CUmemDecompressParams *, size_t, unsigned, size_t *)
#undef SYNC
#undef ASYNC

#endif
