/* Graphs: nodes, capture of streams, instantiation and launch.
 *
 * A launched graph is one piece of work that takes as long as its longest path. Host nodes divide it: a node belongs to the piece behind all
 * host nodes on its paths, and a round of host nodes runs when the piece before is done. So a host node also holds back nodes of later pieces
 * that do not depend on it. The addresses of allocation nodes are fixed when the node is
 * created; the card's memory for them is taken later (graph_memory.c). */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

static unsigned captures;

/* ---- building ---- */

struct sim_graph *sim_graph_new(void)
{
    struct sim_graph *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->magic = MAGIC_GRAPH;
    g->last = &g->first;
    return g;
}

bool sim_node_copy_params(struct sim_node *n)
{
    struct sim_function *f = n->p.kernel.func ? n->p.kernel.func : n->p.kernel.kern;
    if (!SIM_VALID(f, FUNCTION)) return false;
    n->p.kernel.func = f;
    if (sim.policy.module_nodes && sim_current() && sim_function_load(n->p.kernel.ctx ? n->p.kernel.ctx : sim_current(), f)) return false;
    if (!n->p.kernel.kernelParams || !f->param_count) return ++f->nodes;
    n->params = calloc(f->param_count, sizeof *n->params);
    for (unsigned i = 0; n->params && i < f->param_count; i++) {
        n->params[i] = malloc(f->param_size[i] ? f->param_size[i] : 1);
        if (!n->params[i]) return false;
        memcpy(n->params[i], n->p.kernel.kernelParams[i], f->param_size[i]);
    }
    n->p.kernel.kernelParams = n->params;
    return n->params && ++f->nodes;
}

static struct sim_node *add_node(struct sim_graph *g, const CUgraphNodeParams *p, struct sim_node *const *before, size_t count)
{
    struct sim_node *n = calloc(1, sizeof *n);
    if (!n) return NULL;
    n->magic = MAGIC_NODE;
    n->graph = g;
    n->p = *p;
    n->before = count ? malloc(count * sizeof *n->before) : NULL;
    if (count && n->before) memcpy(n->before, before, count * sizeof *n->before);
    n->before_count = count;
    if (p->type == N_KERNEL && !sim_node_copy_params(n)) return free(n->before), free(n), NULL;
    sim_owned_adopt(n);
    *g->last = n;
    g->last = &n->next;
    g->count++;
    return n;
}

static CUresult alloc_address(CUgraphNodeParams *p, struct sim_graph *g, struct sim_node *const *before, size_t count)
{
    int device = p->alloc.poolProps.location.id;
    if (g->owner) return CUDA_ERROR_NOT_SUPPORTED; /* a graph that a node owns gets no memory nodes */
    if (p->alloc.poolProps.location.type != CU_MEM_LOCATION_DEVICE || !sim_device_valid(device) || !p->alloc.bytesize) return CUDA_ERROR_INVALID_VALUE;
    p->alloc.dptr = sim_graph_reused_address(g, before, count, &p->alloc);
    if (!p->alloc.dptr) p->alloc.dptr = sim_reserve_address(p->alloc.bytesize);
    return CUDA_SUCCESS;
}

static bool are_of(const struct sim_graph *g, const CUgraphNode *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!nodes || !SIM_VALID(nodes[i], NODE) || nodes[i]->graph != g) return false;
    return true;
}

/* Prepares what a node needs before it is added: an address, bodies, or a child graph of its own. */
static CUresult prepare(struct sim_graph *g, const CUgraphNode *before, size_t count, CUgraphNodeParams *p, struct sim_graph **child)
{
    if (p->type == N_ALLOC) return alloc_address(p, g, before, count);
    if (p->type == N_FREE) return g->owner ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    if (p->type == N_CONDITIONAL) return sim_conditional_make(p);
    if (p->type == N_GRAPH) return sim_child_of(g, p, child);
    return p->type >= N_KERNEL && p->type <= N_RECORD ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult add(CUgraphNode *out, CUgraph g, const CUgraphNode *before, size_t count, CUgraphNodeParams *p)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !SIM_VALID(g, GRAPH) || !are_of(g, before, count)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_graph *child = NULL;
    if ((r = prepare(g, before, count, p, &child))) return sim_leave(r);
    CUgraphNodeParams own = *p;
    if (child) own.child.graph = child;
    if (!(*out = add_node(g, &own, before, count)) && (!child || child != p->child.graph)) sim_owned_drop(&own);
    return sim_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuGraphCreate(CUgraph *out, unsigned flags)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || flags) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    *out = sim_graph_new();
    return sim_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

