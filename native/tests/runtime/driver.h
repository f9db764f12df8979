/* The driver's functions that the stand-in calls, each with the version that a runtime requests from cuGetProcAddress. */
#ifndef RUNTIME_DRIVER_H
#define RUNTIME_DRIVER_H

#include "runtime.h"

#define DRIVER_FUNCTIONS(X) \
    X(cuInit, 2000, (unsigned)) \
    X(cuDriverGetVersion, 2020, (int *)) \
    X(cuGetErrorString, 6000, (CUresult, const char **)) \
    X(cuDeviceGet, 2000, (CUdevice *, int)) \
    X(cuDeviceGetCount, 2000, (int *)) \
    X(cuDeviceGetName, 2000, (char *, int, CUdevice)) \
    X(cuDeviceGetUuid, 11040, (CUuuid *, CUdevice)) \
    X(cuDeviceTotalMem, 3020, (size_t *, CUdevice)) \
    X(cuDeviceGetAttribute, 2000, (int *, int, CUdevice)) \
    X(cuDeviceGetPCIBusId, 4010, (char *, int, CUdevice)) \
    X(cuDeviceGetByPCIBusId, 4010, (CUdevice *, const char *)) \
    X(cuDeviceGetP2PAttribute, 8000, (int *, int, CUdevice, CUdevice)) \
    X(cuDeviceCanAccessPeer, 4000, (int *, CUdevice, CUdevice)) \
    X(cuDeviceGetDefaultMemPool, 11020, (CUmemoryPool *, CUdevice)) \
    X(cuDeviceGetMemPool, 11020, (CUmemoryPool *, CUdevice)) \
    X(cuDeviceSetMemPool, 11020, (CUdevice, CUmemoryPool)) \
    X(cuDeviceGraphMemTrim, 11040, (CUdevice)) \
    X(cuDeviceGetGraphMemAttribute, 11040, (CUdevice, int, void *)) \
    X(cuDeviceSetGraphMemAttribute, 11040, (CUdevice, int, void *)) \
    X(cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice)) \
    X(cuDevicePrimaryCtxReset, 11000, (CUdevice)) \
    X(cuDevicePrimaryCtxSetFlags, 11000, (CUdevice, unsigned)) \
    X(cuDevicePrimaryCtxGetState, 7000, (CUdevice, unsigned *, int *)) \
    X(cuCtxGetCurrent, 4000, (CUcontext *)) \
    X(cuCtxSetCurrent, 4000, (CUcontext)) \
    X(cuCtxGetDevice, 2000, (CUdevice *)) \
    X(cuCtxGetLimit, 3010, (size_t *, int)) \
    X(cuCtxSetLimit, 3010, (int, size_t)) \
    X(cuCtxSynchronize, 2000, (void)) \
    X(cuCtxGetStreamPriorityRange, 5050, (int *, int *)) \
    X(cuCtxEnablePeerAccess, 4000, (CUcontext, unsigned)) \
    X(cuCtxDisablePeerAccess, 4000, (CUcontext)) \
    X(cuMemGetInfo, 3020, (size_t *, size_t *)) \
    X(cuMemAlloc, 3020, (CUdeviceptr *, size_t)) \
    X(cuMemAllocPitch, 3020, (CUdeviceptr *, size_t *, size_t, size_t, unsigned)) \
    X(cuMemAllocManaged, 6000, (CUdeviceptr *, size_t, unsigned)) \
    X(cuMemFree, 3020, (CUdeviceptr)) \
    X(cuMemHostAlloc, 2020, (void **, size_t, unsigned)) \
    X(cuMemFreeHost, 2000, (void *)) \
    X(cuMemHostRegister, 6050, (void *, size_t, unsigned)) \
    X(cuMemHostUnregister, 4000, (void *)) \
    X(cuMemHostGetDevicePointer, 3020, (CUdeviceptr *, void *, unsigned)) \
    X(cuMemHostGetFlags, 2030, (unsigned *, void *)) \
    X(cuPointerGetAttributes, 7000, (unsigned, int *, void **, CUdeviceptr)) \
    X(cuMemAllocAsync, 11020, (CUdeviceptr *, size_t, CUstream)) \
    X(cuMemAllocFromPoolAsync, 11020, (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) \
    X(cuMemFreeAsync, 11020, (CUdeviceptr, CUstream)) \
    X(cuMemPoolCreate, 11020, (CUmemoryPool *, const CUmemPoolProps *)) \
    X(cuMemPoolDestroy, 11020, (CUmemoryPool)) \
    X(cuMemPoolTrimTo, 11020, (CUmemoryPool, size_t)) \
    X(cuMemPoolSetAttribute, 11020, (CUmemoryPool, int, void *)) \
    X(cuMemPoolGetAttribute, 11020, (CUmemoryPool, int, void *)) \
    X(cuMemPoolSetAccess, 11020, (CUmemoryPool, const CUmemAccessDesc *, size_t)) \
    X(cuMemPoolGetAccess, 11020, (int *, CUmemoryPool, CUmemLocation *)) \
    X(cuMemPoolExportToShareableHandle, 11020, (void *, CUmemoryPool, int, unsigned long long)) \
    X(cuMemPoolImportFromShareableHandle, 11020, (CUmemoryPool *, void *, int, unsigned long long)) \
    X(cuMemPoolExportPointer, 11020, (CUmemPoolPtrExportData *, CUdeviceptr)) \
    X(cuMemPoolImportPointer, 11020, (CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *)) \
    X(cuIpcGetMemHandle, 4010, (CUipcMemHandle *, CUdeviceptr)) \
    X(cuIpcOpenMemHandle, 11000, (CUdeviceptr *, CUipcMemHandle, unsigned)) \
    X(cuIpcCloseMemHandle, 4010, (CUdeviceptr)) \
    X(cuIpcGetEventHandle, 4010, (CUipcEventHandle *, CUevent)) \
    X(cuIpcOpenEventHandle, 4010, (CUevent *, CUipcEventHandle)) \
    X(cuMemcpy, 4000, (CUdeviceptr, CUdeviceptr, size_t)) \
    X(cuMemcpyAsync, 4000, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
    X(cuMemcpyHtoD, 3020, (CUdeviceptr, const void *, size_t)) \
    X(cuMemcpyDtoH, 3020, (void *, CUdeviceptr, size_t)) \
    X(cuMemcpyDtoD, 3020, (CUdeviceptr, CUdeviceptr, size_t)) \
    X(cuMemcpyHtoDAsync, 3020, (CUdeviceptr, const void *, size_t, CUstream)) \
    X(cuMemcpyDtoHAsync, 3020, (void *, CUdeviceptr, size_t, CUstream)) \
    X(cuMemcpyDtoDAsync, 3020, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
    X(cuMemcpyPeer, 4000, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)) \
    X(cuMemcpyPeerAsync, 4000, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream)) \
    X(cuMemcpy2DUnaligned, 3020, (const CUDA_MEMCPY2D *)) \
    X(cuMemcpy2DAsync, 3020, (const CUDA_MEMCPY2D *, CUstream)) \
    X(cuMemcpy3D, 3020, (const CUDA_MEMCPY3D *)) \
    X(cuMemcpy3DAsync, 3020, (const CUDA_MEMCPY3D *, CUstream)) \
    X(cuMemsetD8, 3020, (CUdeviceptr, unsigned char, size_t)) \
    X(cuMemsetD8Async, 3020, (CUdeviceptr, unsigned char, size_t, CUstream)) \
    X(cuMemsetD2D8, 3020, (CUdeviceptr, size_t, unsigned char, size_t, size_t)) \
    X(cuMemsetD2D8Async, 3020, (CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream)) \
    X(cuMemPrefetchAsync, 8000, (CUdeviceptr, size_t, CUdevice, CUstream)) \
    X(cuStreamCreate, 2000, (CUstream *, unsigned)) \
    X(cuStreamCreateWithPriority, 5050, (CUstream *, unsigned, int)) \
    X(cuStreamDestroy, 4000, (CUstream)) \
    X(cuStreamSynchronize, 2000, (CUstream)) \
    X(cuStreamQuery, 2000, (CUstream)) \
    X(cuStreamWaitEvent, 3020, (CUstream, CUevent, unsigned)) \
    X(cuStreamAddCallback, 5000, (CUstream, CUstreamCallback, void *, unsigned)) \
    X(cuStreamGetPriority, 5050, (CUstream, int *)) \
    X(cuStreamGetFlags, 5050, (CUstream, unsigned *)) \
    X(cuStreamGetId, 12000, (CUstream, unsigned long long *)) \
    X(cuStreamBeginCapture, 10010, (CUstream, int)) \
    X(cuStreamEndCapture, 10000, (CUstream, CUgraph *)) \
    X(cuStreamIsCapturing, 10000, (CUstream, int *)) \
    X(cuStreamGetCaptureInfo, 11030, (CUstream, int *, uint64_t *, CUgraph *, const CUgraphNode **, size_t *)) \
    X(cuThreadExchangeStreamCaptureMode, 10010, (unsigned *)) \
    X(cuLaunchHostFunc, 10000, (CUstream, CUhostFn, void *)) \
    X(cuEventCreate, 2000, (CUevent *, unsigned)) \
    X(cuEventDestroy, 4000, (CUevent)) \
    X(cuEventRecord, 2000, (CUevent, CUstream)) \
    X(cuEventRecordWithFlags, 11010, (CUevent, CUstream, unsigned)) \
    X(cuEventQuery, 2000, (CUevent)) \
    X(cuEventSynchronize, 2000, (CUevent)) \
    X(cuEventElapsedTime, 2000, (float *, CUevent, CUevent)) \
    X(cuLibraryLoadData, 12000, (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned)) \
    X(cuLibraryUnload, 12000, (CUlibrary)) \
    X(cuLibraryGetKernel, 12000, (CUkernel *, CUlibrary, const char *)) \
    X(cuLibraryGetGlobal, 12000, (CUdeviceptr *, size_t *, CUlibrary, const char *)) \
    X(cuKernelGetFunction, 12000, (CUfunction *, CUkernel)) \
    X(cuFuncGetAttribute, 2020, (int *, int, CUfunction)) \
    X(cuKernelSetAttribute, 12000, (int, int, CUkernel, CUdevice)) \
    X(cuFuncSetCacheConfig, 3000, (CUfunction, int)) \
    X(cuLaunchKernel, 4000, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
    X(cuLaunchKernelEx, 11060, (const CUlaunchConfig *, CUfunction, void **, void **)) \
    X(cuLaunchCooperativeKernel, 9000, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **)) \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, (int *, CUfunction, int, size_t, unsigned)) \
    X(cuProfilerStart, 4000, (void)) \
    X(cuProfilerStop, 4000, (void)) \
    X(cuGraphCreate, 10000, (CUgraph *, unsigned)) \
    X(cuGraphDestroy, 10000, (CUgraph)) \
    X(cuGraphClone, 10000, (CUgraph *, CUgraph)) \
    X(cuGraphGetNodes, 10000, (CUgraph, CUgraphNode *, size_t *)) \
    X(cuGraphNodeGetType, 10000, (CUgraphNode, int *)) \
    X(cuGraphInstantiate, 12000, (CUgraphExec *, CUgraph, unsigned long long)) \
    X(cuGraphUpload, 11010, (CUgraphExec, CUstream)) \
    X(cuGraphLaunch, 10000, (CUgraphExec, CUstream)) \
    X(cuGraphExecDestroy, 10000, (CUgraphExec)) \
    X(cuGraphExecUpdate, 12000, (CUgraphExec, CUgraph, CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO *)) \
    X(cuGraphDebugDotPrint, 11030, (CUgraph, const char *, unsigned)) \
    X(cuGraphAddKernelNode, 12000, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *)) \
    X(cuGraphAddMemcpyNode, 10000, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMCPY3D *, CUcontext)) \
    X(cuGraphAddMemsetNode, 10000, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMSET_NODE_PARAMS *, CUcontext)) \
    X(cuGraphAddHostNode, 10000, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_HOST_NODE_PARAMS *)) \
    X(cuGraphAddChildGraphNode, 10000, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph)) \
    X(cuGraphAddEmptyNode, 10000, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t)) \
    X(cuGraphAddMemAllocNode, 11040, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *)) \
    X(cuGraphAddMemFreeNode, 11040, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr)) \
    X(cuUserObjectCreate, 11030, (void **, void *, CUhostFn, unsigned, unsigned)) \
    X(cuUserObjectRetain, 11030, (void *, unsigned)) \
    X(cuUserObjectRelease, 11030, (void *, unsigned)) \
    X(cuGraphRetainUserObject, 11030, (CUgraph, void *, unsigned, unsigned)) \
    X(cuGraphReleaseUserObject, 11030, (CUgraph, void *, unsigned))

struct rt_driver {
#define FIELD(name, version, arguments) CUresult (*name) arguments;
    DRIVER_FUNCTIONS(FIELD)
#undef FIELD
    CUresult (*lookup)(const char *name, void **out, int version, uint64_t flags, int *status);
};
extern struct rt_driver driver; /* filled by rt_load */

#endif
