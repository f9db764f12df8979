/* Child graphs at the quota, under several policies of the driver: threads nest, clone, destroy, launch and update them, and share the graphs
 * that they launch. The container must never exceed its quota. */
#include "container.h"

#include <pthread.h>
#include <stdatomic.h>

CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphClone(CUgraph *, CUgraph);
CUresult cuGraphAddNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, CUgraphNodeParams *);
CUresult cuGraphAddChildGraphNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph);
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode, CUgraph *);
CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *);
CUresult cuGraphAddMemFreeNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr);
CUresult cuGraphAddKernelNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphAddMemcpyNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMCPY3D *, CUcontext);
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec, CUgraphNode, CUgraph);
CUresult cuGraphExecUpdate_v2(CUgraphExec, CUgraph, CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO *);
CUresult cuGraphUpload(CUgraphExec, CUstream);

enum { THREADS = 6, ROUNDS = 250, SHARED = 3, QUOTA_MIB = 640, DEEPEST = 24 };
enum { CLONE = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, MOVE = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE };

static CUcontext context;
static CUfunction kernel;
static CUdeviceptr bytes;
static pthread_mutex_t turns[SHARED] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static CUgraphExec shared[SHARED];
static _Atomic unsigned launched, refused, updated, strange;

static unsigned roll(uint64_t *seed, unsigned sides)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(*seed >> 33) % sides;
}

/* Every call here succeeds or is out of memory. */
static bool well(CUresult r)
{
    if (r == CUDA_ERROR_OUT_OF_MEMORY) refused++;
    else if (r) strange++;
    return r == CUDA_SUCCESS;
}

static CUgraphNode add_memory(CUgraph g, CUgraphNode after, size_t size)
{
    CUgraphNode n = NULL, f = NULL;
    CUDA_MEM_ALLOC_NODE_PARAMS a = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}}, .bytesize = size};
    well(cuGraphAddMemAllocNode(&n, g, &after, after != NULL, &a));
    well(cuGraphAddMemFreeNode(&f, g, &n, 1, a.dptr));
    return f;
}

static CUgraphNode add_work(CUgraph g, CUgraphNode after)
{
    CUgraphNode n = NULL, c = NULL;
    unsigned long long us = 1;
    void *params[] = {&us};
    CUDA_KERNEL_NODE_PARAMS k = {.func = kernel, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1, .kernelParams = params};
    CUDA_MEMCPY3D copy = {.srcMemoryType = 2, .srcDevice = bytes, .dstMemoryType = 2, .dstDevice = bytes + 64, .WidthInBytes = 32, .Height = 1, .Depth = 1};
    well(cuGraphAddKernelNode_v2(&n, g, &after, after != NULL, &k));
    well(cuGraphAddMemcpyNode(&c, g, &n, 1, &copy, context));
    return c;
}

static CUgraphNode add_child(CUgraph g, CUgraphNode after, CUgraph child, int ownership)
{
    CUgraphNode n = NULL;
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = {child, ownership}};
    well(cuGraphAddNode_v2(&n, g, &after, NULL, after != NULL, &p));
    return n;
}

/* A child without memory is cloned, and the original is changed and destroyed at once. */
static CUgraphNode add_clone(CUgraph g, CUgraphNode after)
{
    CUgraph child = NULL, copy = NULL;
    CUgraphNode n = NULL;
    well(cuGraphCreate(&child, 0));
    add_work(child, NULL);
    well(cuGraphClone(&copy, child));
    well(cuGraphAddChildGraphNode(&n, g, &after, after != NULL, child));
    add_work(child, NULL);
    well(cuGraphDestroy(child));
    n = add_child(g, n, copy, CLONE);
    well(cuGraphDestroy(copy));
    return n;
}

/* The same seed gives the same shape, so that one graph can replace another. `inner`: the node of the outermost child. */
static CUgraph nest(uint64_t seed, CUgraphNode *inner)
{
    CUgraph g = NULL;
    *inner = NULL;
    for (unsigned level = 0, levels = 1 + roll(&seed, roll(&seed, 4) ? 4 : DEEPEST); level < levels; level++) {
        CUgraph outer = NULL;
        CUgraphNode last = NULL;
        well(cuGraphCreate(&outer, 0));
        for (unsigned i = roll(&seed, 3); i > 0; i--) last = add_memory(outer, roll(&seed, 2) ? last : NULL, (1 + roll(&seed, 12)) * MIB);
        last = roll(&seed, 2) ? add_work(outer, last) : add_clone(outer, last);
        if (g) last = *inner = add_child(outer, last, g, MOVE);
        if (roll(&seed, 2)) add_memory(outer, last, (1 + roll(&seed, 12)) * MIB);
        g = outer;
    }
    return g;
}

