/* The hooks of calls by which a program makes a stream wait. They close the open batch, so that the work before the wait does not look
 * stalled. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/api_memory.h"
#include "memory/own_events.h"
#include "memory/streams.h"
#include "pacing/api_launch.h"
#include "pacing/gate.h"
#include "pacing/stream_state.h"
#include "pacing/stream_wait.h"
#include "pacing/timing_events.h"
#include "pacing/wait_calls.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static void cut(CUstream s, bool own)
{
    struct fr_stream_state *st = fr_gate_stream(&(struct fr_work){.stream = s, .per_thread = own});
    if (!st) return;
    fr_stream_state_lock(st);
    fr_timing_close(st);
    st->told = true;
    fr_stream_state_unlock(st);
    fr_stream_state_done(st);
}

/* Work that is launched later into the NULL stream waits for this stream, so the NULL stream's batch is closed, too. */
void fr_wait_cut(CUstream s, bool own, bool by_host)
{
    CUcontext of = fr_gate_context_of(s), before = NULL;
    if (by_host) atomic_store(&fr_blocked_by_host, 1);
    if (unlikely(of != NULL)) {
        REAL(cuCtxGetCurrent)(&before);
        if (REAL(cuCtxSetCurrent)(of)) return;
    }
    cut(s, own);
    if ((s || own) && !atomic_load(&fr_capture_count)) cut(NULL, false);
    if (unlikely(of != NULL)) REAL(cuCtxSetCurrent)(before);
}

#define WAITS(name, own, by_host, parameters, arguments) \
    HOOK CUresult name parameters                        \
    {                                                    \
        if (!fr_unpaced()) fr_wait_cut(s, own, by_host);    \
        return REAL(name) arguments;                     \
    }
#define BOTH(name, by_host, parameters, arguments)     \
    WAITS(name, false, by_host, parameters, arguments) \
    WAITS(name##_ptsz, true, by_host, parameters, arguments)

/* Waiting for an event of a capture draws the stream into that capture. */
static CUresult wait_event(CUresult (*real)(CUstream, CUevent, unsigned), CUstream s, bool own, CUevent e, unsigned flags)
{
    if (unlikely(fr_event_is_own(e))) return CUDA_ERROR_INVALID_HANDLE;
    if (!fr_unpaced()) fr_wait_cut(s, own, false);
    if (likely(!atomic_load(&fr_capture_count))) return real(s, e, flags);
    fr_capture_changes_enter(own ? fr_per_thread(s) : s);
    CUresult r = real(s, e, flags);
    fr_capture_changes_leave();
    return r;
}
HOOK CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags) { return wait_event(REAL(cuStreamWaitEvent), s, false, e, flags); }
HOOK CUresult cuStreamWaitEvent_ptsz(CUstream s, CUevent e, unsigned flags) { return wait_event(REAL(cuStreamWaitEvent_ptsz), s, true, e, flags); }

BOTH(cuLaunchHostFunc, true, (CUstream s, CUhostFn f, void *data), (s, f, data))
BOTH(cuLaunchHostFunc_v2, true, (CUstream s, CUhostFn f, void *data, unsigned mode), (s, f, data, mode))
BOTH(cuWaitExternalSemaphoresAsync, true, (const void *all, const void *values, unsigned n, CUstream s), (all, values, n, s))
BOTH(cuStreamAddCallback, true, (CUstream s, CUstreamCallback f, void *data, unsigned flags), (s, f, data, flags))
BOTH(cuStreamWaitValue32, true, (CUstream s, CUdeviceptr at, uint32_t v, unsigned flags), (s, at, v, flags))
BOTH(cuStreamWaitValue32_v2, true, (CUstream s, CUdeviceptr at, uint32_t v, unsigned flags), (s, at, v, flags))
BOTH(cuStreamWaitValue64, true, (CUstream s, CUdeviceptr at, uint64_t v, unsigned flags), (s, at, v, flags))
BOTH(cuStreamWaitValue64_v2, true, (CUstream s, CUdeviceptr at, uint64_t v, unsigned flags), (s, at, v, flags))
BOTH(cuStreamBatchMemOp, true, (CUstream s, unsigned n, void *operations, unsigned flags), (s, n, operations, flags))
BOTH(cuStreamBatchMemOp_v2, true, (CUstream s, unsigned n, void *operations, unsigned flags), (s, n, operations, flags))

/* These make all streams of a context wait: with what is launched into them later. */
HOOK CUresult cuCtxWaitEvent(CUcontext c, CUevent e)
{
    if (unlikely(fr_event_is_own(e))) return CUDA_ERROR_INVALID_HANDLE;
    if (!fr_unpaced() && c) fr_stream_states_tell(c);
    return REAL(cuCtxWaitEvent)(c, e);
}

/* Streams of a green context belong to a context of their own, which this call does not name. */
HOOK CUresult cuGreenCtxWaitEvent(CUgreenCtx c, CUevent e)
{
    if (unlikely(fr_event_is_own(e))) return CUDA_ERROR_INVALID_HANDLE;
    if (!fr_unpaced()) fr_stream_states_tell(NULL);
    return REAL(cuGreenCtxWaitEvent)(c, e);
}
