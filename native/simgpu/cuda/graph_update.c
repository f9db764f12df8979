/* Queries about graphs, and changes of node parameters. For a change of an executable graph, the node is found by its position. Memory nodes
 * cannot be changed. */
#include "graph.h"

#include <string.h>

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraph child);

enum { UPDATE_TOPOLOGY_CHANGED = 2, UPDATE_NODE_TYPE_CHANGED = 3, UPDATE_PARAMETERS_CHANGED = 5 };

/* ---- queries ---- */

static CUresult edges(CUgraph g, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!count || !SIM_VALID(g, GRAPH) || !from != !to) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    size_t found = 0, room = *count;
    for (struct sim_node *n = g->first; n; n = n->next)
        for (size_t i = 0; i < n->before_count; i++) {
            if (!n->before[i]) continue;
            if (from && found < room) from[found] = n->before[i], to[found] = n;
            found++;
        }
    *count = from && found > room ? room : found;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuGraphGetEdges(CUgraph g, CUgraphNode *from, CUgraphNode *to, size_t *count) { return edges(g, from, to, count); }
API CUresult cuGraphGetEdges_v2(CUgraph g, CUgraphNode *from, CUgraphNode *to, void *data, size_t *count)
{
    if (data && count) memset(data, 0, *count * 8); /* plain edges */
    return edges(g, from, to, count);
}

/* ---- new parameters for a node ---- */

static CUresult set_params(struct sim_node *n, const CUgraphNodeParams *p)
{
    if (!n || n->p.type != p->type) return CUDA_ERROR_INVALID_VALUE;
    if (p->type == N_ALLOC || p->type == N_FREE || p->type == N_GRAPH || p->type == N_CONDITIONAL) return CUDA_ERROR_NOT_SUPPORTED;
    struct sim_node fresh = {.p = *p};
    if (p->type == N_KERNEL && !sim_node_copy_params(&fresh)) return CUDA_ERROR_INVALID_VALUE;
    if (p->type == N_KERNEL) sim_node_drop_params(n);
    n->p = fresh.p;
    n->params = fresh.params;
    return CUDA_SUCCESS;
}

static CUresult set_in_graph(CUgraphNode n, const CUgraphNodeParams *p)
{
    CUresult r = sim_enter();
    return r ? r : sim_leave(SIM_VALID(n, NODE) ? set_params(n, p) : CUDA_ERROR_INVALID_VALUE);
}

/* A node of a child graph is found through the node that owns the child. */
struct sim_node *sim_exec_node(const struct sim_exec *e, const struct sim_node *n)
{
    const struct sim_node *owner = n->graph->owner, *own = owner ? sim_exec_node(e, owner) : NULL;
    if (owner && (!own || owner->p.type != N_GRAPH || own->p.type != N_GRAPH)) return NULL;
    struct sim_node *b = own ? own->p.child.graph->first : e->graph->first;
    for (const struct sim_node *a = n->graph->first; a && b; a = a->next, b = b->next)
        if (a == n) return b;
    return NULL;
}

static CUresult set_in_exec(CUgraphExec e, CUgraphNode n, const CUgraphNodeParams *p)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(e, EXEC) || !SIM_VALID(n, NODE)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    return sim_leave(set_params(sim_exec_node(e, n), p));
}

#define SETTER(kind, TYPE, member, given, fill)                                                   \
    API CUresult cuGraph##kind##NodeSetParams(CUgraphNode n, const TYPE *given)                   \
    {                                                                                             \
        CUgraphNodeParams p = {.type = member};                                                   \
        if (!given) return CUDA_ERROR_INVALID_VALUE;                                              \
        fill;                                                                                     \
        return set_in_graph(n, &p);                                                               \
    }
#define IN_EXEC(name, arguments, member, given, fill)                                             \
    API CUresult name arguments                                                                   \
    {                                                                                             \
        CUgraphNodeParams p = {.type = member};                                                   \
        if (!given) return CUDA_ERROR_INVALID_VALUE;                                              \
        fill;                                                                                     \
        return set_in_exec(e, n, &p);                                                             \
    }