static void launch(CUgraphExec e, CUstream s, uint64_t *seed)
{
    for (unsigned i = 1 + roll(seed, 3); i > 0; i--)
        if (well(roll(seed, 8) ? cuGraphLaunch(e, s) : cuGraphUpload(e, s))) launched++;
}

/* Replaces the child by another graph of the same shape. A graph that was moved, or has another shape, must be refused. */
static void update(CUgraphExec e, CUgraphNode inner, uint64_t shape, uint64_t *seed)
{
    CUgraph child = NULL, empty = NULL, other;
    CUgraphNode unused;
    CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO info;
    if (inner && roll(seed, 2)) {
        well(cuGraphCreate(&empty, 0));
        well(cuGraphChildGraphNodeGetGraph(inner, &child));
        strange += cuGraphExecChildGraphNodeSetParams(e, inner, empty) != CUDA_ERROR_INVALID_VALUE;
        strange += cuGraphExecChildGraphNodeSetParams(e, inner, child) != CUDA_ERROR_INVALID_VALUE;
        strange += cuGraphDestroy(child) != CUDA_ERROR_INVALID_VALUE;
        well(cuGraphDestroy(empty));
        return;
    }
    other = nest(shape, &unused);
    updated += well(cuGraphExecUpdate_v2(e, other, &info));
    well(cuGraphDestroy(other));
}

/* Executable graphs that all threads launch; each has its own lock for changes. */
static void use_shared(CUstream s, uint64_t *seed)
{
    unsigned i = roll(seed, SHARED);
    CUgraphNode inner;
    pthread_mutex_lock(&turns[i]);
    if (shared[i] && roll(seed, 8) == 0) well(cuGraphExecDestroy(shared[i])), shared[i] = NULL;
    if (!shared[i]) {
        CUgraph g = nest(i, &inner);
        if (!well(cuGraphInstantiateWithFlags(&shared[i], g, 0))) shared[i] = NULL;
        well(cuGraphDestroy(g));
    } else if (roll(seed, 3) == 0) update(shared[i], NULL, i, seed);
    if (shared[i]) launch(shared[i], s, seed);
    pthread_mutex_unlock(&turns[i]);
}

static void use_own(CUstream s, uint64_t *seed)
{
    CUgraphNode inner;
    CUgraphExec e = NULL;
    uint64_t shape = roll(seed, 1 << 20);
    CUgraph g = nest(shape, &inner);
    if (well(cuGraphInstantiateWithFlags(&e, g, 0))) {
        launch(e, s, seed);
        update(e, inner, shape, seed);
        well(cuGraphDestroy(g));
        launch(e, s, seed);
        well(cuGraphExecDestroy(e));
    } else well(cuGraphDestroy(g));
}

static void *work(void *number)
{
    uint64_t seed = (uintptr_t)number + 1;
    CUstream s;
    CUdeviceptr p = 0;
    cuCtxSetCurrent(context);
    well(cuStreamCreate(&s, 1));
    for (int i = 0; i < ROUNDS; i++) {
        if (!p && !well(cuMemAlloc_v2(&p, (1 + roll(&seed, 60)) * MIB))) p = 0;
        if (roll(&seed, 2)) use_own(s, &seed);
        else use_shared(s, &seed);
        if (p && roll(&seed, 3) == 0) well(cuMemFree_v2(p)), p = 0;
        if (roll(&seed, 6) == 0) well(cuDeviceGraphMemTrim(0));
        if (roll(&seed, 4) == 0) well(cuStreamSynchronize(s));
    }
    if (p) well(cuMemFree_v2(p));
    well(cuStreamSynchronize(s));
    return NULL;
}

static void threads_with_child_graphs_never_pass_the_quota(void)
{
    pthread_t t[THREADS];
    CUmodule m;
    context = context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, spin_ptx), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&kernel, m, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&bytes, 128), CUDA_SUCCESS);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&t[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < SHARED; i++)
        if (shared[i]) EXPECT_EQ(cuGraphExecDestroy(shared[i]), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    EXPECT_EQ(strange, 0);
    EXPECT(launched > THREADS * ROUNDS / 4 && refused > 0 && updated > 0);
    EXPECT(peak(CARD_A) <= QUOTA_MIB * MIB);
    EXPECT(peak(CARD_A) > (QUOTA_MIB - 160) * MIB); /* they were at the quota */
    EXPECT(free_bytes() <= QUOTA_MIB * MIB - held(CARD_A));
}

int main(void)
{
    static const char *const policies[] = {"0", "1", "2", "3", "5", "8", "13", "21"};
    for (unsigned i = 0; i < sizeof policies / sizeof *policies; i++) {
        setenv("SIMGPU_POLICY", policies[i], 1);
        IN(CARD_A "=640MiB,context=256MiB", threads_with_child_graphs_never_pass_the_quota);
    }
    FINISH;
}
