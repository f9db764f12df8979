/* Kernels of libraries in graphs, which can run in any context. The documentation says that a node's kernel runs in the node's
 * context, where kernel_nodes.c loaded it. It does not say that a driver loads nothing in the context of the stream that the
 * graph is launched in. So before the launch the kernels are loaded and charged there too; if both contexts are the same,
 * nothing more is loaded.
 *
 * A graph has a record with a serial number and its number of kernels; each kernel has a record under a key made of both. The
 * serial number changes with the kernels, so function_table.c can remember under it that these kernels are loaded for a stream.
 * The driver does not show the bodies of conditional nodes: a graph with a conditional node counts as containing all kernels
 * that were ever used. */
#include "memory/graph_kernels.h"

#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/records.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/function.h"
#include "memory/function_table.h"
#include "memory/loaded.h"
#include "memory/nodes.h"
#include "memory/streams.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define FEW 256
#define INDEX_BITS 20
#define ANY 1ull

_Atomic uint64_t fr_graphs_noted[FR_GRAPH_BITS / 64];

void fr_graph_note(CUgraphExec e)
{
    size_t bit = fr_graph_bit(e);
    atomic_fetch_or(&fr_graphs_noted[bit / 64], 1ull << bit % 64);
}

/* ---- sets: open addressing, at most half full ---- */

static struct fr_kernel_of *place_of(const struct fr_kernels *k, uintptr_t function)
{
    size_t i = (function * 0x9E3779B97F4A7C15ull >> 20) & (k->room - 1);
    while (k->at[i].function && k->at[i].function != function) i = (i + 1) & (k->room - 1);
    return &k->at[i];
}

static bool grow(struct fr_kernels *k)
{
    struct fr_kernels more = {.room = k->room ? k->room * 2 : FEW, .count = k->count, .any = k->any};
    void *fresh = mmap(NULL, more.room * sizeof *more.at, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) return false;
    more.at = fresh;
    for (size_t i = 0; i < k->room; i++)
        if (k->at[i].function) *place_of(&more, k->at[i].function) = k->at[i];
    fr_kernels_drop(k);
    *k = more;
    return true;
}

void fr_kernels_drop(struct fr_kernels *k)
{
    if (k->room) munmap(k->at, k->room * sizeof *k->at);
    k->room = 0;
}

/* The free place for a new function; NULL: it is in the set already. Without memory for the set, any kernel may be in it. */
static struct fr_kernel_of *new_place(struct fr_kernels *k, uintptr_t function)
{
    if (!function) return NULL;
    if (2 * k->count >= k->room && !grow(k)) {
        k->any = true;
        return NULL;
    }
    struct fr_kernel_of *place = place_of(k, function);
    if (place->function) return NULL;
    place->function = function;
    k->count++;
    return place;
}

/* A node's kernel was loaded once, so it is known whether it is a library's. */
static void add(struct fr_kernels *k, CUfunction f)
{
    struct fr_record used;
    struct fr_kernel_of *place = new_place(k, (uintptr_t)f);
    if (place) place->library = fr_record_find(FR_KERNEL_USED, (uintptr_t)f, &used) ? used.a : 0;
}

static void look_at_node(void *kernels, CUgraphNode node, int type)
{
    CUDA_KERNEL_NODE_PARAMS p = {0};
    struct fr_kernels *k = kernels;
    if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL) k->any = true;
    if (type == CU_GRAPH_NODE_TYPE_KERNEL && !REAL(cuGraphKernelNodeGetParams_v2)(node, &p)) add(k, p.kern ? (CUfunction)p.kern : p.func);
}

void fr_kernels_of_graph(struct fr_kernels *k, CUgraph graph)
{
    *k = (struct fr_kernels){.room = 0};
    if (!graph || !fr_libraries_known() || !fr_driver_has(FR_cuGraphKernelNodeGetParams_v2)) return;
    k->any |= !fr_graph_walk(graph, look_at_node, k);
}

/* ---- loading ---- */

/* A kernel whose library is gone cannot be launched any more, so nothing is loaded for it. */
static CUresult load(uintptr_t function, uint64_t library, CUstream stream)
{
    return fr_module_known(library) ? fr_function_used((CUfunction)function, stream) : CUDA_SUCCESS;
}

static CUresult load_any(CUstream stream)
{
    struct fr_record seen = {.key = 0};
    CUresult r = CUDA_SUCCESS;
    while (!r && fr_record_next(FR_KERNEL_USED, seen.key, &seen)) r = load(seen.key, seen.a, stream);
    return r;
}

CUresult fr_kernels_load(const struct fr_kernels *k, CUstream stream)
{
    CUresult r = k->any ? load_any(stream) : CUDA_SUCCESS;
    for (size_t i = 0; i < k->room && !r; i++)
        if (k->at[i].library) r = load(k->at[i].function, k->at[i].library, stream);
    return r;
}

/* ---- kernels of executable graphs ---- */

