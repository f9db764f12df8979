/* Memory of this container that the library did not see, and that the node's audit writes into the limits page, counts against the quota for every
 * kind of memory that is requested next, in processes that run already. */
#include "container.h"

#define CARDS CARD_A "=640MiB,context=256MiB" /* 384 MiB are left beside a context */

CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *);

static void audit_finds(unsigned mib)
{
    shell("%s set %s --card %s=unaccounted=%uMiB", getenv("SLICE"), container_directory, CARD_A, mib);
}

static void it_is_taken_off_what_can_be_had(void)
{
    CUdeviceptr first, p;
    context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&first, 100 * MIB), CUDA_SUCCESS);
    audit_finds(184);
    EXPECT_EQ(free_bytes(), 100 * MIB);
    EXPECT_EQ(cuMemAlloc_v2(&p, 102 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc_v2(&p, 100 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes(), 0);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    audit_finds(500); /* more than is left */
    EXPECT_EQ(free_bytes(), 0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemFree_v2(first), CUDA_SUCCESS);
    audit_finds(0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 384 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(peak(CARD_A), 640 * MIB);
}

static void pools_and_graphs_are_refused_as_well(void)
{
    CUdeviceptr p;
    CUgraph g;
    CUgraphNode n;
    CUgraphExec e;
    CUDA_MEM_ALLOC_NODE_PARAMS a = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}}, .bytesize = 20 * MIB};
    context_on(0);
    audit_finds(370);
    EXPECT_EQ(cuMemAllocAsync(&p, 20 * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddMemAllocNode(&n, g, NULL, 0, &a), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAllocAsync(&p, 14 * MIB, NULL), CUDA_SUCCESS);
    EXPECT(peak(CARD_A) <= 640 * MIB - 370 * MIB);
}

static void a_context_needs_what_is_left_too(void)
{
    CUcontext c;
    audit_finds(400);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    audit_finds(380);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_SUCCESS);
}

int main(void)
{
    IN(CARDS, it_is_taken_off_what_can_be_had);
    IN(CARDS, pools_and_graphs_are_refused_as_well);
    IN(CARDS, a_context_needs_what_is_left_too);
    FINISH;
}
