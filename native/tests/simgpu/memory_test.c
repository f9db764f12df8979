/* How much of the card each kind of memory takes, judged by the card's own count. */
#include "check.h"

static CUcontext ctx;

static void a_context_costs_what_the_cards_file_says(void)
{
    EXPECT_EQ(cuCtxCreate_v2(&ctx, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    CUcontext second;
    EXPECT_EQ(cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), 2 * CONTEXT);
    EXPECT_EQ(cuCtxDestroy_v2(second), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(ctx), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void large_allocations_take_whole_granules(void)
{
    CUdeviceptr p;
    EXPECT_EQ(cuMemAlloc_v2(&p, 3 * MIB + 1), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void small_allocations_share_a_granule(void)
{
    CUdeviceptr p[100];
    for (int i = 0; i < 100; i++) EXPECT_EQ(cuMemAlloc_v2(&p[i], 1000), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 2 * MIB);
    EXPECT(p[0] != p[1] && p[0] % 256 == 0 && p[99] % 256 == 0);
    for (int i = 0; i < 100; i++) EXPECT_EQ(cuMemFree_v2(p[i]), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void what_does_not_fit_is_out_of_memory_and_costs_nothing(void)
{
    CUdeviceptr p;
    EXPECT_EQ(cuMemAlloc_v2(&p, 4096 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc_v2(&p, ~0ull), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuMemAlloc_v2(&p, 4096 * MIB - CONTEXT), CUDA_SUCCESS);
    CUdeviceptr one;
    EXPECT_EQ(cuMemAlloc_v2(&one, 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
}

static void wrong_arguments_are_refused(void)
{
    CUdeviceptr p;
    EXPECT_EQ(cuMemAlloc_v2(NULL, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAlloc_v2(&p, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFree_v2(12345), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFree_v2(0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemGetInfo_v2(NULL, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&p, 4 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(p + 512), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
}

static void pitched_memory_costs_the_pitch_times_the_height(void)
{
    CUdeviceptr p;
    size_t pitch, size;
    EXPECT_EQ(cuMemAllocPitch_v2(&p, &pitch, 1025, 4096, 4), CUDA_SUCCESS);
    EXPECT_EQ(pitch, 1536);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    EXPECT_EQ(cuMemGetAddressRange_v2(NULL, &size, p), CUDA_SUCCESS);
    EXPECT_EQ(size, 1536 * 4096);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
}

static void managed_memory_counts_and_host_memory_does_not(void)
{
    CUdeviceptr p;
    void *h;
    unsigned managed = 0;
    EXPECT_EQ(cuMemAllocManaged(&p, 10 * MIB, 1), CUDA_SUCCESS);
    *(volatile char *)(uintptr_t)p = 1; /* the host may touch it */
    EXPECT_EQ(cuPointerGetAttribute(&managed, 8, p), CUDA_SUCCESS);
    EXPECT_EQ(managed, 1);
    EXPECT_EQ(used(), CONTEXT + 10 * MIB);
    EXPECT_EQ(cuMemHostAlloc(&h, 100 * MIB, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 10 * MIB);
    EXPECT_EQ(cuMemFreeHost(h), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void arrays_count_bytes_of_elements_and_every_level(void)
{
    CUarray a;
    CUmipmappedArray m;
    CUDA_ARRAY_DESCRIPTOR d = {1024, 1024, 0x20, 4}; /* 4 floats: 16 MiB */
    EXPECT_EQ(cuArrayCreate_v2(&a, &d), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 16 * MIB);
    EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
    CUDA_ARRAY3D_DESCRIPTOR d3 = {1024, 1024, 0, 0x20, 4, 0};
    EXPECT_EQ(cuMipmappedArrayCreate(&m, &d3, 11), CUDA_SUCCESS); /* 16 + 4 + 1 + ... */
    EXPECT_EQ(used(), CONTEXT + 22 * MIB);
    EXPECT_EQ(cuMipmappedArrayDestroy(m), CUDA_SUCCESS);
    d3.Flags = 0x80;
    EXPECT_EQ(cuArray3DCreate_v2(&a, &d3), CUDA_SUCCESS); /* its memory is mapped later */
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
}

static void arrays_go_with_their_context(void)
{
    CUcontext second;
    CUarray a;
    CUmipmappedArray m;
    CUDA_ARRAY3D_DESCRIPTOR d = {1024, 1024, 0, 0x20, 1, 0};
    EXPECT_EQ(cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuArray3DCreate_v2(&a, &d), CUDA_SUCCESS);
    EXPECT_EQ(cuMipmappedArrayCreate(&m, &d, 4), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxDestroy_v2(second), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(ctx), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuArrayDestroy(a), CUDA_ERROR_INVALID_HANDLE);
}

static void contents_survive_copies_and_fills(void)
{
    CUdeviceptr p, q;
    unsigned in[256], out[256] = {0};
    for (unsigned i = 0; i < 256; i++) in[i] = i * 7;
    EXPECT_EQ(cuMemAlloc_v2(&p, sizeof in), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&q, 2 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyHtoD_v2(p, in, sizeof in), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoD_v2(q + 4096, p, sizeof in), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD32_v2(q + 4096, 42, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoH_v2(out, q + 4096, sizeof out), CUDA_SUCCESS);
    EXPECT(out[0] == 42 && !memcmp(out + 1, in + 1, sizeof in - 4));
    EXPECT_EQ(cuMemcpyHtoD_v2(q + 2 * MIB - 4, in, 8), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFree_v2(p) + cuMemFree_v2(q), CUDA_SUCCESS);
}

static void a_pool_is_charged_for_what_it_reserves_until_it_is_trimmed(void)
{
    CUmemoryPool pool;
    CUdeviceptr p[4];
    uint64_t reserved, threshold = ~0ull;
    EXPECT_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemPoolSetAttribute(pool, 4, &threshold), CUDA_SUCCESS);
    for (int i = 0; i < 4; i++) EXPECT_EQ(cuMemAllocAsync(&p[i], 10 * MIB, NULL), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 64 * MIB);
    EXPECT_EQ(cuMemPoolGetAttribute(pool, 5, &reserved), CUDA_SUCCESS);
    EXPECT_EQ(reserved, 64 * MIB);
    for (int i = 0; i < 4; i++) EXPECT_EQ(cuMemFreeAsync(p[i], NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(NULL), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 64 * MIB);
    EXPECT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    threshold = 0;
    EXPECT_EQ(cuMemPoolSetAttribute(pool, 4, &threshold), CUDA_SUCCESS);
}

static void an_endless_loop_of_async_allocations_never_grows(void)
{
    CUdeviceptr p;
    for (int i = 0; i < 1000; i++) {
        EXPECT_EQ(cuMemAllocAsync(&p, 512 * MIB, NULL), CUDA_SUCCESS);
        EXPECT_EQ(cuMemFreeAsync(p, NULL), CUDA_SUCCESS);
    }
    EXPECT_EQ(used(), CONTEXT + 512 * MIB);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS); /* the release threshold is 0 */
    EXPECT_EQ(used(), CONTEXT);
}

static void a_destroyed_pool_lives_until_its_last_allocation_is_freed(void)
{
    CUmemoryPool pool;
    CUdeviceptr p;
    CUmemPoolProps props = {.allocType = 1, .location = {1, 0}, .maxSize = 64 * MIB};
    EXPECT_EQ(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 65 * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&p, MIB, pool, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 32 * MIB);
    EXPECT_EQ(cuMemFreeAsync(p, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void a_handle_is_charged_until_its_last_reference_and_mapping_are_gone(void)
{
    CUmemGenericAllocationHandle h, again;
    CUdeviceptr va;
    CUmemAllocationProp prop = {.type = 1, .location = {1, 0}};
    CUmemAccessDesc access = {{1, 0}, 3};
    char in[4] = "abc", out[4] = "";
    EXPECT_EQ(cuMemCreate(&h, 3 * MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE); /* not a multiple of the granularity */
    EXPECT_EQ(cuMemCreate(&h, 20 * MIB, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 20 * MIB);
    EXPECT_EQ(cuMemAddressReserve(&va, 40 * MIB, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(va, 20 * MIB, 0, h, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemSetAccess(va, 20 * MIB, &access, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 20 * MIB);
    EXPECT_EQ(cuMemcpyHtoD_v2(va + 100, in, 4), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)va), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(va, 20 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(va + 20 * MIB, 20 * MIB, 0, again, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoH_v2(out, va + 20 * MIB + 100, 4), CUDA_SUCCESS);
    EXPECT(!strcmp(out, "abc"));
    EXPECT_EQ(cuMemUnmap(va + 20 * MIB, 20 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 20 * MIB);
    EXPECT_EQ(cuMemRelease(again), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuMemRelease(again), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAddressFree(va, 40 * MIB), CUDA_SUCCESS);
}

static void host_memory_by_handle_is_never_charged(void)
{
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = 1, .location = {3, 0}}; /* on a host NUMA node, as NCCL requests it */
    EXPECT_EQ(cuMemCreate(&h, 64 * MIB, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
}

static void graph_memory_stays_reserved_until_it_is_trimmed(void)
{
    CUstream s;
    CUgraph g;
    CUgraphExec e;
    CUdeviceptr a, b;
    uint64_t reserved;
    EXPECT_EQ(cuStreamCreate(&s, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamBeginCapture_v2(s, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAllocAsync(&a, 10 * MIB, s), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeAsync(a, s), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAllocAsync(&b, 30 * MIB, s), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeAsync(b, s), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(s, &g), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    for (int i = 0; i < 3; i++) EXPECT_EQ(cuGraphLaunch(e, s), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 30 * MIB); /* never both at the same time */
    EXPECT_EQ(cuDeviceGetGraphMemAttribute(0, 2, &reserved), CUDA_SUCCESS);
    EXPECT_EQ(reserved, 30 * MIB);
    EXPECT_EQ(cuGraphExecDestroy(e), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 30 * MIB);
    EXPECT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void a_module_costs_its_variables_at_once_and_its_code_at_first_use(void)
{
    CUmodule m;
    CUfunction f;
    CUdeviceptr table;
    size_t size;
    EXPECT_EQ(cuModuleLoadData(&m, spin_ptx), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB); /* 3 MiB of variables */
    EXPECT_EQ(cuModuleGetGlobal_v2(&table, &size, m, "table"), CUDA_SUCCESS);
    EXPECT_EQ(size, 3 * MIB);
    EXPECT_EQ(cuModuleGetFunction(&f, m, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&f, m, "absent"), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB);
    EXPECT_EQ(cuModuleGetFunction(&f, m, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(f, 10, NULL), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuModuleLoadData(&m, "this is no PTX"), CUDA_ERROR_INVALID_PTX);
}

static void a_larger_device_heap_is_charged(void)
{
    EXPECT_EQ(cuCtxSetLimit(2, 108 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 100 * MIB);
    EXPECT_EQ(cuCtxSetLimit(2, 8 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void destroying_a_context_frees_all_it_held(void)
{
    CUcontext c;
    CUdeviceptr p;
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_SUCCESS);
    for (int i = 0; i < 50; i++) EXPECT_EQ(cuMemAlloc_v2(&p, (size_t)(i + 1) * 100000), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxDestroy_v2(c), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(ctx), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

int main(void)
{
    CUdeviceptr p;
    if (cuMemAlloc_v2(&p, 1) != CUDA_ERROR_NOT_INITIALIZED || cuInit(0) != CUDA_SUCCESS) return 1;
    if (cuMemAlloc_v2(&p, 1) != CUDA_ERROR_INVALID_CONTEXT) return 1;
    RUN(a_context_costs_what_the_cards_file_says);
    RUN(large_allocations_take_whole_granules);
    RUN(small_allocations_share_a_granule);
    RUN(what_does_not_fit_is_out_of_memory_and_costs_nothing);
    RUN(wrong_arguments_are_refused);
    RUN(pitched_memory_costs_the_pitch_times_the_height);
    RUN(managed_memory_counts_and_host_memory_does_not);
    RUN(arrays_count_bytes_of_elements_and_every_level);
    RUN(arrays_go_with_their_context);
    RUN(contents_survive_copies_and_fills);
    RUN(a_pool_is_charged_for_what_it_reserves_until_it_is_trimmed);
    RUN(an_endless_loop_of_async_allocations_never_grows);
    RUN(a_destroyed_pool_lives_until_its_last_allocation_is_freed);
    RUN(a_handle_is_charged_until_its_last_reference_and_mapping_are_gone);
    RUN(host_memory_by_handle_is_never_charged);
    RUN(graph_memory_stays_reserved_until_it_is_trimmed);
    RUN(a_module_costs_its_variables_at_once_and_its_code_at_first_use);
    RUN(a_larger_device_heap_is_charged);
    RUN(destroying_a_context_frees_all_it_held);
    FINISH;
}