#define BEFORE CUgraphNode *out, CUgraph g, const CUgraphNode *before, size_t n

static CUresult add_kernel(BEFORE, const CUDA_KERNEL_NODE_PARAMS *k, bool v2)
{
    if (!k) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams p = {.type = N_KERNEL};
    memcpy(&p.kernel, k, v2 ? sizeof *k : offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    return add(out, g, before, n, &p);
}
API CUresult cuGraphAddKernelNode(BEFORE, const CUDA_KERNEL_NODE_PARAMS *k) { return add_kernel(out, g, before, n, k, false); }
API CUresult cuGraphAddKernelNode_v2(BEFORE, const CUDA_KERNEL_NODE_PARAMS *k) { return add_kernel(out, g, before, n, k, true); }

API CUresult cuGraphAddMemcpyNode(BEFORE, const CUDA_MEMCPY3D *c, CUcontext ctx)
{
    CUgraphNodeParams p = {.type = N_MEMCPY};
    if (!c) return CUDA_ERROR_INVALID_VALUE;
    p.memcpy.copyParams = *c;
    p.memcpy.copyCtx = ctx;
    return add(out, g, before, n, &p);
}
API CUresult cuGraphAddMemsetNode(BEFORE, const CUDA_MEMSET_NODE_PARAMS *m, CUcontext ctx)
{
    (void)ctx;
    CUgraphNodeParams p = {.type = N_MEMSET};
    if (!m) return CUDA_ERROR_INVALID_VALUE;
    p.memset = *m;
    return add(out, g, before, n, &p);
}
API CUresult cuGraphAddHostNode(BEFORE, const CUDA_HOST_NODE_PARAMS *h)
{
    CUgraphNodeParams p = {.type = N_HOST};
    if (!h) return CUDA_ERROR_INVALID_VALUE;
    p.host = *h;
    return add(out, g, before, n, &p);
}
API CUresult cuGraphAddEmptyNode(BEFORE)
{
    CUgraphNodeParams p = {.type = N_EMPTY};
    return add(out, g, before, n, &p);
}
API CUresult cuGraphAddChildGraphNode(BEFORE, CUgraph child)
{
    CUgraphNodeParams p = {.type = N_GRAPH};
    if (!SIM_VALID(child, GRAPH)) return CUDA_ERROR_INVALID_VALUE;
    p.child.graph = child;
    return add(out, g, before, n, &p);
}
API CUresult cuGraphAddMemAllocNode(BEFORE, CUDA_MEM_ALLOC_NODE_PARAMS *a)
{
    CUgraphNodeParams p = {.type = N_ALLOC};
    if (!a) return CUDA_ERROR_INVALID_VALUE;
    p.alloc = *a;
    CUresult r = add(out, g, before, n, &p);
    if (!r) a->dptr = p.alloc.dptr;
    return r;
}
API CUresult cuGraphAddMemFreeNode(BEFORE, CUdeviceptr at)
{
    CUgraphNodeParams p = {.type = N_FREE, .free = {at}};
    return add(out, g, before, n, &p);
}

static CUresult add_generic(BEFORE, CUgraphNodeParams *given)
{
    if (!given) return CUDA_ERROR_INVALID_VALUE;
    CUresult r = add(out, g, before, n, given);
    return r;
}
API CUresult cuGraphAddNode(BEFORE, CUgraphNodeParams *p) { return add_generic(out, g, before, n, p); }
API CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph g, const CUgraphNode *before, const void *edges, size_t n, CUgraphNodeParams *p)
{
    return (void)edges, add_generic(out, g, before, n, p);
}

