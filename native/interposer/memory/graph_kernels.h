/* Library kernels in executable graphs, and which graphs a launch has to check (see graph_kernels.c). */
#ifndef FRACTILE_MEMORY_GRAPH_KERNELS_H
#define FRACTILE_MEMORY_GRAPH_KERNELS_H

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Graphs with memory or with library kernels have their bit set; it is never cleared. */
#define FR_GRAPH_BITS 4096
extern _Atomic uint64_t fr_graphs_noted[FR_GRAPH_BITS / 64];

static inline size_t fr_graph_bit(CUgraphExec e)
{
    return ((uintptr_t)e >> 4 ^ (uintptr_t)e >> 16) % FR_GRAPH_BITS;
}

static inline bool fr_graph_is_plain(CUgraphExec e)
{
    size_t bit = fr_graph_bit(e);
    return !(atomic_load_explicit(&fr_graphs_noted[bit / 64], memory_order_relaxed) >> bit % 64 & 1);
}

void fr_graph_note(CUgraphExec e);

/* A set of library kernels, each with its library. */
struct fr_kernels {
    struct fr_kernel_of { uintptr_t function; uint64_t library; } *at; /* library 0: checked, and not a library's */
    size_t room, count;
    bool any; /* any kernel that was ever used may be in it */
};
void fr_kernels_of_graph(struct fr_kernels *k, CUgraph graph);
void fr_kernels_drop(struct fr_kernels *k);
CUresult fr_kernels_load(const struct fr_kernels *k, CUstream stream);

void fr_graph_add_kernels(CUgraphExec e, const struct fr_kernels *k); /* adds these to the kernels of the graph */
void fr_graph_add_kernel(CUgraphExec e, CUfunction f);
CUresult fr_graph_kernels_used(CUgraphExec e, CUstream stream); /* before it runs there */
struct fr_record;
bool fr_graph_kernels_ending(CUgraphExec e, struct fr_record *graph); /* false: it has no record */
void fr_graph_kernels_ended(const struct fr_record *graph);

#endif
