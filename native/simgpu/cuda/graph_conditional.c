/* Conditional nodes: a value chooses which body runs. On a card, kernels set the value. Simulated kernels compute nothing, so the value stays as
 * at the beginning of each launch, and a loop that is entered runs its body once. Also here: captures into an existing graph. */
#include "graph.h"

#include <stdlib.h>

enum { COND_IF, COND_WHILE, COND_SWITCH };
enum { ASSIGN_DEFAULT = 1 };

struct condition {
    unsigned value;
    struct condition *next;
};

static struct condition *conditions; /* they live as long as the process */

API CUresult cuGraphConditionalHandleCreate(unsigned long long *out, CUgraph g, CUcontext ctx, unsigned value, unsigned flags)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !SIM_VALID(g, GRAPH) || (ctx && !SIM_VALID(ctx, CTX)) || flags > ASSIGN_DEFAULT) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct condition *c = malloc(sizeof *c);
    if (!c) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *c = (struct condition){flags & ASSIGN_DEFAULT ? value : 0, conditions};
    conditions = c;
    *out = (unsigned long long)(uintptr_t)c;
    return sim_leave(CUDA_SUCCESS);
}

static const struct condition *find(unsigned long long handle)
{
    const struct condition *c = conditions;
    while (c && (unsigned long long)(uintptr_t)c != handle) c = c->next;
    return c;
}

/* The bodies are created with the node and belong to it. */
CUresult sim_conditional_make(CUgraphNodeParams *p)
{
    unsigned most = p->conditional.type == COND_IF ? 2 : p->conditional.type == COND_WHILE ? 1 : 256;
    if (p->conditional.type < 0 || p->conditional.type > COND_SWITCH || !p->conditional.size || p->conditional.size > most || !find(p->conditional.handle))
        return CUDA_ERROR_INVALID_VALUE;
    p->conditional.phGraph_out = calloc(p->conditional.size, sizeof(CUgraph));
    for (unsigned i = 0; p->conditional.phGraph_out && i < p->conditional.size; i++)
        if (!(p->conditional.phGraph_out[i] = sim_graph_new())) return CUDA_ERROR_OUT_OF_MEMORY;
    return p->conditional.phGraph_out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool sim_conditional_clone(CUgraphNodeParams *p)
{
    CUgraph *from = p->conditional.phGraph_out, *to = calloc(p->conditional.size, sizeof *to);
    p->conditional.phGraph_out = to;
    for (unsigned i = 0; to && i < p->conditional.size; i++)
        if (!(to[i] = sim_graph_clone(from[i]))) return false;
    return to != NULL;
}

void sim_conditional_drop(CUgraphNodeParams *p)
{
    for (unsigned i = 0; p->conditional.phGraph_out && i < p->conditional.size; i++)
        if (p->conditional.phGraph_out[i]) sim_graph_drop(p->conditional.phGraph_out[i]);
    free(p->conditional.phGraph_out);
}

/* NULL: no body runs. */
struct sim_graph *sim_conditional_chosen(const CUgraphNodeParams *p)
{
    unsigned value = find(p->conditional.handle)->value;
    unsigned at = p->conditional.type == COND_SWITCH ? value : value ? 0 : 1;
    if (p->conditional.type == COND_WHILE && !value) return NULL;
    return at < p->conditional.size ? p->conditional.phGraph_out[at] : NULL;
}

/* ---- captures: into an existing graph, and behind other nodes ---- */

#define INTO CUgraph g, const CUgraphNode *after, const void *edges, size_t count, unsigned mode

static CUresult begin(CUstream s, INTO)
{
    (void)edges;
    if (!SIM_VALID(g, GRAPH) || (count && !after)) return CUDA_ERROR_INVALID_VALUE;
    return sim_capture_begin(s, mode, g, after, count);
}
API CUresult cuStreamBeginCaptureToGraph(CUstream s, INTO) { return begin(s, g, after, edges, count, mode); }
API CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream s, INTO) { return begin(SIM_PER_THREAD(s), g, after, edges, count, mode); }

/* The captured nodes are added; they are not compared with the earlier ones. */
#define AGAIN unsigned mode, CUgraph g, void *callback, void *data
API CUresult cuStreamBeginRecaptureToGraph(CUstream s, AGAIN) { return (void)callback, (void)data, begin(s, g, NULL, NULL, 0, mode); }
API CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream s, AGAIN) { return (void)callback, (void)data, begin(SIM_PER_THREAD(s), g, NULL, NULL, 0, mode); }

enum { ADD_DEPENDENCIES, SET_DEPENDENCIES };

static CUresult update(CUstream s, const CUgraphNode *nodes, size_t count, unsigned how)
{
    if (how > SET_DEPENDENCIES || (count && !nodes)) return CUDA_ERROR_INVALID_VALUE;
    return sim_capture_move(s, nodes, count, how == ADD_DEPENDENCIES);
}
API CUresult cuStreamUpdateCaptureDependencies(CUstream s, CUgraphNode *n, size_t c, unsigned f) { return update(s, n, c, f); }
API CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream s, CUgraphNode *n, size_t c, unsigned f) { return update(SIM_PER_THREAD(s), n, c, f); }
API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream s, CUgraphNode *n, const void *e, size_t c, unsigned f) { return (void)e, update(s, n, c, f); }
API CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream s, CUgraphNode *n, const void *e, size_t c, unsigned f) { return (void)e, update(SIM_PER_THREAD(s), n, c, f); }
