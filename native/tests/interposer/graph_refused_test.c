/* A launch that the driver refuses may have taken its memory even so. Tested under a policy of the driver in which graphs share no memory and
 * keep what they had (docs/develop/simgpu.md, SIMGPU_POLICY). */
#include "judge.h"

static CUstream stream;

static CUgraph graph_of(size_t size, bool freed)
{
    CUgraph g;
    CUgraphNode n = NULL, f = NULL;
    CUDA_MEM_ALLOC_NODE_PARAMS a = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}}, .bytesize = size};
    EXPECT_EQ(cuGraphCreate(&g, 0), 0);
    EXPECT_EQ(cuGraphAddMemAllocNode(&n, g, NULL, 0, &a), 0);
    if (freed) EXPECT_EQ(cuGraphAddMemFreeNode(&f, g, &n, 1, a.dptr), 0);
    return g;
}

static void what_a_refused_launch_keeps_is_not_promised_to_the_next_graph(void)
{
    CUgraphExec kept, other;
    CUdeviceptr p;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&other, graph_of(64 * MIB, true), 0), 0);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&kept, graph_of(64 * MIB, false), 0), 0);
    EXPECT_EQ(cuGraphLaunch(kept, stream), 0);
    EXPECT_EQ(cuDeviceGraphMemTrim(0), 0);
    EXPECT_EQ(cuGraphLaunch(kept, stream), CUDA_ERROR_INVALID_VALUE); /* its memory is still allocated */
    while (!cuMemAlloc_v2(&p, 2 * MIB)) {}
    cuGraphLaunch(other, stream);
    cuStreamSynchronize(stream);
    EXPECT_NEVER_OVER;
}

int main(void)
{
    CUcontext context;
    setenv("SIMGPU_POLICY", "1", 1);
    cuInit(0);
    cuCtxCreate_v2(&context, 0, 0);
    cuStreamCreate(&stream, 1);
    RUN(what_a_refused_launch_keeps_is_not_promised_to_the_next_graph);
    FINISH;
}
