/* Child graphs. A node owns its child: the child is cloned when the node is added, or, since 12.9, moved into the node. The caller may query
 * and change the child by its handle, but not destroy it. So addresses of allocations stay unique: a graph with memory nodes is never cloned,
 * a moved graph runs with its parent only, and a graph owned by a node gets no more memory nodes. */
#include "graph.h"

#define MOVES 12090 /* the first driver version that can move a graph into a node */

static bool has(const struct sim_graph *g, int one, int other)
{
    for (const struct sim_node *n = g->first; n; n = n->next)
        if (n->p.type == one || n->p.type == other || (n->p.type == N_GRAPH && has(n->p.child.graph, one, other))) return true;
    return false;
}

bool sim_graph_has_memory(const struct sim_graph *g) { return has(g, N_ALLOC, N_FREE); }

bool sim_graph_is_moved(const struct sim_graph *g)
{
    const struct sim_node *n = g->owner;
    return n && n->p.type == N_GRAPH && n->p.child.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
}

static bool is_within(const struct sim_graph *g, const struct sim_graph *outer)
{
    while (g != outer && g->owner) g = g->owner->graph;
    return g == outer;
}

static CUresult move(const struct sim_graph *into, struct sim_graph *g, struct sim_graph **child)
{
    if (sim_driver_version() < MOVES || g->owner || is_within(into, g)) return CUDA_ERROR_INVALID_VALUE;
    if (into->owner && sim_graph_has_memory(g)) return CUDA_ERROR_NOT_SUPPORTED;
    *child = g;
    return CUDA_SUCCESS;
}

/* The graph that a new node of g will own. */
CUresult sim_child_of(struct sim_graph *g, const CUgraphNodeParams *p, struct sim_graph **child)
{
    struct sim_graph *given = p->child.graph;
    if (!SIM_VALID(given, GRAPH)) return CUDA_ERROR_INVALID_VALUE;
    if (has(given, N_CONDITIONAL, N_CONDITIONAL)) return CUDA_ERROR_NOT_SUPPORTED;
    if (p->child.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) return move(g, given, child);
    if (p->child.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) return CUDA_ERROR_INVALID_VALUE;
    if (sim_graph_has_memory(given)) return CUDA_ERROR_NOT_SUPPORTED;
    *child = sim_graph_clone(given);
    return *child ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- graphs that a node owns: a child, or bodies ---- */

bool sim_owned_clone(CUgraphNodeParams *p)
{
    if (p->type == N_CONDITIONAL) return sim_conditional_clone(p);
    return p->type != N_GRAPH || (p->child.graph = sim_graph_clone(p->child.graph));
}

void sim_owned_adopt(struct sim_node *n)
{
    if (n->p.type == N_GRAPH) n->p.child.graph->owner = n;
    for (unsigned i = 0; n->p.type == N_CONDITIONAL && i < n->p.conditional.size; i++) n->p.conditional.phGraph_out[i]->owner = n;
}

void sim_owned_drop(CUgraphNodeParams *p)
{
    if (p->type == N_CONDITIONAL) sim_conditional_drop(p);
    if (p->type == N_GRAPH && p->child.graph) sim_graph_drop(p->child.graph);
}

/* ---- the calls ---- */

API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode n, CUgraph *out)
{
    if (!out || !SIM_VALID(n, NODE) || n->p.type != N_GRAPH) return CUDA_ERROR_INVALID_VALUE;
    *out = n->p.child.graph;
    return CUDA_SUCCESS;
}

static CUresult replace(struct sim_exec *e, struct sim_node *own, const struct sim_graph *child)
{
    CUgraphNode where;
    if (sim_graph_difference(own->p.child.graph, child, &where)) return CUDA_ERROR_INVALID_VALUE;
    struct sim_graph *copy = sim_graph_clone(child);
    if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_graph_drop(own->p.child.graph);
    own->p.child.graph = copy;
    sim_owned_adopt(own);
    sim_exec_measure(e);
    return CUDA_SUCCESS;
}

/* The new child has the same shape as the old one; its allocations have their own addresses. */
API CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraph child)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_node *own = SIM_VALID(e, EXEC) && SIM_VALID(n, NODE) ? sim_exec_node(e, n) : NULL;
    if (!own || own->p.type != N_GRAPH || !SIM_VALID(child, GRAPH) || sim_graph_is_moved(child)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    r = replace(e, own, child);
    sim_leave(r);
    sim_user_objects_destroy();
    return r;
}
