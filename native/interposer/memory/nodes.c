/* How much memory a graph holds at its fullest.
 *
 * Two allocations of a graph can use the same memory only if the graph's edges put one's free before the other. So what
 * is held when allocation a has just been made is at most a itself and every allocation b, unless b comes after a or
 * what frees b comes before a. The fullest moment is the largest of these sums. A child graph counts, to what may run
 * beside it, as its own fullest moment, and to what comes after it, as what it does not free itself. Bodies of
 * conditional nodes may not allocate. Graphs too large for this are taken as if they freed nothing. */
#include "pool.h"

#include <string.h>
#include <sys/mman.h>

#define MOST_MEMORY_NODES 4096
#define MOST_BITS (1ull << 30)
#define MOST_DEPTH 16

struct event { /* a node that allocates, frees, or is a graph itself */
    int type;
    CUdeviceptr at;
    uint64_t bytes, rest; /* held while it runs at most; and after it */
    uint32_t node;        /* its number */
    int freed_by;         /* another event, or -1 */
};

struct walk {
    size_t nodes, edges, events;
    CUgraphNode *node, *from, *to;
    struct event *event;
    uint32_t *place, *order, *missing, *first, *next, *target; /* place: number + 1 by hash of the node */
    uint64_t *before;                                        /* for every node, the events that are before it */
    size_t words, places;
    char *memory, *end;
    CUdevice device;
};

static void *from_system(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void *part(struct walk *w, size_t bytes)
{
    void *p = w->memory;
    w->memory += (bytes + 15) / 16 * 16;
    return p;
}

/* ---- nodes, and edges by their numbers ---- */

static size_t spot(const struct walk *w, CUgraphNode n)
{
    size_t at = ((uintptr_t)n >> 4) * 0x9E3779B97F4A7C15ull % w->places;
    while (w->place[at] && w->node[w->place[at] - 1] != n) at = (at + 1) % w->places;
    return at;
}

static void number_nodes(struct walk *w)
{
    for (size_t i = 0; i < w->nodes; i++) w->place[spot(w, w->node[i])] = (uint32_t)i + 1;
}

static CUresult get_edges(CUgraph g, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    if (fr_has(FR_cuGraphGetEdges)) {
        CUresult r = REAL(cuGraphGetEdges)(g, from, to, count);
        if (r != CUDA_ERROR_NOT_SUPPORTED) return r; /* edges with data are not for this version */
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void link_edges(struct walk *w)
{
    for (size_t i = 0; i < w->edges; i++) {
        uint32_t a = w->place[spot(w, w->from[i])], b = w->place[spot(w, w->to[i])];
        if (!a || !b) continue;
        w->target[i] = b - 1;
        w->next[i] = w->first[a - 1];
        w->first[a - 1] = (uint32_t)i + 1;
        w->missing[b - 1]++;
    }
}

/* Events are in the order of their nodes' numbers. */
static void mark(struct walk *w, uint32_t from, uint32_t to)
{
    size_t low = 0, high = w->events;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (w->event[middle].node < from) low = middle + 1;
        else high = middle;
    }
    for (size_t k = 0; k < w->words; k++) w->before[to * w->words + k] |= w->before[from * w->words + k];
    if (low < w->events && w->event[low].node == from) w->before[to * w->words + low / 64] |= 1ull << low % 64;
}

/* Every node after those that it depends on, and with each the events before it. */
static bool sort(struct walk *w)
{
    size_t done = 0, found = 0;
    for (size_t i = 0; i < w->nodes; i++)
        if (!w->missing[i]) w->order[found++] = (uint32_t)i;
    for (; done < found; done++) {
        uint32_t n = w->order[done];
        for (uint32_t e = w->first[n]; e; e = w->next[e - 1]) {
            uint32_t to = w->target[e - 1];
            mark(w, n, to);
            if (!--w->missing[to]) w->order[found++] = to;
        }
    }
    return found == w->nodes;
}

/* ---- events ---- */

static struct fr_need need_of(CUgraph g, int depth, uint64_t *rest);

static bool read_event(struct walk *w, uint32_t number, int depth, struct event *e)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p;
    CUgraph child;
    *e = (struct event){.node = number, .freed_by = -1, .type = -1};
    if (REAL(cuGraphNodeGetType)(w->node[number], &e->type)) return false;
    if (e->type == CU_GRAPH_NODE_TYPE_MEM_FREE) return !REAL(cuGraphMemFreeNodeGetParams)(w->node[number], &e->at);
    if (e->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !REAL(cuGraphMemAllocNodeGetParams)(w->node[number], &p)) {
        e->at = p.dptr;
        e->bytes = e->rest = ((uint64_t)p.bytesize + FR_GRANULE - 1) / FR_GRANULE * FR_GRANULE;
        w->device = p.poolProps.location.id;
        return true;
    }
    if (e->type != CU_GRAPH_NODE_TYPE_GRAPH || REAL(cuGraphChildGraphNodeGetGraph)(w->node[number], &child)) return false;
    struct fr_need n = need_of(child, depth + 1, &e->rest);
    e->bytes = n.bytes;
    if (n.bytes) w->device = n.device;
    return n.bytes != 0;
}

static void match_frees(struct walk *w)
{
    for (size_t i = 0; i < w->events; i++)
        for (size_t k = 0; w->event[i].type == CU_GRAPH_NODE_TYPE_MEM_FREE && k < w->events; k++)
            if (w->event[k].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && w->event[k].at == w->event[i].at) w->event[k].freed_by = (int)i;
}

static bool is_before(const struct walk *w, size_t event, size_t other)
{
    return w->before[w->event[other].node * w->words + event / 64] >> event % 64 & 1;
}

static uint64_t held_with(const struct walk *w, size_t a)
{
    uint64_t sum = w->event[a].bytes;
    for (size_t b = 0; b < w->events; b++) {
        const struct event *e = &w->event[b];
        if (b == a || is_before(w, a, b)) continue;
        if (e->freed_by >= 0 && is_before(w, (size_t)e->freed_by, a)) continue;
        sum += is_before(w, b, a) ? e->rest : e->bytes;
    }
    return sum;
}

static uint64_t all_of(const struct walk *w)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < w->events; i++) sum += w->event[i].bytes;
    return sum;
}