API CUresult cuGraphNodeGetType(CUgraphNode n, int *out)
{
    if (!out || !SIM_VALID(n, NODE)) return CUDA_ERROR_INVALID_VALUE;
    *out = n->p.type;
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode n, CUDA_MEM_ALLOC_NODE_PARAMS *out)
{
    if (!out || !SIM_VALID(n, NODE) || n->p.type != N_ALLOC) return CUDA_ERROR_INVALID_VALUE;
    *out = n->p.alloc;
    return CUDA_SUCCESS;
}

static CUresult kernel_params(CUgraphNode n, CUDA_KERNEL_NODE_PARAMS *out, bool v2)
{
    if (!out || !SIM_VALID(n, NODE) || n->p.type != N_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS p = n->p.kernel;
    if (v2 && !p.func->ctx) p.kern = p.func, p.func = NULL; /* a library's kernel */
    memcpy(out, &p, v2 ? sizeof p : offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    return CUDA_SUCCESS;
}
API CUresult cuGraphKernelNodeGetParams(CUgraphNode n, CUDA_KERNEL_NODE_PARAMS *out) { return kernel_params(n, out, false); }
API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode n, CUDA_KERNEL_NODE_PARAMS *out) { return kernel_params(n, out, true); }

API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode n, CUdeviceptr *out)
{
    if (!out || !SIM_VALID(n, NODE) || n->p.type != N_FREE) return CUDA_ERROR_INVALID_VALUE;
    *out = n->p.free.dptr;
    return CUDA_SUCCESS;
}

API CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *out, size_t *count)
{
    if (!count || !SIM_VALID(g, GRAPH)) return CUDA_ERROR_INVALID_VALUE;
    size_t i = 0;
    for (struct sim_node *n = g->first; out && n && i < *count; n = n->next) out[i++] = n;
    *count = out ? i : g->count;
    return CUDA_SUCCESS;
}

void sim_node_drop_params(struct sim_node *n)
{
    if (n->p.type != N_KERNEL) return;
    struct sim_function *f = n->p.kernel.func;
    for (unsigned i = 0; n->params && i < f->param_count; i++) free(n->params[i]);
    free(n->params);
    n->params = NULL;
    if (!--f->nodes && !f->magic) free(f);
}

void sim_graph_drop(struct sim_graph *g)
{
    for (struct sim_node *n = g->first, *next; n; n = next) {
        next = n->next;
        sim_node_drop_params(n);
        sim_owned_drop(&n->p);
        free(n->before);
        n->magic = 0;
        free(n);
    }
    sim_graph_release_objects(g);
    g->magic = 0;
    free(g);
}

API CUresult cuGraphDestroy(CUgraph g)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(g, GRAPH) || g->owner) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    sim_graph_drop(g);
    sim_leave(CUDA_SUCCESS);
    sim_user_objects_destroy();
    return CUDA_SUCCESS;
}

/* ---- capture ---- */

bool sim_capturing(struct sim_stream *st) { return st->capture != NULL; }
bool sim_any_capture(void) { return captures > 0; }

static struct tip *tip_of(struct sim_capture *c, struct sim_stream *st)
{
    for (struct tip *t = c->tips; t; t = t->next)
        if (t->stream == st) return t;
    struct tip *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->stream = st;
    t->next = c->tips;
    return c->tips = t;
}

static void set_tip(struct tip *t, struct sim_node *n)
{
    struct sim_node **one = realloc(t->nodes, sizeof *one);
    if (!one) return;
    one[0] = n;
    t->nodes = one;
    t->count = 1;
}

static void join_tip(struct tip *t, struct sim_node **nodes, size_t count)
{
    struct sim_node **all = realloc(t->nodes, (t->count + count + 1) * sizeof *all);
    if (!all) return;
    memcpy(all + t->count, nodes, count * sizeof *all);
    t->nodes = all;
    t->count += count;
}

CUresult sim_capture_node(struct sim_stream *st, const CUgraphNodeParams *p)
{
    struct tip *t = tip_of(st->capture, st);
    struct sim_node *n = t ? add_node(st->capture->graph, p, t->nodes, t->count) : NULL;
    if (!n) return CUDA_ERROR_INVALID_HANDLE;
    set_tip(t, n);
    return CUDA_SUCCESS;
}

