/* What the memory nodes of a graph need. */
#ifndef FRACTILE_MEMORY_NODES_H
#define FRACTILE_MEMORY_NODES_H

#include "cuda_abi.h"

#include <stdint.h>

struct fr_need {
    uint64_t bytes; /* of card memory behind all addresses of the graph's allocations */
    CUdevice device;
};
struct fr_need fr_graph_need(CUgraph graph);

#endif
