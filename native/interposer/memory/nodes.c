/* How much card memory a graph can need.
 *
 * The addresses of a graph's allocations are fixed from the node's creation on. Two of them have the same address only where
 * the driver puts both into the same memory, one after the other; so what the graph needs is at most the memory behind all
 * its addresses, each granule counted once. Child graphs count with their parent, however deep they are nested. Bodies of
 * conditional nodes may not allocate. Where a look at the nodes finds no memory of the host, the need is more than any quota. */
#include "memory/nodes.h"

#include "resolve/real.h"
#include "memory/api_pool.h"
#include "memory/granules.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define UNKNOWN (1ull << 50)
#define FEW 256 /* places of a list at first */

struct range { /* of granules */
    uint64_t from, end;
};

struct list {
    void *at;
    size_t count, room;
};

struct search {
    struct list ranges, graphs; /* graphs: those to look at */
    bool failed;
    CUdevice device;
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

static void add_range(struct search *s, uint64_t address, uint64_t size)
{
    struct range new = {address / FR_GRANULE, (address + size + FR_GRANULE - 1) / FR_GRANULE};
    if (make_room(&s->ranges, sizeof new)) ((struct range *)s->ranges.at)[s->ranges.count++] = new;
    else s->failed = true;
}

static void add_graph(struct search *s, CUgraph g)
{
    if (make_room(&s->graphs, sizeof g)) ((CUgraph *)s->graphs.at)[s->graphs.count++] = g;
    else s->failed = true;
}

/* ---- sorted by address, in place ---- */

static void sift(struct range *at, size_t from, size_t count)
{
    for (size_t child; (child = 2 * from + 1) < count; from = child) {
        if (child + 1 < count && at[child + 1].from > at[child].from) child++;
        if (at[from].from >= at[child].from) return;
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

static uint64_t covered(const struct list *ranges)
{
    struct range *at = ranges->at;
    uint64_t granules = 0, end = 0;
    sort(at, ranges->count);
    for (size_t i = 0; i < ranges->count; i++) {
        uint64_t from = at[i].from > end ? at[i].from : end;
        if (at[i].end <= from) continue;
        granules += at[i].end - from;
        end = at[i].end;
    }
    return granules * FR_GRANULE;
}

/* ---- the nodes ---- */

static void look_at_node(struct search *s, CUgraphNode node)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p = {0};
    CUgraph child;
    int type = -1;
    if (REAL(cuGraphNodeGetType)(node, &type)) return;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && !REAL(cuGraphChildGraphNodeGetGraph)(node, &child)) add_graph(s, child);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || REAL(cuGraphMemAllocNodeGetParams)(node, &p)) return;
    add_range(s, p.dptr, p.bytesize);
    s->device = p.poolProps.location.id;
}

static void look_at_graph(struct search *s, CUgraph g)
{
    size_t count = 0;
    if (REAL(cuGraphGetNodes)(g, NULL, &count) || !count) return;
    size_t bytes = count * sizeof(CUgraphNode);
    CUgraphNode *nodes = from_system(bytes);
    if (!nodes) s->failed = true;
    else if (!REAL(cuGraphGetNodes)(g, nodes, &count))
        for (size_t i = 0; i < count; i++) look_at_node(s, nodes[i]);
    if (nodes) munmap(nodes, bytes);
}

struct fr_need fr_graph_need(CUgraph graph)
{
    struct search s = {.device = -1};
    add_graph(&s, graph);
    while (s.graphs.count) look_at_graph(&s, ((CUgraph *)s.graphs.at)[--s.graphs.count]);
    struct fr_need need = {s.failed ? UNKNOWN : covered(&s.ranges), s.device};
    if (s.failed && need.device < 0) need.device = 0;
    drop(&s.ranges, sizeof(struct range));
    drop(&s.graphs, sizeof graph);
    return need;
}