CUresult sim_capture_alloc(struct sim_stream *st, int device, size_t size, CUdeviceptr *out)
{
    CUgraphNodeParams p = {.type = N_ALLOC};
    p.alloc.poolProps.location = (CUmemLocation){CU_MEM_LOCATION_DEVICE, device};
    p.alloc.bytesize = size;
    struct tip *t = tip_of(st->capture, st);
    CUresult r = alloc_address(&p, st->capture->graph, t ? t->nodes : NULL, t ? t->count : 0);
    if (!r) r = sim_capture_node(st, &p);
    if (!r) *out = p.alloc.dptr;
    return r;
}

void sim_capture_event(struct sim_stream *st, struct sim_ev *e)
{
    struct tip *t = tip_of(st->capture, st);
    e->in_capture = true;
    struct sim_node **copy = t ? realloc(e->captured, (t->count + 1) * sizeof *copy) : NULL;
    if (!copy) return;
    if (t->count) memcpy(copy, t->nodes, t->count * sizeof *copy);
    e->captured = copy;
    e->captured_count = t->count;
    e->capture = st->capture;
}

/* A stream that waits for an event of a capture is drawn into that capture. */
CUresult sim_capture_wait(struct sim_stream *st, struct sim_ev *e)
{
    if (!e->capture) return CUDA_SUCCESS; /* an event from outside: nothing within the graph depends on it */
    if (st->capture && st->capture != e->capture) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (e->capture->over) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (st->legacy) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (!st->capture) {
        st->capture = e->capture;
        st->capture->refs++;
    }
    struct tip *t = tip_of(st->capture, st);
    if (t) join_tip(t, e->captured, e->captured_count);
    return CUDA_SUCCESS;
}

static CUresult enter_stream(CUstream handle, struct sim_stream **st)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    *st = sim_stream_of(c, handle);
    return *st ? CUDA_SUCCESS : sim_leave(CUDA_ERROR_INVALID_HANDLE);
}

/* Captures into a new graph, or into an existing graph behind the given nodes. */
CUresult sim_capture_begin(CUstream handle, unsigned mode, struct sim_graph *into, const CUgraphNode *after, size_t count)
{
    struct sim_stream *st;
    CUresult r = enter_stream(handle, &st);
    if (r) return r;
    if (st->legacy) return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (st->capture || mode > 2) return sim_leave(CUDA_ERROR_ILLEGAL_STATE);
    struct sim_capture *c = calloc(1, sizeof *c);
    if (!c || !(c->graph = into ? into : sim_graph_new())) return free(c), sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    c->origin = st;
    c->id = ++sim.next_number;
    c->refs = 1;
    c->mode = mode;
    c->lent = into != NULL;
    struct tip *t = tip_of(c, st);
    if (t && count) join_tip(t, (struct sim_node **)after, count);
    st->capture = c;
    captures++;
    return sim_leave(CUDA_SUCCESS);
}

/* Work captured next depends on these nodes, or (add) on these in addition. */
CUresult sim_capture_move(CUstream handle, const CUgraphNode *nodes, size_t count, bool add)
{
    struct sim_stream *st;
    CUresult r = enter_stream(handle, &st);
    if (r) return r;
    struct tip *t = st->capture ? tip_of(st->capture, st) : NULL;
    if (!t) return sim_leave(CUDA_ERROR_ILLEGAL_STATE);
    for (size_t i = 0; i < count; i++)
        if (!SIM_VALID(nodes[i], NODE) || nodes[i]->graph != st->capture->graph) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!add) t->count = 0;
    join_tip(t, (struct sim_node **)nodes, count);
    return sim_leave(CUDA_SUCCESS);
}

static CUresult begin(CUstream handle, unsigned mode) { return sim_capture_begin(handle, mode, NULL, NULL, 0); }

API CUresult cuStreamBeginCapture(CUstream s) { return begin(s, 0); }
API CUresult cuStreamBeginCapture_ptsz(CUstream s) { return begin(SIM_PER_THREAD(s), 0); }
API CUresult cuStreamBeginCapture_v2(CUstream s, unsigned mode) { return begin(s, mode); }
API CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, unsigned mode) { return begin(SIM_PER_THREAD(s), mode); }

