/* The memory of graphs under a quota of 1 GiB, of which the context takes 256 MiB. */
#include "judge.h"

#include <pthread.h>

static CUcontext context;
static CUstream stream;

static CUgraphNode add_alloc(CUgraph g, CUgraphNode after, size_t size, CUdeviceptr *at)
{
    CUgraphNode n = NULL;
    CUDA_MEM_ALLOC_NODE_PARAMS a = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}}, .bytesize = size};
    EXPECT_EQ(cuGraphAddMemAllocNode(&n, g, &after, after != NULL, &a), 0);
    *at = a.dptr;
    return n;
}

static CUgraphNode add_free(CUgraph g, CUgraphNode after, CUdeviceptr at)
{
    CUgraphNode n = NULL;
    EXPECT_EQ(cuGraphAddMemFreeNode(&n, g, &after, 1, at), 0);
    return n;
}

static CUgraphNode add_both(CUgraph g, CUgraphNode after, size_t size)
{
    CUdeviceptr at = 0;
    CUgraphNode n = add_alloc(g, after, size, &at);
    return add_free(g, n, at);
}

/* Allocations one after the other, each freed before the next. */
static CUgraph chain(int count, size_t size)
{
    CUgraph g;
    CUgraphNode last = NULL;
    cuGraphCreate(&g, 0);
    for (int i = 0; i < count; i++) last = add_both(g, last, size);
    return g;
}

/* Allocations beside each other. */
static CUgraph fan(int count, size_t size)
{
    CUgraph g;
    cuGraphCreate(&g, 0);
    for (int i = 0; i < count; i++) add_both(g, NULL, size);
    return g;
}

static CUgraphExec made(CUgraph g)
{
    CUgraphExec e = NULL;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), 0);
    cuGraphDestroy(g);
    return e;
}

static CUresult run(CUgraphExec e)
{
    CUresult r = cuGraphLaunch(e, stream);
    cuStreamSynchronize(stream);
    return r;
}

static void clean(CUgraphExec e)
{
    cuGraphExecDestroy(e);
    EXPECT_EQ(cuDeviceGraphMemTrim(0), 0);
    EXPECT_BOTH(0);
}

static void a_graph_is_charged_at_its_first_launch_until_the_trim(void)
{
    CUgraphExec e = made(chain(1, 10 * MIB));
    EXPECT_BOTH(0);
    EXPECT_EQ(run(e), 0);
    EXPECT_BOTH(10 * MIB);
    EXPECT_EQ(run(e), 0);
    EXPECT_BOTH(10 * MIB);
    EXPECT_EQ(cuGraphExecDestroy(e), 0);
    EXPECT_BOTH(10 * MIB); /* the reserved memory belongs to the process, not to the graph */
    EXPECT_EQ(cuDeviceGraphMemTrim(0), 0);
    EXPECT_BOTH(0);
}

static void an_upload_charges_like_a_launch(void)
{
    CUgraphExec e = made(chain(1, 10 * MIB));
    EXPECT_EQ(cuGraphUpload(e, stream), 0);
    EXPECT_BOTH(10 * MIB);
    EXPECT_EQ(run(e), 0);
    EXPECT_BOTH(10 * MIB);
    clean(e);
    CUDA_GRAPH_INSTANTIATE_PARAMS p = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, .hUploadStream = stream};
    EXPECT_EQ(cuGraphInstantiateWithParams(&e, chain(1, 6 * MIB), &p), 0);
    EXPECT_BOTH(6 * MIB);
    clean(e);
}

static void what_one_free_puts_before_an_allocation_is_used_again(void)
{
    CUgraphExec e = made(chain(50, 700 * MIB)); /* together far beyond the quota */
    EXPECT_EQ(run(e), 0);
    EXPECT_BOTH(700 * MIB);
    clean(e);
    e = made(fan(3, 10 * MIB));
    EXPECT_EQ(run(e), 0);
    EXPECT_BOTH(30 * MIB);
    clean(e);
}

/* A driver may take the memory as early as the instantiation. */
static void what_needs_more_than_the_quota_is_out_of_memory_at_once(void)
{
    CUgraphExec e = NULL;
    CUgraph g = fan(4, 200 * MIB);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), OOM);
    EXPECT_EQ(cuGraphInstantiate_v2(&e, g, NULL, NULL, 0), OOM);
    cuGraphDestroy(g);
    EXPECT_BOTH(0);
}