static uint64_t rest_of(const struct walk *w)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < w->events; i++)
        if (w->event[i].freed_by < 0) sum += w->event[i].rest;
    return sum;
}

static uint64_t fullest(struct walk *w, CUgraph g)
{
    uint64_t most = 0;
    size_t edges = 0;
    if (w->events == 1) return all_of(w);
    w->words = (w->events + 63) / 64;
    if (w->events > MOST_MEMORY_NODES || w->nodes * w->words > MOST_BITS / 64 || get_edges(g, NULL, NULL, &edges)) return all_of(w);
    size_t bytes = edges * 24 + w->nodes * 28 + w->nodes * w->words * 8 + 256;
    char *memory = w->memory = from_system(bytes);
    if (!memory) return all_of(w);
    w->edges = edges;
    w->places = 2 * w->nodes + 1;
    w->from = part(w, edges * sizeof *w->from), w->to = part(w, edges * sizeof *w->to);
    w->next = part(w, edges * 4), w->target = part(w, edges * 4);
    w->place = part(w, w->places * 4), w->order = part(w, w->nodes * 4);
    w->missing = part(w, w->nodes * 4), w->first = part(w, w->nodes * 4);
    w->before = part(w, w->nodes * w->words * 8);
    number_nodes(w);
    bool known = !edges || !get_edges(g, w->from, w->to, &w->edges);
    if (known) link_edges(w);
    known = known && sort(w);
    for (size_t i = 0; known && i < w->events; i++)
        if (held_with(w, i) > most) most = held_with(w, i);
    munmap(memory, bytes);
    return known ? most : all_of(w);
}

/* ---- a graph ---- */

static void read_events(struct walk *w, int depth)
{
    for (uint32_t i = 0; i < w->nodes; i++)
        if (read_event(w, i, depth, &w->event[w->events])) w->events++;
    match_frees(w);
}

static struct fr_need need_of(CUgraph g, int depth, uint64_t *rest)
{
    struct walk w = {.device = -1};
    struct fr_need need = {0, -1};
    *rest = 0;
    if (depth > MOST_DEPTH || REAL(cuGraphGetNodes)(g, NULL, &w.nodes) || !w.nodes || w.nodes > UINT32_MAX / 4) return need;
    size_t bytes = w.nodes * (sizeof *w.node + sizeof *w.event) + 64;
    char *memory = w.memory = from_system(bytes);
    if (!memory) return need;
    w.node = part(&w, w.nodes * sizeof *w.node);
    w.event = part(&w, w.nodes * sizeof *w.event);
    if (!REAL(cuGraphGetNodes)(g, w.node, &w.nodes)) read_events(&w, depth);
    if (all_of(&w)) need = (struct fr_need){fullest(&w, g), w.device};
    *rest = rest_of(&w);
    munmap(memory, bytes);
    return need;
}

struct fr_need fr_graph_need(CUgraph graph)
{
    uint64_t rest;
    return need_of(graph, 0, &rest);
}