static bool is_tip_of_origin(struct sim_capture *c, struct sim_node *n)
{
    struct tip *t = tip_of(c, c->origin);
    for (size_t i = 0; t && i < t->count; i++) {
        if (t->nodes[i] == n) return true;
        for (size_t k = 0; k < t->nodes[i]->before_count; k++)
            if (t->nodes[i]->before[k] == n) return true;
    }
    return false;
}

static bool all_joined(struct sim_capture *c)
{
    for (struct tip *t = c->tips; t; t = t->next)
        for (size_t i = 0; t->stream != c->origin && i < t->count; i++) {
            bool later = false; /* a later node is enough: it was joined through another stream */
            for (struct sim_node *n = c->graph->first; n; n = n->next)
                for (size_t k = 0; k < n->before_count; k++) later |= n->before[k] == t->nodes[i];
            if (!later && !is_tip_of_origin(c, t->nodes[i])) return false;
        }
    return true;
}

static void over(struct sim_capture *c)
{
    for (struct tip *t = c->tips, *next; t; t = next) {
        next = t->next;
        t->stream->capture = NULL;
        free(t->nodes);
        free(t);
    }
    c->tips = NULL;
    c->origin->capture = NULL;
    c->over = true;
    captures--;
    /* The capture itself stays: events recorded in it still point to it. */
}

/* The stream is about to be destroyed. If it was only drawn into a capture, the work captured in it stays in the graph. */
void sim_capture_stream_ends(struct sim_stream *st)
{
    struct sim_capture *c = st->capture;
    if (!c) return;
    if (c->origin == st) {
        over(c);
        if (!c->lent) sim_graph_drop(c->graph);
        return;
    }
    for (struct tip **t = &c->tips, *gone; *t; t = &(*t)->next) {
        if ((*t)->stream != st) continue;
        gone = *t;
        *t = gone->next;
        free(gone->nodes);
        free(gone);
        break;
    }
    st->capture = NULL;
}

static CUresult end(CUstream handle, CUgraph *out)
{
    struct sim_stream *st;
    CUresult r = enter_stream(handle, &st);
    if (r) return r;
    struct sim_capture *c = st->capture;
    if (!out) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!c) return sim_leave(CUDA_ERROR_ILLEGAL_STATE);
    if (c->origin != st) return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    bool joined = all_joined(c);
    over(c);
    *out = joined ? c->graph : NULL;
    if (!joined && !c->lent) sim_graph_drop(c->graph);
    return sim_leave(joined ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

API CUresult cuStreamEndCapture(CUstream s, CUgraph *out) { return end(s, out); }
API CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *out) { return end(SIM_PER_THREAD(s), out); }

/* Captures into a command list of the graphics driver, which is not simulated: the captured work never runs. */
static CUresult begin_to_list(CUstream s, const void *list) { return list ? begin(s, 2) : CUDA_ERROR_INVALID_VALUE; }

static CUresult end_to_list(CUstream s)
{
    CUgraph captured = NULL;
    CUresult r = end(s, &captured);
    if (captured) cuGraphDestroy(captured);
    return r;
}

API CUresult cuStreamBeginCaptureToCig(CUstream s, const void *list) { return begin_to_list(s, list); }
API CUresult cuStreamBeginCaptureToCig_ptsz(CUstream s, const void *list) { return begin_to_list(SIM_PER_THREAD(s), list); }
API CUresult cuStreamEndCaptureToCig(CUstream s) { return end_to_list(s); }
API CUresult cuStreamEndCaptureToCig_ptsz(CUstream s) { return end_to_list(SIM_PER_THREAD(s)); }