static void a_launch_beyond_the_quota_is_out_of_memory(void)
{
    CUgraphExec e = made(fan(4, 150 * MIB)), fits = made(fan(3, 256 * MIB));
    CUdeviceptr rest;
    EXPECT_EQ(run(fits), 0); /* to the last byte */
    EXPECT_EQ(run(fits), 0);
    EXPECT_EQ(left(), 0);
    cuStreamSynchronize(stream);
    cuDeviceGraphMemTrim(0);
    EXPECT_EQ(cuMemAlloc_v2(&rest, 500 * MIB), 0);
    EXPECT_EQ(run(e), OOM);
    EXPECT_EQ(cuGraphUpload(e, stream), OOM);
    EXPECT_BOTH(500 * MIB);
    cuMemFree_v2(rest);
    EXPECT_EQ(run(e), 0);
    cuGraphExecDestroy(e);
    clean(fits);
}

static void graphs_share_one_store(void)
{
    CUgraphExec a = made(chain(1, 300 * MIB)), b = made(chain(1, 400 * MIB));
    EXPECT_EQ(run(a), 0);
    EXPECT_EQ(run(b), 0);
    EXPECT_EQ(run(a), 0);
    EXPECT_BOTH(400 * MIB);
    cuGraphExecDestroy(a);
    clean(b);
}

static void what_a_graph_leaves_allocated_stays_until_it_is_freed(void)
{
    CUgraph g;
    CUdeviceptr kept;
    cuGraphCreate(&g, 0);
    add_both(g, add_alloc(g, NULL, 20 * MIB, &kept), 10 * MIB);
    CUgraphExec e = made(g), next = made(chain(1, 30 * MIB));
    EXPECT_EQ(run(e), 0);
    EXPECT_BOTH(30 * MIB);
    EXPECT_EQ(run(next), 0);
    EXPECT_BOTH(50 * MIB);
    EXPECT_EQ(cuMemFree_v2(kept), 0);
    EXPECT_EQ(run(e), 0);
    EXPECT_BOTH(50 * MIB);
    EXPECT_EQ(cuMemFreeAsync(kept, stream), 0);
    cuGraphExecDestroy(next);
    clean(e);
}

static void at_the_margin_pools_and_the_store_give_way(void)
{
    CUdeviceptr p, rest = leave_only(64 * MIB);
    uint64_t all = UINT64_MAX, none = 0;
    CUmemoryPool pool;
    cuDeviceGetDefaultMemPool(&pool, 0);
    cuMemPoolSetAttribute(pool, 4, &all); /* it keeps everything */
    EXPECT_EQ(cuMemAllocAsync(&p, 40 * MIB, stream), 0);
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    CUgraphExec e = made(chain(1, 64 * MIB));
    EXPECT_EQ(run(e), 0);
    EXPECT_EQ(left(), 0);
    EXPECT_EQ(cuMemAllocAsync(&p, 64 * MIB, stream), 0);
    EXPECT_EQ(run(e), OOM);
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    EXPECT_EQ(run(e), 0);
    cuMemPoolSetAttribute(pool, 4, &none);
    cuMemFree_v2(rest);
    clean(e);
}

static CUgraphNode add_moved(CUgraph g, CUgraphNode after, CUgraph child)
{
    CUgraphNode n = NULL;
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = {child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE}};
    EXPECT_EQ(cuGraphAddNode_v2(&n, g, &after, NULL, after != NULL, &p), 0);
    return n;
}

static void a_child_graph_counts_with_its_parent(void)
{
    CUgraph g, same = fan(2, 16 * MIB), other = fan(4, 16 * MIB);
    CUgraphNode n, before;
    CUdeviceptr at;
    CUgraphExec e;
    cuGraphCreate(&g, 0);
    before = add_alloc(g, NULL, 8 * MIB, &at);
    n = add_moved(g, before, fan(2, 16 * MIB));
    add_free(g, n, at);
    EXPECT_EQ(cuGraphInstantiate_v2(&e, g, NULL, NULL, 0), 0);
    EXPECT_EQ(run(e), 0);
    EXPECT_BOTH(40 * MIB);
    EXPECT_EQ(cuGraphExecChildGraphNodeSetParams(e, n, same), 0);
    EXPECT_EQ(run(e), 0);
    EXPECT_BOTH(40 * MIB);
    EXPECT_EQ(cuGraphExecChildGraphNodeSetParams(e, n, other), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(run(e), 0);
    EXPECT_BOTH(40 * MIB);
    EXPECT_NEVER_OVER;
    cuGraphDestroy(g), cuGraphDestroy(same), cuGraphDestroy(other);
    clean(e);
}

/* One allocation at each of `levels` levels. */
static CUgraph nested(int levels, size_t size)
{
    CUgraph g = chain(1, size);
    while (--levels) {
        CUgraph outer = fan(1, size);
        add_moved(outer, NULL, g);
        g = outer;
    }
    return g;
}

static void children_count_however_deep_they_are(void)
{
    CUgraphExec e = NULL;
    CUgraph g = nested(97, 8 * MIB); /* 776 MiB, where 768 are left */
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), OOM);
    cuGraphDestroy(g);
    e = made(nested(96, 8 * MIB));
    EXPECT_EQ(run(e), 0);
    EXPECT_NEVER_OVER;
    clean(e);
}

