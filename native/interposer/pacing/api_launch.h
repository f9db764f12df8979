/* Declarations of the driver functions that put work on a card and are paced, and of those that pacing itself needs. */
#ifndef FRACTILE_API_LAUNCH_H
#define FRACTILE_API_LAUNCH_H

#include "cuda_abi.h"

#include <stddef.h>
#include <stdint.h>

CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **);
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **);
CUresult cuLaunchKernelEx(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *, unsigned, unsigned);
CUresult cuLaunch(CUfunction);
CUresult cuLaunchGrid(CUfunction, int, int);
CUresult cuLaunchGridAsync(CUfunction, int, int, CUstream);

CUresult cuMemcpyDtoD_v2(CUdeviceptr, CUdeviceptr, size_t);
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr, CUdeviceptr, size_t);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, size_t, CUstream);
CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr, CUdeviceptr, size_t, CUstream);
CUresult cuMemsetD8_v2(CUdeviceptr, unsigned char, size_t);
CUresult cuMemsetD8_v2_ptds(CUdeviceptr, unsigned char, size_t);
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);
CUresult cuMemsetD8Async_ptsz(CUdeviceptr, unsigned char, size_t, CUstream);
CUresult cuMemsetD2D8_v2(CUdeviceptr, size_t, unsigned char, size_t, size_t);
CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr, size_t, unsigned char, size_t, size_t);
CUresult cuMemsetD2D8Async(CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream);
CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream);
CUresult cuMemsetD16_v2(CUdeviceptr, unsigned short, size_t);
CUresult cuMemsetD16_v2_ptds(CUdeviceptr, unsigned short, size_t);
CUresult cuMemsetD16Async(CUdeviceptr, unsigned short, size_t, CUstream);
CUresult cuMemsetD16Async_ptsz(CUdeviceptr, unsigned short, size_t, CUstream);
CUresult cuMemsetD2D16_v2(CUdeviceptr, size_t, unsigned short, size_t, size_t);
CUresult cuMemsetD2D16_v2_ptds(CUdeviceptr, size_t, unsigned short, size_t, size_t);
CUresult cuMemsetD2D16Async(CUdeviceptr, size_t, unsigned short, size_t, size_t, CUstream);
CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr, size_t, unsigned short, size_t, size_t, CUstream);
CUresult cuMemsetD32_v2(CUdeviceptr, unsigned, size_t);
CUresult cuMemsetD32_v2_ptds(CUdeviceptr, unsigned, size_t);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream);
CUresult cuMemsetD32Async_ptsz(CUdeviceptr, unsigned, size_t, CUstream);
CUresult cuMemsetD2D32_v2(CUdeviceptr, size_t, unsigned, size_t, size_t);
CUresult cuMemsetD2D32_v2_ptds(CUdeviceptr, size_t, unsigned, size_t, size_t);
CUresult cuMemsetD2D32Async(CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream);
CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream);

#define BOTH_STREAMS(name, ...)           \
    CUresult name(CUstream, __VA_ARGS__); \
    CUresult name##_ptsz(CUstream, __VA_ARGS__);
BOTH_STREAMS(cuStreamWaitEvent, CUevent, unsigned)
BOTH_STREAMS(cuLaunchHostFunc, CUhostFn, void *)
BOTH_STREAMS(cuLaunchHostFunc_v2, CUhostFn, void *, unsigned)
BOTH_STREAMS(cuStreamAddCallback, CUstreamCallback, void *, unsigned)
BOTH_STREAMS(cuStreamWaitValue32, CUdeviceptr, uint32_t, unsigned)
BOTH_STREAMS(cuStreamWaitValue32_v2, CUdeviceptr, uint32_t, unsigned)
BOTH_STREAMS(cuStreamWaitValue64, CUdeviceptr, uint64_t, unsigned)
BOTH_STREAMS(cuStreamWaitValue64_v2, CUdeviceptr, uint64_t, unsigned)
CUresult cuWaitExternalSemaphoresAsync(const void *, const void *, unsigned, CUstream);
CUresult cuWaitExternalSemaphoresAsync_ptsz(const void *, const void *, unsigned, CUstream);
CUresult cuCtxWaitEvent(CUcontext, CUevent);
CUresult cuGreenCtxWaitEvent(CUgreenCtx, CUevent);
BOTH_STREAMS(cuStreamBatchMemOp, unsigned, void *, unsigned)
BOTH_STREAMS(cuStreamBatchMemOp_v2, unsigned, void *, unsigned)

CUresult cuCtxSetCurrent(CUcontext);
CUresult cuEventCreate(CUevent *, unsigned);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventElapsedTime(float *, CUevent, CUevent);
CUresult cuEventDestroy_v2(CUevent);

#endif