static CUresult status(CUstream handle, int *out, uint64_t *id)
{
    struct sim_stream *st;
    CUresult r = enter_stream(handle, &st);
    if (r) return r;
    if (!out) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    *out = st->capture ? 1 : 0;
    if (id && st->capture) *id = st->capture->id;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuStreamIsCapturing(CUstream s, int *out) { return status(s, out, NULL); }
API CUresult cuStreamIsCapturing_ptsz(CUstream s, int *out) { return status(SIM_PER_THREAD(s), out, NULL); }
API CUresult cuStreamGetCaptureInfo(CUstream s, int *out, uint64_t *id) { return status(s, out, id); }
API CUresult cuStreamGetCaptureInfo_ptsz(CUstream s, int *out, uint64_t *id) { return status(SIM_PER_THREAD(s), out, id); }

static CUresult info(CUstream s, int *out, uint64_t *id, CUgraph *g, const CUgraphNode **nodes, const void **edges, size_t *count)
{
    struct sim_stream *st;
    CUresult r = status(s, out, id);
    if (r || !*out) return r;
    if ((r = enter_stream(s, &st))) return r;
    struct tip *t = st->capture ? tip_of(st->capture, st) : NULL;
    if (g && t) *g = st->capture->graph;
    if (nodes && t) *nodes = t->nodes;
    if (edges) *edges = NULL;
    if (count && t) *count = t->count;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuStreamGetCaptureInfo_v2(CUstream s, int *o, uint64_t *id, CUgraph *g, const CUgraphNode **n, size_t *c) { return info(s, o, id, g, n, NULL, c); }
API CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream s, int *o, uint64_t *id, CUgraph *g, const CUgraphNode **n, size_t *c) { return info(SIM_PER_THREAD(s), o, id, g, n, NULL, c); }
API CUresult cuStreamGetCaptureInfo_v3(CUstream s, int *o, uint64_t *id, CUgraph *g, const CUgraphNode **n, const void **e, size_t *c) { return info(s, o, id, g, n, e, c); }
API CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream s, int *o, uint64_t *id, CUgraph *g, const CUgraphNode **n, const void **e, size_t *c) { return info(SIM_PER_THREAD(s), o, id, g, n, e, c); }

API CUresult cuThreadExchangeStreamCaptureMode(unsigned *mode)
{
    static __thread unsigned current;
    if (!mode || *mode > 2) return CUDA_ERROR_INVALID_VALUE;
    unsigned was = current;
    current = *mode;
    *mode = was;
    return CUDA_SUCCESS;
}

/* ---- instantiation ---- */

static struct sim_node *twin_of(const struct sim_graph *from, const struct sim_graph *to, const struct sim_node *n)
{
    struct sim_node *b = to->first;
    for (const struct sim_node *a = from->first; a && b; a = a->next, b = b->next)
        if (a == n) return b;
    return NULL;
}

struct sim_graph *sim_graph_clone(const struct sim_graph *g)
{
    struct sim_graph *copy = sim_graph_new();
    for (const struct sim_node *n = g->first; copy && n; n = n->next) {
        CUgraphNodeParams p = n->p;
        struct sim_node *twin = sim_owned_clone(&p) ? add_node(copy, &p, n->before, n->before_count) : NULL;
        if (!twin) return sim_owned_drop(&p), sim_graph_drop(copy), NULL;
        for (size_t i = 0; i < twin->before_count; i++) twin->before[i] = twin_of(g, copy, twin->before[i]);
    }
    if (copy && !sim_graph_share_objects(copy, g)) return sim_graph_drop(copy), NULL;
    return copy;
}

static void drop_exec(struct sim_exec *e)
{
    sim_exec_yield(e);
    sim_graph_drop(e->graph);
    e->magic = 0;
    free(e);
}

static CUresult instantiate(CUgraphExec *out, CUgraph g, uint64_t flags)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !SIM_VALID(g, GRAPH) || sim_graph_is_moved(g)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_exec *e = calloc(1, sizeof *e);
    if (!e || !(e->graph = sim_graph_clone(g))) return free(e), sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    e->magic = MAGIC_EXEC;
    e->flags = flags;
    sim_exec_measure(e);
    bool now = sim.policy.graph_when == SIM_GRAPH_AT_INSTANTIATE;
    if (now && (r = sim_exec_reserve(e))) return drop_exec(e), sim_leave(r);
    *out = e;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph g, CUgraphNode *n, char *log, size_t size) { return (void)n, (void)log, (void)size, instantiate(out, g, 0); }
API CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph g, CUgraphNode *n, char *log, size_t size) { return (void)n, (void)log, (void)size, instantiate(out, g, 0); }
API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags) { return instantiate(out, g, flags); }

