/* Kernels of graphs: their code is loaded, and charged, in the node's context when a node gets the kernel. Captured kernels are
 * handled at their launch. For what the launch of the graph may load elsewhere, see graph_kernels.c. */
#include "memory/kernel_nodes.h"

#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/api_memory.h"
#include "memory/function.h"
#include "memory/graph_kernels.h"
#include "memory/own_events.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A node may name the context in which it runs. */
static CUresult used_in(CUfunction f, CUcontext context)
{
    CUcontext before = NULL;
    bool elsewhere = context && !REAL(cuCtxGetCurrent)(&before) && before != context;
    if (elsewhere && REAL(cuCtxPushCurrent_v2)(context)) return CUDA_SUCCESS; /* the driver reports what is wrong */
    CUresult r = fr_function_used(f, NULL);
    if (elsewhere) REAL(cuCtxPopCurrent_v2)(&before);
    return r;
}

static CUresult used(const CUDA_KERNEL_NODE_PARAMS *p, bool has_kernel)
{
    if (!p) return CUDA_SUCCESS;
    return has_kernel ? used_in(p->func ? p->func : (CUfunction)p->kern, p->ctx) : fr_function_used(p->func, NULL);
}

/* A node may name only events of the program; the events that a graph records are remembered. */
static CUresult event_named(const CUgraphNodeParams *p)
{
    bool records = p->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    if (!records && p->type != CU_GRAPH_NODE_TYPE_WAIT_EVENT) return CUDA_SUCCESS;
    if (fr_event_is_own(p->event.event)) return CUDA_ERROR_INVALID_HANDLE;
    return records ? fr_event_into_graph(p->event.event) : CUDA_SUCCESS;
}

static CUresult any_used(const CUgraphNodeParams *p)
{
    if (!p) return CUDA_SUCCESS;
    return p->type == CU_GRAPH_NODE_TYPE_KERNEL ? used(&p->kernel, true) : event_named(p);
}

/* An executable graph may be launched in other contexts too. */
static CUresult used_by(CUgraphExec e, const CUDA_KERNEL_NODE_PARAMS *p, bool has_kernel)
{
    CUresult r = used(p, has_kernel);
    if (!r && p) fr_graph_add_kernel(e, p->func || !has_kernel ? p->func : (CUfunction)p->kern);
    return r;
}

/* Another thread may change the parameters, so the driver gets the copy that was checked. */
#define V1_SIZE offsetof(CUDA_KERNEL_NODE_PARAMS, kern)
#define V2_SIZE sizeof(CUDA_KERNEL_NODE_PARAMS)
#define KERNEL(name, size, check, parameters, arguments) \
    CUresult name parameters;                            \
    HOOK CUresult name parameters                        \
    {                                                    \
        CUDA_KERNEL_NODE_PARAMS own = {0};               \
        if (p) memcpy(&own, p, size), p = &own;          \
        CUresult r = check;                              \
        return r ? r : REAL(name) arguments;             \
    }

KERNEL(cuGraphAddKernelNode, V1_SIZE, used(p, false), (CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t n, const CUDA_KERNEL_NODE_PARAMS *p),
       (out, g, after, n, p))
KERNEL(cuGraphAddKernelNode_v2, V2_SIZE, used(p, true), (CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t n, const CUDA_KERNEL_NODE_PARAMS *p),
       (out, g, after, n, p))
KERNEL(cuGraphKernelNodeSetParams, V1_SIZE, used(p, false), (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p), (node, p))
KERNEL(cuGraphKernelNodeSetParams_v2, V2_SIZE, used(p, true), (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p), (node, p))
KERNEL(cuGraphExecKernelNodeSetParams, V1_SIZE, used_by(e, p, false), (CUgraphExec e, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p), (e, node, p))
KERNEL(cuGraphExecKernelNodeSetParams_v2, V2_SIZE, used_by(e, p, true), (CUgraphExec e, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p), (e, node, p))

/* For some nodes the driver returns values in the parameters. */
#define NODE(name, parameters, arguments)             \
    CUresult name parameters;                         \
    HOOK CUresult name parameters                     \
    {                                                 \
        CUgraphNodeParams own, *given = p;            \
        if (given) own = *given, p = &own;            \
        CUresult r = any_used(p);                     \
        if (!r) r = REAL(name) arguments;             \
        if (!r && given) *given = own;                \
        return r;                                     \
    }

NODE(cuGraphAddNode, (CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t n, CUgraphNodeParams *p), (out, g, after, n, p))
NODE(cuGraphAddNode_v2, (CUgraphNode *out, CUgraph g, const CUgraphNode *after, const void *edges, size_t n, CUgraphNodeParams *p), (out, g, after, edges, n, p))
NODE(cuGraphAddNode_v3, (CUgraphNode *out, CUgraph g, const CUgraphNode *after, const void *edges, size_t n, CUgraphNodeParams *p), (out, g, after, edges, n, p))
NODE(cuGraphNodeSetParams, (CUgraphNode node, CUgraphNodeParams *p), (node, p))
NODE(cuGraphNodeSetParams_v2, (CUgraphNode node, CUgraphNodeParams *p), (node, p))

/* For cuGraphExecNodeSetParams in graph.c, which also counts child graphs. */
CUresult fr_node_used(CUgraphExec e, const CUgraphNodeParams *p)
{
    return p && p->type == CU_GRAPH_NODE_TYPE_KERNEL ? used_by(e, &p->kernel, true) : any_used(p);
}
