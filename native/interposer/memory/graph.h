/* The memory of graphs: see graph.c. */
#ifndef FRACTILE_MEMORY_GRAPH_H
#define FRACTILE_MEMORY_GRAPH_H

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void fr_graphs_trim(int card); /* what no graph uses goes back to the driver */

/* Graphs with memory have their bit set; it is never cleared. */
#define FR_GRAPH_BITS 4096
extern _Atomic uint64_t fr_graphs_with_memory[FR_GRAPH_BITS / 64];

static inline size_t fr_graph_bit(CUgraphExec e)
{
    return ((uintptr_t)e >> 4 ^ (uintptr_t)e >> 16) % FR_GRAPH_BITS;
}

static inline bool fr_graph_may_have_memory(CUgraphExec e)
{
    size_t bit = fr_graph_bit(e);
    return atomic_load_explicit(&fr_graphs_with_memory[bit / 64], memory_order_relaxed) >> bit % 64 & 1;
}

/* Runs or uploads such a graph by `real`, which gets the stream as it was given. */
CUresult fr_graph_run(CUgraphExec e, CUstream s, CUstream given, CUresult (*real)(CUgraphExec, CUstream));

#endif
