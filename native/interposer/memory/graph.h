/* The memory of graphs (see graph.c). */
#ifndef FRACTILE_MEMORY_GRAPH_H
#define FRACTILE_MEMORY_GRAPH_H

#include "memory/graph_kernels.h"

#include "cuda_abi.h"

#include <stdbool.h>

void fr_graphs_trim(int card); /* gives what no graph uses back to the driver */

bool fr_graph_may_wait(CUgraphExec e); /* one of its nodes may wait for the program, or for other work: a launch may begin and not go on */

/* Runs or uploads a graph that is not plain by `real`, which gets the stream as the caller gave it. */
CUresult fr_graph_run(CUgraphExec e, CUstream s, CUstream given, CUresult (*real)(CUgraphExec, CUstream));

#endif
