/* What the memory nodes of a graph need (see nodes.c). */
#ifndef FRACTILE_MEMORY_NODES_H
#define FRACTILE_MEMORY_NODES_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

#define FR_GRAPH_DEVICES 64

struct fr_need {
    CUdevice device;
    uint64_t bytes; /* of its memory behind all addresses of the graph's allocations there */
};
struct fr_needs {
    int count; /* in ascending order of the devices; 0 for a graph without memory */
    bool waits; /* a node of the graph may wait for the program, or for another */
    struct fr_need on[FR_GRAPH_DEVICES];
};
void fr_graph_needs(CUgraph graph, struct fr_needs *out);

/* Shows all nodes of a graph and of its child graphs; not the bodies of conditional nodes. False: no memory for the search. */
bool fr_graph_walk(CUgraph graph, void (*look)(void *searcher, CUgraphNode node, int type), void *searcher);

#endif