SETTER(Memcpy, CUDA_MEMCPY3D, N_MEMCPY, c, p.memcpy.copyParams = *c)
SETTER(Memset, CUDA_MEMSET_NODE_PARAMS, N_MEMSET, m, p.memset = *m)
SETTER(Host, CUDA_HOST_NODE_PARAMS, N_HOST, h, p.host = *h)
SETTER(Kernel, CUDA_KERNEL_NODE_PARAMS, N_KERNEL, k, memcpy(&p.kernel, k, offsetof(CUDA_KERNEL_NODE_PARAMS, kern)))
IN_EXEC(cuGraphExecMemcpyNodeSetParams, (CUgraphExec e, CUgraphNode n, const CUDA_MEMCPY3D *c, CUcontext ctx), N_MEMCPY, c,
        p.memcpy.copyParams = *c; p.memcpy.copyCtx = ctx)
IN_EXEC(cuGraphExecMemsetNodeSetParams, (CUgraphExec e, CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS *m, CUcontext ctx),
        N_MEMSET, m, p.memset = *m; (void)ctx)
IN_EXEC(cuGraphExecHostNodeSetParams, (CUgraphExec e, CUgraphNode n, const CUDA_HOST_NODE_PARAMS *h), N_HOST, h, p.host = *h)
IN_EXEC(cuGraphExecKernelNodeSetParams, (CUgraphExec e, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *k), N_KERNEL, k,
        memcpy(&p.kernel, k, offsetof(CUDA_KERNEL_NODE_PARAMS, kern)))
IN_EXEC(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec e, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *k), N_KERNEL, k,
        p.kernel = *k)

API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *k)
{
    CUgraphNodeParams p = {.type = N_KERNEL};
    if (!k) return CUDA_ERROR_INVALID_VALUE;
    p.kernel = *k;
    return set_in_graph(n, &p);
}

API CUresult cuGraphNodeSetParams(CUgraphNode n, CUgraphNodeParams *p) { return p ? set_in_graph(n, p) : CUDA_ERROR_INVALID_VALUE; }
API CUresult cuGraphExecNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraphNodeParams *p)
{
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    return p->type == N_GRAPH ? cuGraphExecChildGraphNodeSetParams(e, n, p->child.graph) : set_in_exec(e, n, p);
}

/* ---- update of a whole executable graph ---- */

static bool same_edges(const struct sim_graph *old, const struct sim_node *a, const struct sim_graph *new, const struct sim_node *b)
{
    if (a->before_count != b->before_count) return false;
    for (size_t i = 0; i < a->before_count; i++) {
        const struct sim_node *x = old->first, *y = new->first;
        while (x && y && x != a->before[i]) x = x->next, y = y->next;
        if (y != b->before[i]) return false;
    }
    return true;
}

/* Compares child graphs, too. */
int sim_graph_difference(const struct sim_graph *old, const struct sim_graph *new, CUgraphNode *where)
{
    int why;
    const struct sim_node *a = old->first;
    struct sim_node *b = new->first;
    for (; a && b; a = a->next, b = b->next) {
        *where = b;
        if (a->p.type != b->p.type) return UPDATE_NODE_TYPE_CHANGED;
        if (!same_edges(old, a, new, b)) return UPDATE_TOPOLOGY_CHANGED;
        if (a->p.type == N_ALLOC && a->p.alloc.bytesize != b->p.alloc.bytesize) return UPDATE_PARAMETERS_CHANGED;
        if (a->p.type == N_GRAPH && (why = sim_graph_difference(a->p.child.graph, b->p.child.graph, where))) return why;
    }
    *where = NULL;
    return a || b ? UPDATE_TOPOLOGY_CHANGED : 0;
}

static CUresult update(CUgraphExec e, CUgraph g, CUgraphNode *where, int *result)
{
    CUgraphNode at = NULL;
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(e, EXEC) || !SIM_VALID(g, GRAPH) || sim_graph_is_moved(g)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    int why = sim_graph_difference(e->graph, g, &at);
    struct sim_graph *copy = why ? NULL : sim_graph_clone(g);
    if (where) *where = at;
    if (result) *result = why;
    if (why || !copy) return sim_leave(why ? CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE : CUDA_ERROR_OUT_OF_MEMORY);
    sim_graph_drop(e->graph);
    e->graph = copy;
    sim_exec_measure(e);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuGraphExecUpdate(CUgraphExec e, CUgraph g, CUgraphNode *where, int *result) { return update(e, g, where, result); }
API CUresult cuGraphExecUpdate_v2(CUgraphExec e, CUgraph g, CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO *info)
{
    if (!info) return CUDA_ERROR_INVALID_VALUE;
    info->errorFromNode = NULL;
    return update(e, g, &info->errorNode, &info->result);
}
