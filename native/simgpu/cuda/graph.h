/* Graphs and their nodes: declarations shared by the files graph*.c. */
#ifndef SIMGPU_GRAPH_H
#define SIMGPU_GRAPH_H

#include "module.h"

enum { N_KERNEL, N_MEMCPY, N_MEMSET, N_HOST, N_GRAPH, N_EMPTY, N_WAIT_EVENT, N_RECORD, N_ALLOC = 10, N_FREE = 11, N_CONDITIONAL = 13 };

/* In a launched graph: a piece of work is everything between two rounds of host nodes. */
struct sim_moment {
    unsigned piece;
    uint64_t ns; /* from the beginning of that piece */
};

struct sim_node {
    uint32_t magic;
    struct sim_graph *graph;
    CUgraphNodeParams p;
    void **params;      /* own copy of the kernel's arguments */
    struct sim_node **before;
    size_t before_count;
    struct sim_moment end; /* of the longest path to here, while launching */
    uint64_t held, left; /* bytes that it adds to the graph's memory, while it runs and afterwards */
    bool is_before, is_after; /* relative to the current node, in the search for the moment of most memory */
    struct sim_node *next;
};

struct sim_graph {
    uint32_t magic;
    struct sim_node *first, **last;
    size_t count;
    struct sim_node *owner; /* for a child graph or a body: the node that owns it */
    struct sim_retained *retained; /* user objects */
};

struct sim_exec {
    uint32_t magic;
    struct sim_graph *graph; /* own copy */
    struct {
        uint64_t need, sum;   /* bytes that a launch needs; of all allocation nodes */
        uint64_t kept, epoch; /* its part of the device's reserved bytes if graphs share nothing; until a trim */
    } on[SIM_CARDS];          /* by device: an allocation node names its device */
    uint64_t flags;
};

/* A capture, and for each of its streams the nodes on which the next work depends. */
struct sim_capture {
    struct sim_graph *graph;
    struct sim_stream *origin;
    uint64_t id;
    unsigned refs, mode;
    bool lent; /* the graph existed before the capture */
    bool over;
    struct tip { struct sim_stream *stream; struct sim_node **nodes; size_t count; struct tip *next; } *tips;
};

struct sim_graph *sim_graph_new(void);
CUresult sim_capture_begin(CUstream handle, unsigned mode, struct sim_graph *into, const CUgraphNode *after, size_t count);
CUresult sim_capture_move(CUstream handle, const CUgraphNode *nodes, size_t count, bool add);

/* graph_conditional.c */
CUresult sim_conditional_make(CUgraphNodeParams *p);
bool sim_conditional_clone(CUgraphNodeParams *p);
void sim_conditional_drop(CUgraphNodeParams *p);
struct sim_graph *sim_conditional_chosen(const CUgraphNodeParams *p);

/* graph_child.c */
CUresult sim_child_of(struct sim_graph *g, const CUgraphNodeParams *p, struct sim_graph **child);
bool sim_graph_is_moved(const struct sim_graph *g);
bool sim_graph_has_memory(const struct sim_graph *g);
bool sim_owned_clone(CUgraphNodeParams *p);
void sim_owned_adopt(struct sim_node *n);
void sim_owned_drop(CUgraphNodeParams *p);

/* graph_update.c */
int sim_graph_difference(const struct sim_graph *old, const struct sim_graph *new, CUgraphNode *where); /* 0, or why one cannot replace the other */
struct sim_node *sim_exec_node(const struct sim_exec *e, const struct sim_node *n);                      /* the node in the executable copy */

struct sim_graph *sim_graph_clone(const struct sim_graph *g);
void sim_graph_drop(struct sim_graph *g);
bool sim_node_copy_params(struct sim_node *n);
void sim_node_drop_params(struct sim_node *n);
CUresult sim_graph_free(struct sim_region *r);

/* user_object.c */
bool sim_graph_share_objects(struct sim_graph *to, const struct sim_graph *from);
void sim_graph_release_objects(struct sim_graph *g);
void sim_user_objects_destroy(void); /* destroys those without a holder; call it without the lock */

/* graph_memory.c */
void sim_exec_measure(struct sim_exec *e);
CUdeviceptr sim_graph_reused_address(struct sim_graph *g, struct sim_node *const *before, size_t count, const CUDA_MEM_ALLOC_NODE_PARAMS *p);
CUresult sim_exec_reserve(struct sim_exec *e); /* room for a launch, on all its devices */
void sim_exec_launched(struct sim_exec *e, const uint64_t *used); /* used: graph_used of each device before the launch */
void sim_exec_yield(struct sim_exec *e);
CUresult sim_graph_alloc(struct sim_node *n, struct sim_ctx *ctx);

#endif