CUresult cuGraphUpload(CUgraphExec e, CUstream s);
CUresult cuGraphExecDestroy(CUgraphExec e);
static CUresult with_params(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUresult r = instantiate(out, g, p->flags);
    if (!r && (p->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) && (r = cuGraphUpload(*out, p->hUploadStream))) cuGraphExecDestroy(*out);
    p->result_out = r ? 1 : 0;
    return r;
}
API CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p) { return with_params(out, g, p); }
API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p) { return with_params(out, g, p); }

API CUresult cuGraphClone(CUgraph *out, CUgraph g)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !SIM_VALID(g, GRAPH)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (sim_graph_has_memory(g)) return sim_leave(CUDA_ERROR_NOT_SUPPORTED); /* two graphs would have the same addresses */
    *out = sim_graph_clone(g);
    return sim_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuGraphExecDestroy(CUgraphExec e)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(e, EXEC)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    drop_exec(e);
    sim_leave(CUDA_SUCCESS);
    sim_user_objects_destroy();
    return CUDA_SUCCESS;
}

/* ---- launch ---- */

struct launch {
    struct sim_ctx *ctx;
    struct sim_stream *stream;
    uint32_t share;
};

static CUresult run_graph(struct sim_graph *g, struct launch *l, struct sim_moment from, struct sim_moment *until);

static CUresult run_kernel(struct sim_node *n, struct launch *l, struct sim_item *item)
{
    const CUDA_KERNEL_NODE_PARAMS *k = &n->p.kernel;
    unsigned grid[3] = {k->gridDimX, k->gridDimY, k->gridDimZ}, block[3] = {k->blockDimX, k->blockDimY, k->blockDimZ};
    if (!SIM_VALID(k->func, FUNCTION)) return CUDA_ERROR_INVALID_HANDLE; /* its module was unloaded */
    return sim_kernel_item(l->ctx, k->func, grid, block, k->kernelParams, k->extra, item);
}

static CUresult run_memset(struct sim_node *n, struct launch *l, struct sim_item *item)
{
    const CUDA_MEMSET_NODE_PARAMS *m = &n->p.memset;
    *item = sim_fill_item(l->ctx, m->width * m->elementSize * m->height);
    return sim_fill(m->dst, m->pitch, m->value, m->elementSize, m->width, m->height);
}

/* Performs the node's work and computes how long it takes. */
static CUresult run_node(struct sim_node *n, struct launch *l, struct sim_moment start, struct sim_moment *until)
{
    struct sim_item item = {0};
    CUresult r = CUDA_SUCCESS;
    *until = start;
    switch (n->p.type) {
    case N_KERNEL: r = run_kernel(n, l, &item); break;
    case N_MEMCPY: r = sim_copy_3d(&n->p.memcpy.copyParams, l->ctx, &item); break;
    case N_MEMSET: r = run_memset(n, l, &item); break;
    case N_GRAPH: return run_graph(n->p.child.graph, l, start, until);
    case N_CONDITIONAL: return run_graph(sim_conditional_chosen(&n->p), l, start, until);
    case N_ALLOC: r = sim_graph_alloc(n, l->ctx); break;
    case N_FREE: r = sim_graph_free(sim_region_at(n->p.free.dptr)); break;
    case N_HOST: *until = (struct sim_moment){start.piece + 1, 0}; break;
    default: break;
    }
    if (item.share > l->share) l->share = item.share;
    until->ns += item.left_ns;
    return r;
}

static struct sim_moment later(struct sim_moment a, struct sim_moment b)
{
    return a.piece != b.piece ? (a.piece > b.piece ? a : b) : a.ns > b.ns ? a : b;
}

static CUresult run_graph(struct sim_graph *g, struct launch *l, struct sim_moment from, struct sim_moment *until)
{
    *until = from;
    for (struct sim_node *n = g ? g->first : NULL; n; n = n->next) {
        struct sim_moment start = from;
        for (size_t i = 0; i < n->before_count; i++)
            if (n->before[i]) start = later(start, n->before[i]->end);
        CUresult r = run_node(n, l, start, &n->end);
        if (r) return r;
        *until = later(*until, n->end);
    }
    return CUDA_SUCCESS;
}

static struct sim_graph *graph_within(const struct sim_node *n)
{
    return n->p.type == N_GRAPH ? n->p.child.graph : n->p.type == N_CONDITIONAL ? sim_conditional_chosen(&n->p) : NULL;
}

