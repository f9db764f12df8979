/* Kernel nodes of graphs whose module was unloaded: simgpu refuses to run them, and reads nothing that was freed (SANITIZE=address shows that). */
#include "check.h"

CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphClone(CUgraph *, CUgraph);
CUresult cuGraphAddKernelNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphKernelNodeGetParams(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphKernelNodeSetParams(CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *);

static unsigned long long microseconds = 5;
static void *parameters[] = {&microseconds};

static CUDA_KERNEL_NODE_PARAMS kernel_of(CUmodule m)
{
    CUDA_KERNEL_NODE_PARAMS p = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1, .kernelParams = parameters};
    EXPECT_EQ(cuModuleGetFunction(&p.func, m, "spin"), CUDA_SUCCESS);
    return p;
}

static CUmodule load(void)
{
    CUmodule m = NULL;
    EXPECT_EQ(cuModuleLoadData(&m, spin_ptx), CUDA_SUCCESS);
    return m;
}

static void a_graph_does_not_run_a_kernel_whose_module_is_gone(void)
{
    CUmodule m = load();
    CUDA_KERNEL_NODE_PARAMS p = kernel_of(m);
    CUgraph g, twin;
    CUgraphNode n;
    CUgraphExec e, late;
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddKernelNode(&n, g, NULL, 0, &p), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(e, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(e, NULL), CUDA_ERROR_INVALID_HANDLE);
    EXPECT(cuGraphClone(&twin, g) != CUDA_SUCCESS);
    EXPECT(cuGraphInstantiateWithFlags(&late, g, 0) != CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecDestroy(e), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
}

static void a_node_takes_a_kernel_of_another_module_afterwards(void)
{
    CUmodule gone = load(), m = load();
    CUDA_KERNEL_NODE_PARAMS p = kernel_of(gone), other = kernel_of(m), got;
    CUgraph g;
    CUgraphNode n;
    CUgraphExec e;
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddKernelNode(&n, g, NULL, 0, &p), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleUnload(gone), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphKernelNodeGetParams(n, &got), CUDA_SUCCESS);
    EXPECT_EQ(*(unsigned long long *)got.kernelParams[0], microseconds);
    EXPECT_EQ(cuGraphKernelNodeSetParams(n, &other), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(e, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecDestroy(e), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
}

int main(void)
{
    CUcontext c;
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0)) return 1;
    RUN(a_graph_does_not_run_a_kernel_whose_module_is_gone);
    RUN(a_node_takes_a_kernel_of_another_module_afterwards);
    FINISH;
}
