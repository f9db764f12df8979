/* Graphs and their nodes, between graph.c, graph_memory.c and graph_update.c. */
#ifndef SIMGPU_GRAPH_H
#define SIMGPU_GRAPH_H

#include "module.h"

enum { N_KERNEL, N_MEMCPY, N_MEMSET, N_HOST, N_GRAPH, N_EMPTY, N_WAIT_EVENT, N_RECORD, N_ALLOC = 10, N_FREE = 11 };

struct sim_node {
    uint32_t magic;
    struct sim_graph *graph;
    CUgraphNodeParams p;
    void **params;      /* own copy of the kernel's arguments */
    struct sim_node **before;
    size_t before_count;
    uint64_t at_us_ns;  /* end of the longest path to here, while launching */
    bool is_before, is_after; /* ... the node that is looked at, while the fullest moment is searched */
    struct sim_node *next;
};

struct sim_graph {
    uint32_t magic;
    struct sim_node *first, **last;
    size_t count;
};

struct sim_exec {
    uint32_t magic;
    struct sim_graph *graph; /* own copy */
    uint64_t need, sum;      /* bytes that a launch needs; of all allocation nodes */
    uint64_t kept, epoch;    /* of what is reserved on the device, when graphs share nothing; no longer after a trim */
    int device;
};

struct sim_graph *sim_graph_clone(const struct sim_graph *g);
void sim_graph_drop(struct sim_graph *g);
bool sim_node_copy_params(struct sim_node *n);
void sim_node_drop_params(struct sim_node *n);

/* graph_memory.c */
void sim_exec_measure(struct sim_exec *e);
CUdeviceptr sim_graph_reused_address(struct sim_graph *g, struct sim_node *const *before, size_t count, size_t size);
CUresult sim_exec_reserve(struct sim_exec *e, int device);
void sim_exec_keep(struct sim_exec *e, int device, uint64_t bytes);
void sim_exec_yield(struct sim_exec *e);
int sim_graph_device(const struct sim_graph *g);
CUresult sim_graph_alloc(struct sim_node *n, struct sim_ctx *ctx);

#endif
