/* Capture and graphs: handles and parameters are the driver's, except for the nodes of kernels and copies. */
#include "driver.h"

EXPORT cudaError_t cudaStreamBeginCapture(CUstream s, int mode) { RETURN(driver.cuStreamBeginCapture(s, mode)); }
EXPORT cudaError_t cudaStreamEndCapture(CUstream s, CUgraph *out) { RETURN(driver.cuStreamEndCapture(s, out)); }
EXPORT cudaError_t cudaStreamIsCapturing(CUstream s, int *out) { RETURN(driver.cuStreamIsCapturing(s, out)); }
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(unsigned *mode) { RETURN(driver.cuThreadExchangeStreamCaptureMode(mode)); }

#if RUNTIME == 12
EXPORT cudaError_t cudaStreamGetCaptureInfo_v2(CUstream s, int *status, uint64_t *id, CUgraph *g, const CUgraphNode **nodes, size_t *count)
{
    RETURN(driver.cuStreamGetCaptureInfo(s, status, id, g, nodes, count));
}
#else
EXPORT cudaError_t cudaStreamGetCaptureInfo(CUstream s, int *status, uint64_t *id, CUgraph *g, const CUgraphNode **nodes, const void **edges, size_t *count)
{
    if (edges) *edges = NULL;
    RETURN(driver.cuStreamGetCaptureInfo(s, status, id, g, nodes, count));
}
#endif

EXPORT cudaError_t cudaGraphCreate(CUgraph *out, unsigned flags) { RETURN(driver.cuGraphCreate(out, flags)); }
EXPORT cudaError_t cudaGraphDestroy(CUgraph g) { RETURN(driver.cuGraphDestroy(g)); }
EXPORT cudaError_t cudaGraphClone(CUgraph *out, CUgraph g) { RETURN(driver.cuGraphClone(out, g)); }
EXPORT cudaError_t cudaGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *count) { RETURN(driver.cuGraphGetNodes(g, nodes, count)); }
EXPORT cudaError_t cudaGraphNodeGetType(CUgraphNode n, int *out) { RETURN(driver.cuGraphNodeGetType(n, out)); }
EXPORT cudaError_t cudaGraphInstantiate(CUgraphExec *out, CUgraph g, unsigned long long flags) { RETURN(driver.cuGraphInstantiate(out, g, flags)); }
EXPORT cudaError_t cudaGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags) { RETURN(driver.cuGraphInstantiate(out, g, flags)); }
EXPORT cudaError_t cudaGraphUpload(CUgraphExec e, CUstream s) { RETURN(driver.cuGraphUpload(e, s)); }
EXPORT cudaError_t cudaGraphLaunch(CUgraphExec e, CUstream s) { RETURN(driver.cuGraphLaunch(e, s)); }
EXPORT cudaError_t cudaGraphExecDestroy(CUgraphExec e) { RETURN(driver.cuGraphExecDestroy(e)); }
EXPORT cudaError_t cudaGraphExecUpdate(CUgraphExec e, CUgraph g, CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO *info) { RETURN(driver.cuGraphExecUpdate(e, g, info)); }
EXPORT cudaError_t cudaGraphDebugDotPrint(CUgraph g, const char *path, unsigned flags) { RETURN(driver.cuGraphDebugDotPrint(g, path, flags)); }
EXPORT cudaError_t cudaDeviceGraphMemTrim(int device) { RETURN(driver.cuDeviceGraphMemTrim(device)); }
EXPORT cudaError_t cudaDeviceGetGraphMemAttribute(int device, int what, void *value) { RETURN(driver.cuDeviceGetGraphMemAttribute(device, what, value)); }
EXPORT cudaError_t cudaDeviceSetGraphMemAttribute(int device, int what, void *value) { RETURN(driver.cuDeviceSetGraphMemAttribute(device, what, value)); }

#define NODE CUgraphNode *out, CUgraph g, const CUgraphNode *before, size_t n
#define NODE_ARGUMENTS out, g, before, n

static CUcontext current(void)
{
    CUcontext context = NULL;
    driver.cuCtxGetCurrent(&context);
    return context;
}