static uint64_t key_of(uint64_t serial, uint64_t index) { return serial << INDEX_BITS | index; }

/* Adds the kernels that the graph has so far to a set. */
static void recall(const struct fr_record *graph, struct fr_kernels *k)
{
    struct fr_record one;
    k->any |= graph->b & ANY;
    for (uint64_t i = 0; i < graph->b >> 1; i++) {
        if (!fr_record_find(FR_GRAPH_KERNEL, key_of(graph->a, i), &one)) continue;
        struct fr_kernel_of *place = new_place(k, one.a);
        if (place) place->library = one.b;
    }
}

static void remember(CUgraphExec e, const struct fr_kernels *k)
{
    static _Atomic uint64_t serials = 1;
    struct fr_record graph = {.class = FR_GRAPH_KERNELS, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = (uintptr_t)e,
                              .a = atomic_fetch_add(&serials, 1)};
    uint64_t count = 0;
    bool any = k->any;
    for (size_t i = 0; i < k->room; i++) {
        if (!k->at[i].library) continue;
        struct fr_record one = {.class = FR_GRAPH_KERNEL, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = key_of(graph.a, count),
                                .a = k->at[i].function, .b = k->at[i].library};
        if (count >> INDEX_BITS || !fr_record_put(one)) any = true;
        else count++;
    }
    graph.b = count << 1 | any;
    fr_record_put(graph);
    fr_graph_note(e);
}

static void forget(const struct fr_record *graph)
{
    struct fr_record one;
    for (uint64_t i = 0; i < graph->b >> 1; i++) fr_record_take(FR_GRAPH_KERNEL, key_of(graph->a, i), &one);
}

static size_t count_of(const struct fr_kernels *k)
{
    size_t count = k->any;
    for (size_t i = 0; i < k->room; i++) count += k->at[i].library != 0;
    return count;
}

/* The old record stays until the new one exists, since other threads may be about to launch the graph. */
void fr_graph_add_kernels(CUgraphExec e, const struct fr_kernels *k)
{
    struct fr_record graph;
    struct fr_kernels all = {.any = k->any};
    if (!count_of(k)) return;
    bool known = !fr_graph_is_plain(e) && fr_record_find(FR_GRAPH_KERNELS, (uintptr_t)e, &graph);
    if (!known) return remember(e, k);
    recall(&graph, &all);
    size_t before = count_of(&all);
    for (size_t i = 0; i < k->room; i++) {
        struct fr_kernel_of *place = k->at[i].library ? new_place(&all, k->at[i].function) : NULL;
        if (place) place->library = k->at[i].library;
    }
    if (k->any || count_of(&all) != before) {
        remember(e, &all);
        forget(&graph);
    }
    fr_kernels_drop(&all);
}

void fr_graph_add_kernel(CUgraphExec e, CUfunction f)
{
    struct fr_kernels k = {.room = 0};
    add(&k, f);
    fr_graph_add_kernels(e, &k);
    fr_kernels_drop(&k);
}

bool fr_graph_kernels_ending(CUgraphExec e, struct fr_record *graph) { return fr_record_find(FR_GRAPH_KERNELS, (uintptr_t)e, graph); }

/* By now the handle may stand for another graph, with kernels of its own. */
void fr_graph_kernels_ended(const struct fr_record *graph)
{
    fr_record_take_if(FR_GRAPH_KERNELS, graph->key, graph->a);
    forget(graph);
}

static CUresult load_all(const struct fr_record *graph, CUstream stream)
{
    struct fr_kernels k = {.room = 0};
    recall(graph, &k);
    CUresult r = fr_kernels_load(&k, stream);
    fr_kernels_drop(&k);
    return r;
}

static uintptr_t name_of(const struct fr_record *graph) { return graph->a << 1 | 1; } /* odd: not a handle */

CUresult fr_graph_kernels_used(CUgraphExec e, CUstream stream)
{
    struct fr_record graph, again;
    CUcontext current = NULL;
    uintptr_t where = (uintptr_t)stream;
    CUresult r = CUDA_SUCCESS;
    if (!fr_record_find(FR_GRAPH_KERNELS, (uintptr_t)e, &graph)) return CUDA_SUCCESS;
    if (where <= FR_LAST_COMMON_STREAM) {
        if (REAL(cuCtxGetCurrent)(&current)) return CUDA_SUCCESS;
        where = (uintptr_t)current;
    }
    while (unlikely(!fr_kernel_is_loaded(name_of(&graph), where)) && !r) {
        uint32_t generation = atomic_load(&fr_handle_generation);
        r = load_all(&graph, stream);
        bool same = fr_record_find(FR_GRAPH_KERNELS, (uintptr_t)e, &again) && again.a == graph.a;
        if (!r && same) fr_kernel_remember(name_of(&graph), where, generation);
        if (same) break;
        graph = again; /* it was changed meanwhile */
    }
    return r;
}
