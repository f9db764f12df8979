/* Compiled, never run, where a cuda.h is at hand: our layouts against the vendor's. The vendor's names are used here, so
 * ours are taken from cuda_abi.h under other names. */
#include <cuda.h>
#include <stddef.h>

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #theirs)
#define SAME_PLACE(ours, theirs, field) _Static_assert(offsetof(ours, field) == offsetof(theirs, field), #theirs "." #field)

#undef CU_STREAM_LEGACY
#undef CU_STREAM_PER_THREAD
#define CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE o_CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE
#define CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE o_CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE
#define CUresult o_CUresult
#define CUdevice o_CUdevice
#define CUdeviceptr o_CUdeviceptr
#define CUdeviceptr_v1 o_CUdeviceptr_v1
#define CUexternalMemory o_CUexternalMemory
#define CUgreenCtx o_CUgreenCtx
#define CUgraphicsResource o_CUgraphicsResource
#define CUcontext o_CUcontext
#define CUmodule o_CUmodule
#define CUlibrary o_CUlibrary
#define CUfunction o_CUfunction
#define CUkernel o_CUkernel
#define CUstream o_CUstream
#define CUevent o_CUevent
#define CUarray o_CUarray
#define CUmipmappedArray o_CUmipmappedArray
#define CUmemoryPool o_CUmemoryPool
#define CUgraph o_CUgraph
#define CUgraphNode o_CUgraphNode
#define CUgraphExec o_CUgraphExec
#define CUuserObject o_CUuserObject
#define CUlinkState o_CUlinkState
#define CUmemGenericAllocationHandle o_CUmemGenericAllocationHandle
#define CUhostFn o_CUhostFn
#define CUstreamCallback o_CUstreamCallback
#define CUuuid o_CUuuid
#define CUipcMemHandle o_CUipcMemHandle
#define CUipcEventHandle o_CUipcEventHandle
#define CUmemLocation o_CUmemLocation
#define CUmemAccessDesc o_CUmemAccessDesc
#define CUmemAllocationProp o_CUmemAllocationProp
#define CUmemPoolProps o_CUmemPoolProps
#define CUDA_ARRAY_DESCRIPTOR o_CUDA_ARRAY_DESCRIPTOR
#define CUDA_ARRAY3D_DESCRIPTOR o_CUDA_ARRAY3D_DESCRIPTOR
#define CUDA_ARRAY_MEMORY_REQUIREMENTS o_CUDA_ARRAY_MEMORY_REQUIREMENTS
#define CUDA_ARRAY_DESCRIPTOR_v1 o_CUDA_ARRAY_DESCRIPTOR_v1
#define CUDA_ARRAY3D_DESCRIPTOR_v1 o_CUDA_ARRAY3D_DESCRIPTOR_v1
#define CUDA_EXTERNAL_MEMORY_HANDLE_DESC o_CUDA_EXTERNAL_MEMORY_HANDLE_DESC
#undef CUDA_ARRAY3D_LAYERED
#undef CUDA_ARRAY3D_CUBEMAP
#undef CUDA_ARRAY3D_SPARSE
#undef CUDA_ARRAY3D_DEFERRED_MAPPING
#define CU_LIMIT_STACK_SIZE o_CU_LIMIT_STACK_SIZE
#define CU_LIMIT_PRINTF_FIFO_SIZE o_CU_LIMIT_PRINTF_FIFO_SIZE
#define CU_LIMIT_MALLOC_HEAP_SIZE o_CU_LIMIT_MALLOC_HEAP_SIZE
#define CUlaunchConfig o_CUlaunchConfig
#define CUDA_KERNEL_NODE_PARAMS o_CUDA_KERNEL_NODE_PARAMS
#define CUDA_LAUNCH_PARAMS o_CUDA_LAUNCH_PARAMS
#define CUDA_MEM_ALLOC_NODE_PARAMS o_CUDA_MEM_ALLOC_NODE_PARAMS
#define CUDA_MEMSET_NODE_PARAMS o_CUDA_MEMSET_NODE_PARAMS
#define CUDA_HOST_NODE_PARAMS o_CUDA_HOST_NODE_PARAMS
#define CUDA_MEMCPY2D o_CUDA_MEMCPY2D
#define CUDA_MEMCPY3D o_CUDA_MEMCPY3D
#define CUDA_MEMCPY3D_PEER o_CUDA_MEMCPY3D_PEER
#define CU_MEMCPY_OPERAND_TYPE_POINTER o_CU_MEMCPY_OPERAND_TYPE_POINTER
#define CU_MEMCPY_OPERAND_TYPE_ARRAY o_CU_MEMCPY_OPERAND_TYPE_ARRAY
#define CUmemcpyAttributes o_CUmemcpyAttributes
#define CUmemcpy3DOperand o_CUmemcpy3DOperand
#define CUDA_MEMCPY3D_BATCH_OP o_CUDA_MEMCPY3D_BATCH_OP
#define CUmemDecompressParams o_CUmemDecompressParams
#define CUgraphNodeParams o_CUgraphNodeParams
#define CUDA_GRAPH_INSTANTIATE_PARAMS o_CUDA_GRAPH_INSTANTIATE_PARAMS
#define CUmemFabricHandle o_CUmemFabricHandle
#define CUmemPoolPtrExportData o_CUmemPoolPtrExportData
#define CU_GRAPH_NODE_TYPE_KERNEL o_CU_GRAPH_NODE_TYPE_KERNEL
#define CU_GRAPH_NODE_TYPE_GRAPH o_CU_GRAPH_NODE_TYPE_GRAPH
#define CU_GRAPH_NODE_TYPE_MEM_ALLOC o_CU_GRAPH_NODE_TYPE_MEM_ALLOC
#define CU_GRAPH_NODE_TYPE_MEM_FREE o_CU_GRAPH_NODE_TYPE_MEM_FREE
#define CU_GRAPH_NODE_TYPE_CONDITIONAL o_CU_GRAPH_NODE_TYPE_CONDITIONAL
#define CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD o_CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
#define CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH o_CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
#define CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT o_CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
#define CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT o_CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
#define CU_MEMPOOL_ATTR_RELEASE_THRESHOLD o_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
#define CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT o_CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
#define CU_MEMPOOL_ATTR_USED_MEM_CURRENT o_CU_MEMPOOL_ATTR_USED_MEM_CURRENT
#define CUmulticastObjectProp o_CUmulticastObjectProp
#define CUarrayMapInfo o_CUarrayMapInfo
#define CU_MEM_HANDLE_TYPE_FABRIC o_CU_MEM_HANDLE_TYPE_FABRIC
#define CU_RESOURCE_TYPE_ARRAY o_CU_RESOURCE_TYPE_ARRAY
#define CU_RESOURCE_TYPE_MIPMAPPED_ARRAY o_CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
#define CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL o_CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL
#define CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL o_CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL
#define CU_MEM_OPERATION_TYPE_MAP o_CU_MEM_OPERATION_TYPE_MAP
#define CU_MEM_OPERATION_TYPE_UNMAP o_CU_MEM_OPERATION_TYPE_UNMAP
#define CU_MEMORYTYPE_HOST o_CU_MEMORYTYPE_HOST
#define CU_MEMORYTYPE_DEVICE o_CU_MEMORYTYPE_DEVICE
#define CU_MEMORYTYPE_ARRAY o_CU_MEMORYTYPE_ARRAY
#define CU_MEMORYTYPE_UNIFIED o_CU_MEMORYTYPE_UNIFIED
#define CU_MEM_HANDLE_TYPE_NONE o_CU_MEM_HANDLE_TYPE_NONE
#define CU_MEM_ALLOCATION_TYPE_PINNED o_CU_MEM_ALLOCATION_TYPE_PINNED
#define CU_MEM_ALLOCATION_TYPE_MANAGED o_CU_MEM_ALLOCATION_TYPE_MANAGED
/* Our result codes live in an enum of their own; the preprocessor keeps them apart by what they are called there. */
#define SIMGPU_ABI_CHECK
#include "cuda_abi.h"
#undef CUDA_MEMCPY2D
#undef CUDA_MEMCPY3D
#undef CUDA_MEMCPY3D_PEER
#undef CU_MEMCPY_OPERAND_TYPE_POINTER
#undef CU_MEMCPY_OPERAND_TYPE_ARRAY
#undef CUmemcpyAttributes
#undef CUmemcpy3DOperand
#undef CUDA_MEMCPY3D_BATCH_OP
#undef CUmemDecompressParams
#undef CUmemFabricHandle
#undef CUmemPoolPtrExportData
#undef CU_GRAPH_NODE_TYPE_KERNEL
#undef CU_GRAPH_NODE_TYPE_GRAPH
#undef CU_GRAPH_NODE_TYPE_MEM_ALLOC
#undef CU_GRAPH_NODE_TYPE_MEM_FREE
#undef CU_GRAPH_NODE_TYPE_CONDITIONAL
#undef CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
#undef CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
#undef CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
#undef CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
#undef CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
#undef CU_MEMPOOL_ATTR_USED_MEM_CURRENT
#undef CUmulticastObjectProp
#undef CUarrayMapInfo
#undef CUmemPoolProps
#undef CUmemAllocationProp
#undef CUDA_ARRAY_DESCRIPTOR
#undef CUDA_ARRAY3D_DESCRIPTOR
#undef CUDA_ARRAY_MEMORY_REQUIREMENTS
#undef CUDA_EXTERNAL_MEMORY_HANDLE_DESC
#undef CUlaunchConfig
#undef CUDA_MEM_ALLOC_NODE_PARAMS
#undef CUmemAccessDesc
#undef CUmemLocation
#undef CUgraphNodeParams
#undef CUDA_KERNEL_NODE_PARAMS
#undef CUDA_LAUNCH_PARAMS