static cudaError_t kernel_node(NODE, const struct cudaKernelNodeParams *p)
{
    CUfunction f;
    cudaError_t e = p ? rt_kernel(p->func, &f) : cudaErrorInvalidValue;
    if (e) return e;
    CUDA_KERNEL_NODE_PARAMS d = {.gridDimX = p->grid.x, .gridDimY = p->grid.y, .gridDimZ = p->grid.z, .blockDimX = p->block.x, .blockDimY = p->block.y,
                                 .blockDimZ = p->block.z, .sharedMemBytes = p->shared, .kernelParams = p->kernelParams, .extra = p->extra, .kern = (CUkernel)f};
    return driver.cuGraphAddKernelNode(NODE_ARGUMENTS, &d);
}

EXPORT cudaError_t cudaGraphAddKernelNode(NODE, const struct cudaKernelNodeParams *p) { RETURN(kernel_node(NODE_ARGUMENTS, p)); }

EXPORT cudaError_t cudaGraphAddMemcpyNode(NODE, const struct cudaMemcpy3DParms *p)
{
    CUDA_MEMCPY3D c = rt_copy_3d(p);
    RETURN(driver.cuGraphAddMemcpyNode(NODE_ARGUMENTS, &c, current()));
}

EXPORT cudaError_t cudaGraphAddMemcpyNode1D(NODE, void *to, const void *from, size_t size, int kind)
{
    struct cudaMemcpy3DParms p = {.srcPtr = {(void *)from, size, size, 1}, .dstPtr = {to, size, size, 1}, .extent = {size, 1, 1}, .kind = kind};
    return cudaGraphAddMemcpyNode(NODE_ARGUMENTS, &p);
}

EXPORT cudaError_t cudaGraphAddMemsetNode(NODE, const CUDA_MEMSET_NODE_PARAMS *p) { RETURN(driver.cuGraphAddMemsetNode(NODE_ARGUMENTS, p, current())); }
EXPORT cudaError_t cudaGraphAddHostNode(NODE, const CUDA_HOST_NODE_PARAMS *p) { RETURN(driver.cuGraphAddHostNode(NODE_ARGUMENTS, p)); }
EXPORT cudaError_t cudaGraphAddChildGraphNode(NODE, CUgraph child) { RETURN(driver.cuGraphAddChildGraphNode(NODE_ARGUMENTS, child)); }
EXPORT cudaError_t cudaGraphAddEmptyNode(NODE) { RETURN(driver.cuGraphAddEmptyNode(NODE_ARGUMENTS)); }
EXPORT cudaError_t cudaGraphAddMemAllocNode(NODE, CUDA_MEM_ALLOC_NODE_PARAMS *p) { RETURN(driver.cuGraphAddMemAllocNode(NODE_ARGUMENTS, p)); }
EXPORT cudaError_t cudaGraphAddMemFreeNode(NODE, void *at) { RETURN(driver.cuGraphAddMemFreeNode(NODE_ARGUMENTS, (CUdeviceptr)at)); }

EXPORT cudaError_t cudaUserObjectCreate(void **out, void *data, CUhostFn destroy, unsigned count, unsigned flags) { RETURN_LOADED(driver.cuUserObjectCreate(out, data, destroy, count, flags)); }
EXPORT cudaError_t cudaUserObjectRetain(void *object, unsigned count) { RETURN_LOADED(driver.cuUserObjectRetain(object, count)); }
EXPORT cudaError_t cudaUserObjectRelease(void *object, unsigned count) { RETURN_LOADED(driver.cuUserObjectRelease(object, count)); }
EXPORT cudaError_t cudaGraphRetainUserObject(CUgraph g, void *object, unsigned count, unsigned flags) { RETURN_LOADED(driver.cuGraphRetainUserObject(g, object, count, flags)); }
EXPORT cudaError_t cudaGraphReleaseUserObject(CUgraph g, void *object, unsigned count) { RETURN_LOADED(driver.cuGraphReleaseUserObject(g, object, count)); }