static uint64_t length_of(struct sim_graph *g, unsigned piece)
{
    uint64_t longest = 0;
    for (struct sim_node *n = g ? g->first : NULL; n; n = n->next) {
        uint64_t within = length_of(graph_within(n), piece);
        if (within > longest) longest = within;
        if (n->end.piece == piece && n->end.ns > longest) longest = n->end.ns;
    }
    return longest;
}

static CUresult run_host_nodes(struct sim_graph *g, struct sim_stream *st, unsigned piece)
{
    CUresult r = CUDA_SUCCESS;
    for (struct sim_node *n = g ? g->first : NULL; n && !r; n = n->next) {
        if (n->p.type == N_HOST && n->end.piece == piece + 1) r = sim_submit_host(st, n->p.host.fn, n->p.host.userData);
        else r = run_host_nodes(graph_within(n), st, piece);
    }
    return r;
}

/* The pieces and the host nodes between them, in the order of the stream. */
static CUresult submit_pieces(struct sim_graph *g, const struct launch *l, unsigned last)
{
    CUresult r = CUDA_SUCCESS;
    for (unsigned piece = 0; piece <= last && !r; piece++) {
        struct sim_item item = {.kind = SIM_KERNEL, .left_ns = length_of(g, piece), .share = (uint16_t)l->share};
        if (!piece || item.left_ns) r = sim_submit(l->stream, item, NULL);
        if (!r && piece < last) r = run_host_nodes(g, l->stream, piece);
    }
    return r;
}

/* With the flag for it, a launch first frees allocations of an earlier launch that were not freed since. */
static void free_left(struct sim_graph *g)
{
    for (struct sim_node *n = g->first; n; n = n->next) {
        if (n->p.type == N_ALLOC) sim_graph_free(sim_region_at(n->p.alloc.dptr));
        if (n->p.type == N_GRAPH) free_left(n->p.child.graph);
    }
}

/* A captured graph launch becomes a child graph node. */
static CUresult capture_child(struct sim_stream *st, struct sim_graph *g)
{
    CUgraphNodeParams p = {.type = N_GRAPH, .child = {.graph = g}};
    CUresult r = sim_child_of(st->capture->graph, &p, &p.child.graph);
    if (r) return r;
    if ((r = sim_capture_node(st, &p))) sim_owned_drop(&p);
    return r;
}

static CUresult launch(CUgraphExec e, CUstream handle)
{
    struct sim_stream *st;
    struct sim_moment end = {0, 0};
    CUresult r = enter_stream(handle, &st);
    if (r) return r;
    if (!SIM_VALID(e, EXEC)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (sim_capturing(st)) return sim_leave(capture_child(st, e->graph));
    struct launch l = {st->ctx, st, 1};
    if (e->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) free_left(e->graph);
    uint64_t used[SIM_CARDS];
    for (int device = 0; device < SIM_CARDS; device++) used[device] = sim.devices[device].graph_used;
    r = sim_exec_reserve(e);
    if (!r) {
        r = run_graph(e->graph, &l, (struct sim_moment){0, 0}, &end);
        sim_exec_launched(e, used);
    }
    return sim_leave(r ? r : submit_pieces(e->graph, &l, end.piece));
}

API CUresult cuGraphLaunch(CUgraphExec e, CUstream s) { return launch(e, s); }
API CUresult cuGraphLaunch_ptsz(CUgraphExec e, CUstream s) { return launch(e, SIM_PER_THREAD(s)); }

static CUresult upload(CUgraphExec e, CUstream handle)
{
    struct sim_stream *st;
    CUresult r = enter_stream(handle, &st);
    if (r) return r;
    if (!SIM_VALID(e, EXEC)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    return sim_leave(sim.policy.graph_when == SIM_GRAPH_AT_LAUNCH ? CUDA_SUCCESS : sim_exec_reserve(e));
}

API CUresult cuGraphUpload(CUgraphExec e, CUstream s) { return upload(e, s); }
API CUresult cuGraphUpload_ptsz(CUgraphExec e, CUstream s) { return upload(e, SIM_PER_THREAD(s)); }
