/* The memory of graphs (see graph.c). */
#ifndef FRACTILE_MEMORY_GRAPH_H
#define FRACTILE_MEMORY_GRAPH_H

#include "memory/graph_kernels.h"

#include "cuda_abi.h"

void fr_graphs_trim(int card); /* gives what no graph uses back to the driver */

/* Runs or uploads a graph that is not plain by `real`, which gets the stream as the caller gave it. */
CUresult fr_graph_run(CUgraphExec e, CUstream s, CUstream given, CUresult (*real)(CUgraphExec, CUstream));

#endif