static void an_updated_graph_is_looked_at_again(void)
{
    CUgraphExec e = made(chain(2, 20 * MIB));
    CUgraph same = chain(2, 20 * MIB), other = chain(3, 20 * MIB);
    CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO info = {0};
    EXPECT_EQ(cuGraphExecUpdate_v2(e, same, &info), 0);
    EXPECT_EQ(run(e), 0);
    EXPECT_BOTH(20 * MIB);
    EXPECT_EQ(cuGraphExecUpdate_v2(e, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    cuGraphDestroy(same);
    cuGraphDestroy(other);
    clean(e);
}

static void a_graph_without_memory_is_launched_as_it_is(void)
{
    CUgraph g;
    CUgraphNode n;
    cuGraphCreate(&g, 0);
    cuGraphAddEmptyNode(&n, g, NULL, 0);
    CUgraphExec e = made(g);
    CUdeviceptr rest = leave_only(0);
    EXPECT_EQ(run(e), 0);
    cuMemFree_v2(rest);
    EXPECT_EQ(cuGraphLaunch(NULL, stream), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphInstantiateWithFlags(NULL, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuDeviceGraphMemTrim(99), CUDA_ERROR_INVALID_DEVICE);
    clean(e);
}

/* ---- threads ---- */

static _Atomic int refused;

static void *launch_often(void *graph)
{
    CUstream s;
    cuCtxSetCurrent(context);
    cuStreamCreate(&s, 1);
    for (int i = 0; i < 400; i++) {
        refused += cuGraphLaunch(graph, s) != 0;
        if (i % 8 == 0) cuStreamSynchronize(s);
        if (i % 32 == 0) cuDeviceGraphMemTrim(0);
    }
    cuStreamSynchronize(s);
    return NULL;
}

static void threads_that_launch_and_trim_pass_no_quota(void)
{
    enum { N = 4 };
    pthread_t t[N];
    CUgraphExec e[N];
    CUdeviceptr rest = leave_only(N * 24 * MIB);
    for (int i = 0; i < N; i++) e[i] = made(chain(3, 24 * MIB));
    for (int i = 0; i < N; i++) pthread_create(&t[i], NULL, launch_often, e[i]);
    for (int i = 0; i < N; i++) pthread_join(t[i], NULL);
    EXPECT_EQ(refused, 0);
    EXPECT_NEVER_OVER;
    cuMemFree_v2(rest);
    for (int i = 1; i < N; i++) cuGraphExecDestroy(e[i]);
    clean(e[0]);
}

int main(void)
{
    cuInit(0);
    cuCtxCreate_v2(&context, 0, 0);
    cuStreamCreate(&stream, 1);
    RUN(a_graph_is_charged_at_its_first_launch_until_the_trim);
    RUN(an_upload_charges_like_a_launch);
    RUN(what_one_free_puts_before_an_allocation_is_used_again);
    RUN(what_needs_more_than_the_quota_is_out_of_memory_at_once);
    RUN(a_launch_beyond_the_quota_is_out_of_memory);
    RUN(graphs_share_one_store);
    RUN(what_a_graph_leaves_allocated_stays_until_it_is_freed);
    RUN(at_the_margin_pools_and_the_store_give_way);
    RUN(a_child_graph_counts_with_its_parent);
    RUN(children_count_however_deep_they_are);
    RUN(an_updated_graph_is_looked_at_again);
    RUN(a_graph_without_memory_is_launched_as_it_is);
    RUN(threads_that_launch_and_trim_pass_no_quota);
    EXPECT_NEVER_OVER;
    FINISH;
}
