/* Calls that stop halfway, because the process has no address space left or an argument is wrong: nothing of them stays uncounted. */
#include "container.h"

#include <sys/resource.h>

CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *);
CUresult cuGraphUpload(CUgraphExec, CUstream);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *, CUdevice);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);

#define GIB (1024 * MIB)
#define ALLOCATED 1 /* CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE */

/* Small blocks are still had from the heap, which is grown first; no more pages can be mapped, except these bytes. */
static void no_address_space(size_t but)
{
    static void *block[6000];
    for (int i = 0; i < 6000; i++) block[i] = malloc(60000);
    for (int i = 0; i < 5999; i++) free(block[i]); /* the last one keeps the heap's end where it is */
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    EXPECT_EQ(f && fscanf(f, "%ld", &pages) == 1, true);
    if (f) fclose(f);
    setrlimit(RLIMIT_AS, &(struct rlimit){.rlim_cur = pages * 4096ul + but, .rlim_max = RLIM_INFINITY});
}

static void address_space(void)
{
    setrlimit(RLIMIT_AS, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
}

static void fill(size_t step)
{
    CUdeviceptr p;
    for (int i = 0; i < 4096 && cuMemAlloc_v2(&p, step) == CUDA_SUCCESS; i++) {}
}

static CUgraph graph_with(size_t bytes)
{
    CUgraph g = NULL;
    CUgraphNode n;
    CUDA_MEM_ALLOC_NODE_PARAMS a = {.poolProps = {.allocType = ALLOCATED, .location = {ALLOCATED, 0}}, .bytesize = bytes};
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    (void)cuGraphAddMemAllocNode(&n, g, NULL, 0, &a);
    return g;
}

static void an_upload_in_a_stream_that_is_captured_is_counted(void)
{
    context_on(0);
    CUgraphExec e = NULL;
    CUstream s;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, graph_with(400 * MIB), 0), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    fill(32 * MIB);
    EXPECT_EQ(cuStreamCreate(&s, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamBeginCapture_v2(s, 2), CUDA_SUCCESS);
    (void)cuGraphUpload(e, s);
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
}

static void a_graph_of_a_size_that_no_card_has_is_refused(void)
{
    context_on(0);
    CUgraphExec e = NULL;
    CUresult r = cuGraphInstantiateWithFlags(&e, graph_with(0 - 2 * MIB), 0);
    if (!r) r = cuGraphLaunch(e, NULL);
    EXPECT_EQ(r != CUDA_SUCCESS, true);
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
}

static void without_address_space_a_small_allocation_is_refused_whole(void)
{
    CUdeviceptr p;
    context_on(0);
    no_address_space(0);
    for (int i = 0; i < 2000; i++) (void)cuMemAlloc_v2(&p, MIB - 512);
    address_space();
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
}

static void without_address_space_a_pool_is_counted_or_refused(void)
{
    CUmemoryPool pool = NULL;
    CUdeviceptr p;
    context_on(0);
    no_address_space(0);
    if (!cuDeviceGetDefaultMemPool(&pool, 0))
        for (int i = 0; i < 100; i++) (void)cuMemAllocFromPoolAsync(&p, 32 * MIB, pool, NULL);
    address_space();
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
}

static void a_graph_that_cannot_be_remembered_is_not_made(void)
{
    CUdeviceptr p;
    CUgraphExec e = NULL;
    context_on(0);
    CUgraph g = graph_with(400 * MIB);
    EXPECT_EQ(cuMemAllocAsync(&p, 2 * MIB, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&p, 256), CUDA_SUCCESS); /* the tables of the first granule */
    no_address_space(256 * 1024);
    for (int i = 0; i < 2000000 && !cuMemAlloc_v2(&p, 256); i++) {} /* until the table of records is full */
    CUresult r = cuGraphInstantiateWithFlags(&e, g, 0);
    for (int i = 0; i < 100 && !cuMemAllocAsync(&p, 32 * MIB, NULL); i++) {}
    if (!r) (void)cuGraphUpload(e, NULL);
    address_space();
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
}

static void an_unmapping_that_fails_ends_no_mapping(void)
{
    CUmemAllocationProp on_card = {.type = ALLOCATED, .location = {ALLOCATED, 0}};
    CUmemGenericAllocationHandle h;
    CUdeviceptr va, p;
    context_on(0);
    for (int i = 0; i < 40 && !cuMemCreate(&h, 64 * MIB, &on_card, 0); i++) {
        EXPECT_EQ(cuMemAddressReserve(&va, 64 * MIB, 0, 0, 0), CUDA_SUCCESS);
        EXPECT_EQ(cuMemMap(va, 64 * MIB, 0, h, 0), CUDA_SUCCESS);
        EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
        if (cuMemAddressFree(va, 64 * MIB) || cuMemAlloc_v2(&p, 64 * MIB)) break; /* at the same address */
        (void)cuMemUnmap(va, 0 - va + 2 * MIB);
        (void)cuMemFree_v2(p);
        (void)cuMemAddressReserve(&va, 64 * MIB, 0, 0, 0); /* the address is not used again */
    }
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
}

int main(void)
{
    static const char quota[] = CARD_A "=1GiB,context=256MiB";
    IN(quota, an_upload_in_a_stream_that_is_captured_is_counted);
    IN(quota, a_graph_of_a_size_that_no_card_has_is_refused);
    IN(quota, without_address_space_a_small_allocation_is_refused_whole);
    IN(quota, without_address_space_a_pool_is_counted_or_refused);
    IN(quota, a_graph_that_cannot_be_remembered_is_not_made);
    IN(quota, an_unmapping_that_fails_ends_no_mapping);
    FINISH;
}
