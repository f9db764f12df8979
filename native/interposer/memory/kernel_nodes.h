/* Kernels of graphs (see kernel_nodes.c). */
#ifndef FRACTILE_MEMORY_KERNEL_NODES_H
#define FRACTILE_MEMORY_KERNEL_NODES_H

#include "cuda_abi.h"

CUresult fr_node_used(CUgraphExec e, const CUgraphNodeParams *p); /* before a node of the graph gets these; NULL is harmless */

#endif