SAME_SIZE(o_CUDA_MEMCPY2D, CUDA_MEMCPY2D);
SAME_PLACE(o_CUDA_MEMCPY2D, CUDA_MEMCPY2D, dstArray);
SAME_PLACE(o_CUDA_MEMCPY2D, CUDA_MEMCPY2D, Height);
SAME_SIZE(o_CUDA_MEMCPY3D, CUDA_MEMCPY3D);
SAME_PLACE(o_CUDA_MEMCPY3D, CUDA_MEMCPY3D, dstMemoryType);
SAME_PLACE(o_CUDA_MEMCPY3D, CUDA_MEMCPY3D, WidthInBytes);
SAME_PLACE(o_CUDA_MEMCPY3D, CUDA_MEMCPY3D, Depth);
SAME_SIZE(o_CUDA_MEMCPY3D_PEER, CUDA_MEMCPY3D_PEER);
SAME_PLACE(o_CUDA_MEMCPY3D_PEER, CUDA_MEMCPY3D_PEER, dstContext);
SAME_PLACE(o_CUDA_MEMCPY3D_PEER, CUDA_MEMCPY3D_PEER, Depth);
#if CUDA_VERSION >= 12080
SAME_SIZE(o_CUmemcpyAttributes, CUmemcpyAttributes);
SAME_SIZE(o_CUmemcpy3DOperand, CUmemcpy3DOperand);
SAME_SIZE(o_CUDA_MEMCPY3D_BATCH_OP, CUDA_MEMCPY3D_BATCH_OP);
SAME_SIZE(o_CUmemDecompressParams, CUmemDecompressParams);
SAME_PLACE(o_CUmemDecompressParams, CUmemDecompressParams, algo);
#endif
SAME_SIZE(o_CUmemLocation, CUmemLocation);
SAME_SIZE(o_CUmemAccessDesc, CUmemAccessDesc);
SAME_SIZE(o_CUmemPoolProps, CUmemPoolProps);
SAME_SIZE(o_CUmemAllocationProp, CUmemAllocationProp);
SAME_PLACE(o_CUmemAllocationProp, CUmemAllocationProp, location);
SAME_SIZE(o_CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR);
SAME_SIZE(o_CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR);
SAME_SIZE(o_CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY_MEMORY_REQUIREMENTS);
SAME_SIZE(o_CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS);
SAME_PLACE(o_CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, dptr);
SAME_SIZE(o_CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
SAME_PLACE(o_CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size);
SAME_SIZE(o_CUlaunchConfig, CUlaunchConfig);
SAME_PLACE(o_CUlaunchConfig, CUlaunchConfig, hStream);
SAME_SIZE(o_CUDA_LAUNCH_PARAMS, CUDA_LAUNCH_PARAMS);
SAME_PLACE(o_CUDA_LAUNCH_PARAMS, CUDA_LAUNCH_PARAMS, hStream);
SAME_PLACE(o_CUDA_LAUNCH_PARAMS, CUDA_LAUNCH_PARAMS, kernelParams);
#if CUDA_VERSION >= 12000
SAME_SIZE(o_CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS);
#endif
#if CUDA_VERSION >= 12020
SAME_SIZE(o_CUgraphNodeParams, CUgraphNodeParams);
#endif
SAME_SIZE(o_CUmemPoolPtrExportData, CUmemPoolPtrExportData);
_Static_assert((int)o_CU_GRAPH_NODE_TYPE_MEM_ALLOC == (int)CU_GRAPH_NODE_TYPE_MEM_ALLOC, "node types");
#if CUDA_VERSION >= 12030
_Static_assert((int)o_CU_GRAPH_NODE_TYPE_CONDITIONAL == (int)CU_GRAPH_NODE_TYPE_CONDITIONAL, "node types");
#endif
_Static_assert((int)o_CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT == (int)CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, "graph memory attributes");
_Static_assert((int)o_CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT == (int)CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, "pool attributes");
SAME_SIZE(o_CUarrayMapInfo, CUarrayMapInfo);
SAME_PLACE(o_CUarrayMapInfo, CUarrayMapInfo, subresource);
SAME_PLACE(o_CUarrayMapInfo, CUarrayMapInfo, memHandle);
SAME_PLACE(o_CUarrayMapInfo, CUarrayMapInfo, deviceBitMask);
#if CUDA_VERSION >= 12010
SAME_SIZE(o_CUmulticastObjectProp, CUmulticastObjectProp);
SAME_PLACE(o_CUmulticastObjectProp, CUmulticastObjectProp, handleTypes);
SAME_SIZE(o_CUmemFabricHandle, CUmemFabricHandle);
#endif
