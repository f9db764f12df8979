/* How much card memory a graph can need.
 *
 * The addresses of a graph's allocations are fixed from the node's creation on. Two of them have the same address only where
 * the driver puts both into the same memory, one after the other; so what the graph needs is at most the memory behind all
 * its addresses, each granule counted once. Child graphs count with their parent. Bodies of conditional nodes may not
 * allocate. */
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

#define MOST_DEPTH 16

struct range { /* of granules */
    uint64_t from, end;
};

struct ranges {
    struct range *at;
    size_t count, room;
    uint64_t lost; /* bytes for which there was no place in the list */
    CUdevice device;
};

static void *from_system(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static bool grow(struct ranges *r)
{
    size_t more = r->room ? r->room * 2 : 256;
    struct range *grown = from_system(more * sizeof *grown);
    if (!grown) return false;
    if (r->room) {
        memcpy(grown, r->at, r->count * sizeof *grown);
        munmap(r->at, r->room * sizeof *grown);
    }
    r->at = grown;
    r->room = more;
    return true;
}

static void add_range(struct ranges *r, uint64_t address, uint64_t size)
{
    struct range new = {address / FR_GRANULE, (address + size + FR_GRANULE - 1) / FR_GRANULE};
    if (r->count == r->room && !grow(r)) r->lost += (new.end - new.from) * FR_GRANULE;
    else r->at[r->count++] = new;
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

static uint64_t covered(const struct ranges *r)
{
    uint64_t granules = 0, end = 0;
    sort(r->at, r->count);
    for (size_t i = 0; i < r->count; i++) {
        uint64_t from = r->at[i].from > end ? r->at[i].from : end;
        if (r->at[i].end <= from) continue;
        granules += r->at[i].end - from;
        end = r->at[i].end;
    }
    return granules * FR_GRANULE + r->lost;
}

/* ---- the nodes ---- */

static void collect(struct ranges *r, CUgraph g, int depth);

static void collect_node(struct ranges *r, CUgraphNode node, int depth)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p = {0};
    CUgraph child;
    int type = -1;
    if (REAL(cuGraphNodeGetType)(node, &type)) return;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && !REAL(cuGraphChildGraphNodeGetGraph)(node, &child)) collect(r, child, depth + 1);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || REAL(cuGraphMemAllocNodeGetParams)(node, &p)) return;
    add_range(r, p.dptr, p.bytesize);
    r->device = p.poolProps.location.id;
}

static void collect(struct ranges *r, CUgraph g, int depth)
{
    size_t count = 0;
    if (depth > MOST_DEPTH || REAL(cuGraphGetNodes)(g, NULL, &count) || !count) return;
    size_t bytes = count * sizeof(CUgraphNode);
    CUgraphNode *nodes = from_system(bytes);
    if (!nodes) return;
    if (!REAL(cuGraphGetNodes)(g, nodes, &count))
        for (size_t i = 0; i < count; i++) collect_node(r, nodes[i], depth);
    munmap(nodes, bytes);
}

struct fr_need fr_graph_need(CUgraph graph)
{
    struct ranges r = {.device = -1};
    collect(&r, graph, 0);
    struct fr_need need = {covered(&r), r.device};
    if (r.room) munmap(r.at, r.room * sizeof *r.at);
    return need;
}
