/* Kinds of stream-ordered things: memory of pools, and graphs that allocate. */
#include "lane.h"

static CUstream some_stream(void) { return roll(8) ? self.streams[roll(STREAMS)] : NULL; }

/* A pool grows by whole chunks if there is room; otherwise room for the request is enough. */
static bool from_pool(struct thing *t, bool own)
{
    CUdeviceptr p;
    size_t size = 1 + roll(roll(3) ? 300000 : roll(10) ? 6 * MIB : 50 * MIB);
    begin(self.card, roundup(size, CHUNK));
    CUresult r = own ? cuMemAllocFromPoolAsync(&p, size, self.pool, some_stream()) : cuMemAllocAsync(&p, size, some_stream());
    if (end(own ? "cuMemAllocFromPoolAsync" : "cuMemAllocAsync", r, roundup(size, GRANULE), 0)) return false;
    t->at = p;
    return true;
}

static bool have_pool(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_DEVICE, self.device}};
    uint64_t keep = roll(2) ? 0 : 64 * MIB;
    if (self.pool) return true;
    begin(self.card, 0);
    if (end("cuMemPoolCreate", cuMemPoolCreate(&self.pool, &props), 0, 0)) return self.pool = NULL, false;
    begin(self.card, 0);
    end("cuMemPoolSetAttribute", cuMemPoolSetAttribute(self.pool, 4, &keep), 0, 0);
    return true;
}

static bool make_async(struct thing *t) { return from_pool(t, false); }
static bool make_pooled(struct thing *t) { return have_pool() && from_pool(t, true); }

static void free_async(struct thing *t)
{
    begin(self.card, 0);
    if (roll(6)) end("cuMemFreeAsync", cuMemFreeAsync(t->at, some_stream()), 0, 0);
    else end("cuMemFree", cuMemFree_v2(t->at), 0, 0);
}

/* ---- graphs ---- */

/* A capture takes no memory; the launch takes the memory that was requested in the capture. */
static CUresult capture(CUstream s, CUgraph *graph, uint64_t *need)
{
    CUdeviceptr p[3];
    unsigned n = 1 + roll(3);
    CUresult r = cuStreamBeginCapture_v2(s, 2);
    if (r) return r;
    *need = 0;
    for (unsigned i = 0; i < n && !r; i++) {
        size_t size = 1 + roll(roll(2) ? 100000 : 5 * MIB);
        r = cuMemAllocAsync(&p[i], size, s);
        *need += roundup(size, GRANULE);
    }
    for (unsigned i = 0; i < n && !r; i++) r = cuMemFreeAsync(p[i], s);
    CUresult ended = cuStreamEndCapture(s, graph);
    return r ? r : ended;
}

/* Graph memory grows by the sum of the nodes, rounded up to a chunk size. */
static bool launch(const struct thing *t)
{
    uint64_t most = roundup(t->size, CHUNK);
    begin(self.card, most);
    return !end("cuGraphLaunch", cuGraphLaunch((CUgraphExec)(uintptr_t)t->at, self.streams[roll(STREAMS)]), most, 0);
}

/* Nests up to three captures, one in the other. A child graph without memory is cloned beside them. */
static CUresult nest(CUstream s, CUgraph *graph, uint64_t *need)
{
    CUgraph outer = NULL, plain = NULL;
    CUgraphNode n;
    uint64_t more = 0;
    CUresult r = capture(s, graph, need);
    for (unsigned i = roll(3); i > 0 && !r; i--) {
        CUgraphNodeParams child = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = {*graph, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE}};
        if ((r = capture(s, &outer, &more)) || (r = cuGraphAddNode_v2(&n, outer, NULL, NULL, 0, &child))) break;
        *graph = outer;
        *need += more;
    }
    if (r || (r = cuGraphCreate(&plain, 0))) return r;
    if (!(r = cuGraphAddEmptyNode(&n, plain, NULL, 0))) r = cuGraphAddChildGraphNode(&n, *graph, NULL, 0, plain);
    cuGraphDestroy(plain);
    return r;
}

static bool make_from(struct thing *t, CUresult (*build)(CUstream, CUgraph *, uint64_t *))
{
    CUgraph graph = NULL;
    CUgraphExec exec;
    begin(self.card, 0);
    if (end("capture", build(self.streams[0], &graph, &t->size), 0, 0)) return false;
    begin(self.card, roundup(t->size, CHUNK));
    CUresult r = end("cuGraphInstantiate", cuGraphInstantiateWithFlags(&exec, graph, 0), roundup(t->size, CHUNK), 0);
    begin(self.card, 0);
    end("cuGraphDestroy", cuGraphDestroy(graph), 0, 0);
    if (r) return false;
    t->at = (uint64_t)(uintptr_t)exec;
    launch(t);
    return true;
}

static bool make_graph(struct thing *t) { return make_from(t, capture); }
static bool make_nested(struct thing *t) { return make_from(t, nest); }

static void free_graph(struct thing *t)
{
    if (roll(2)) launch(t);
    begin(self.card, 0);
    end("cuGraphExecDestroy", cuGraphExecDestroy((CUgraphExec)(uintptr_t)t->at), 0, 0);
    begin(self.card, 0);
    if (!roll(3)) end("cuDeviceGraphMemTrim", cuDeviceGraphMemTrim(self.device), 0, 0);
    else end("cuStreamSynchronize", cuStreamSynchronize(self.streams[0]), 0, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

const struct kind stream_kinds[] = {
    {"async", 16, false, make_async, free_async},
    {"pooled", 6, false, make_pooled, free_async},
    {"graph", 5, false, make_graph, free_graph},
    {"nested", 3, false, make_nested, free_graph},
    {0},
};
