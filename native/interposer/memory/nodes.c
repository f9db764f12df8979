/* The most card memory that a graph can need.
 *
 * The addresses of a graph's allocations are fixed when their nodes are created. Two allocations have the same address only if
 * the driver puts both into the same memory, one after the other. So the graph needs at most the memory behind all its
 * addresses, each granule counted once. Each allocation names its device, wherever the graph is launched. Child graphs count
 * with their parent, however deep they are nested. Bodies of conditional nodes may not allocate. If there is no host memory for
 * the search, the need is set above any quota. */
#include "memory/nodes.h"

#include "resolve/real.h"
#include "memory/api_pool.h"
#include "memory/devices.h"
#include "memory/granules.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define UNKNOWN (1ull << 50)
#define FEW 256 /* initial places of a list */

struct range { /* of granules */
    uint64_t from, end;
    CUdevice device;
};

struct list {
    void *at;
    size_t count, room;
};

struct search {
    struct list ranges;
    bool failed, waits;
};

static void *from_system(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static bool make_room(struct list *l, size_t each)
{
    size_t more = l->room ? l->room * 2 : FEW;
    if (l->count < l->room) return true;
    void *grown = from_system(more * each);
    if (!grown) return false;
    if (l->room) {
        memcpy(grown, l->at, l->count * each);
        munmap(l->at, l->room * each);
    }
    l->at = grown;
    l->room = more;
    return true;
}

static void drop(struct list *l, size_t each)
{
    if (l->room) munmap(l->at, l->room * each);
}

/* A size that no card has counts as UNKNOWN, so that no sum overflows. */
static void add_range(struct search *s, CUdevice device, uint64_t address, uint64_t size)
{
    bool sane = size < UNKNOWN && address < UINT64_MAX / 2;
    uint64_t from = sane ? address : 0, bytes = sane ? size : UNKNOWN;
    struct range new = {from / FR_GRANULE, (from + bytes + FR_GRANULE - 1) / FR_GRANULE, device};
    if (make_room(&s->ranges, sizeof new)) ((struct range *)s->ranges.at)[s->ranges.count++] = new;
    else s->failed = true;
}

/* ---- sorted by device and address, in place ---- */

static bool is_behind(const struct range *a, const struct range *b) { return a->device != b->device ? a->device > b->device : a->from > b->from; }

static void sift(struct range *at, size_t from, size_t count)
{
    for (size_t child; (child = 2 * from + 1) < count; from = child) {
        if (child + 1 < count && is_behind(&at[child + 1], &at[child])) child++;
        if (!is_behind(&at[child], &at[from])) return;
        struct range swap = at[from];
        at[from] = at[child];
        at[child] = swap;
    }
}

static void sort(struct range *at, size_t count)
{
    for (size_t i = count / 2; i-- > 0;) sift(at, i, count);
    for (size_t end = count; end-- > 1;) {
        struct range swap = at[0];
        at[0] = at[end];
        at[end] = swap;
        sift(at, 0, end);
    }
}

/* The bytes on the device of the first range; *seen: how many ranges lie on it. */
static uint64_t covered(const struct range *at, size_t count, size_t *seen)
{
    uint64_t granules = 0, end = 0;
    size_t i = 0;
    for (; i < count && at[i].device == at->device; i++) {
        uint64_t from = at[i].from > end ? at[i].from : end;
        if (at[i].end <= from) continue;
        granules += at[i].end - from;
        end = at[i].end;
    }
    *seen = i;
    return granules * FR_GRANULE;
}

/* ---- the nodes ---- */

static bool look_at_graph(struct list *graphs, CUgraph g, void (*look)(void *, CUgraphNode, int), void *searcher)
{
    size_t count = 0;
    if (REAL(cuGraphGetNodes)(g, NULL, &count) || !count) return true;
    size_t bytes = count * sizeof(CUgraphNode);
    CUgraphNode *nodes = from_system(bytes);
    bool all = nodes != NULL;
    if (!nodes || REAL(cuGraphGetNodes)(g, nodes, &count)) all = false, count = 0;
    for (size_t i = 0; i < count; i++) {
        CUgraph child;
        int type = -1;
        if (REAL(cuGraphNodeGetType)(nodes[i], &type)) continue;
        look(searcher, nodes[i], type);
        if (type != CU_GRAPH_NODE_TYPE_GRAPH || REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child)) continue;
        if (make_room(graphs, sizeof child)) ((CUgraph *)graphs->at)[graphs->count++] = child;
        else all = false;
    }
    if (nodes) munmap(nodes, bytes);
    return all;
}

bool fr_graph_walk(CUgraph graph, void (*look)(void *, CUgraphNode, int), void *searcher)
{
    struct list graphs = {0}; /* those still to be searched */
    bool all = look_at_graph(&graphs, graph, look, searcher);
    while (graphs.count) all &= look_at_graph(&graphs, ((CUgraph *)graphs.at)[--graphs.count], look, searcher);
    drop(&graphs, sizeof graph);
    return all;
}

/* A node that writes a word may be changed into one that waits for it. The bodies of a conditional node are not shown. */
static bool may_wait(int type)
{
    return type == CU_GRAPH_NODE_TYPE_HOST || type == CU_GRAPH_NODE_TYPE_WAIT_EVENT || type == CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT ||
           type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP || type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
}

static void look_at_node(void *searcher, CUgraphNode node, int type)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p = {0};
    ((struct search *)searcher)->waits |= may_wait(type);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || REAL(cuGraphMemAllocNodeGetParams)(node, &p)) return;
    add_range(searcher, fr_device_of_location(&p.poolProps.location), p.dptr, p.bytesize);
}

void fr_graph_needs(CUgraph graph, struct fr_needs *out)
{
    struct search s = {0};
    size_t seen = 0;
    out->count = 0;
    s.failed |= !fr_graph_walk(graph, look_at_node, &s);
    out->waits = s.waits || s.failed;
    struct range *at = s.ranges.at;
    sort(at, s.ranges.count);
    for (size_t i = 0; i < s.ranges.count && !s.failed; i += seen) {
        struct fr_need need = {at[i].device, covered(&at[i], s.ranges.count - i, &seen)};
        if (need.bytes && need.device >= 0 && need.device < FR_GRAPH_DEVICES) out->on[out->count++] = need;
    }
    if (s.failed) out->on[out->count++] = (struct fr_need){0, UNKNOWN};
    drop(&s.ranges, sizeof(struct range));
}
