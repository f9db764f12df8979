/* The hooks of calls that name an event. A program must not use an event of the library's own, so its handle is refused as invalid
 * (memory/own_events.c). */
#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/own_events.h"
#include "pacing/api_launch.h"

#include "cuda_abi.h"

#include <stddef.h>

#define EXTERNAL 1u /* flag of an event record: in a capture, the record becomes a node of the graph */

#define CHANGES(name, parameters, arguments)                           \
    CUresult name parameters;                                          \
    HOOK CUresult name parameters                                      \
    {                                                                  \
        if (unlikely(!fr_event_enter(e))) return CUDA_ERROR_INVALID_HANDLE; \
        CUresult r = REAL(name) arguments;                             \
        fr_event_leave(e);                                             \
        return r;                                                      \
    }
CHANGES(cuEventRecord, (CUevent e, CUstream s), (e, s))
CHANGES(cuEventRecord_ptsz, (CUevent e, CUstream s), (e, s))
CHANGES(cuCtxRecordEvent, (CUcontext c, CUevent e), (c, e))
CHANGES(cuGreenCtxRecordEvent, (CUgreenCtx c, CUevent e), (c, e))
CHANGES(cuEventDestroy, (CUevent e), (e))
CHANGES(cuEventDestroy_v2, (CUevent e), (e))

/* Calls that put an event into a graph, which then records it at every run. */
#define INTO_GRAPH(name, when, parameters, arguments)                  \
    CUresult name parameters;                                          \
    HOOK CUresult name parameters                                      \
    {                                                                  \
        if (unlikely(!fr_event_enter(e))) return CUDA_ERROR_INVALID_HANDLE; \
        CUresult r = (when) ? fr_event_into_graph(e) : CUDA_SUCCESS;   \
        if (!r) r = REAL(name) arguments;                              \
        fr_event_leave(e);                                             \
        return r;                                                      \
    }
INTO_GRAPH(cuEventRecordWithFlags, flags & EXTERNAL, (CUevent e, CUstream s, unsigned flags), (e, s, flags))
INTO_GRAPH(cuEventRecordWithFlags_ptsz, flags & EXTERNAL, (CUevent e, CUstream s, unsigned flags), (e, s, flags))
INTO_GRAPH(cuGraphAddEventRecordNode, true, (CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t n, CUevent e), (out, g, after, n, e))
INTO_GRAPH(cuGraphEventRecordNodeSetEvent, true, (CUgraphNode node, CUevent e), (node, e))
INTO_GRAPH(cuGraphExecEventRecordNodeSetEvent, true, (CUgraphExec x, CUgraphNode node, CUevent e), (x, node, e))

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode, int, const void *);
HOOK CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, int id, const void *value)
{
    CUevent e = value && fr_attribute_is_event(id) ? *(const CUevent *)value : NULL;
    if (unlikely(!fr_event_enter(e))) return CUDA_ERROR_INVALID_HANDLE;
    CUresult r = fr_event_into_graph(e);
    if (!r) r = REAL(cuGraphKernelNodeSetAttribute)(node, id, value);
    fr_event_leave(e);
    return r;
}

#define ASKS(name, is_own, parameters, arguments)           \
    CUresult name parameters;                               \
    HOOK CUresult name parameters                           \
    {                                                       \
        if (unlikely(is_own)) return CUDA_ERROR_INVALID_HANDLE; \
        return REAL(name) arguments;                        \
    }
ASKS(cuEventElapsedTime, fr_event_is_own(a) || fr_event_is_own(b), (float *ms, CUevent a, CUevent b), (ms, a, b))
ASKS(cuEventElapsedTime_v2, fr_event_is_own(a) || fr_event_is_own(b), (float *ms, CUevent a, CUevent b), (ms, a, b))
ASKS(cuIpcGetEventHandle, fr_event_is_own(e), (CUipcEventHandle *out, CUevent e), (out, e))
ASKS(cuGraphAddEventWaitNode, fr_event_is_own(e), (CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t n, CUevent e), (out, g, after, n, e))
ASKS(cuGraphEventWaitNodeSetEvent, fr_event_is_own(e), (CUgraphNode node, CUevent e), (node, e))
ASKS(cuGraphExecEventWaitNodeSetEvent, fr_event_is_own(e), (CUgraphExec x, CUgraphNode node, CUevent e), (x, node, e))

/* Another thread may change what is returned, so the driver writes it here. */
static CUresult given(CUevent *out, CUevent made, CUresult r)
{
    if (r || !out) return r;
    fr_event_is_the_programs(made);
    *out = made;
    return r;
}

CUresult cuIpcOpenEventHandle(CUevent *, CUipcEventHandle);
CUresult cuEventCreateFromEGLSync(CUevent *, void *, unsigned);
#define MAKES(name, parameters, ...)                         \
    HOOK CUresult name parameters                            \
    {                                                        \
        CUevent made = NULL;                                 \
        CUresult r = REAL(name)(out ? &made : NULL, __VA_ARGS__); \
        return given(out, made, r);                          \
    }
MAKES(cuEventCreate, (CUevent *out, unsigned flags), flags)
MAKES(cuIpcOpenEventHandle, (CUevent *out, CUipcEventHandle handle), handle)
MAKES(cuEventCreateFromEGLSync, (CUevent *out, void *sync, unsigned flags), sync, flags)
