/* Calls that wait for work: in them the driver gives back unused memory of pools, down to the release threshold, and linear
 * memory that was freed in a stream. They cost two flag checks as long as this process has neither. */
#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/late_free.h"
#include "memory/own_events.h"
#include "memory/pool.h"
#include "memory/pool_shrink.h"
#include "memory/streams.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static bool nothing_to_come(void)
{
    return likely(!atomic_load_explicit(&fr_pools_any, memory_order_relaxed) && !atomic_load_explicit(&fr_late_frees, memory_order_relaxed)) ||
           atomic_load_explicit(&fr_era, memory_order_relaxed) == 0;
}

static CUresult stream(CUresult (*real)(CUstream), CUstream given, CUstream s)
{
    struct fr_shrinking shrinking;
    if (nothing_to_come()) return real(given);
    uint64_t so_far = fr_late_frees_so_far();
    fr_pools_shrinking(&shrinking, FR_WAITS);
    fr_late_frees_coming(&shrinking, fr_stream_id(s), NULL);
    CUresult r = real(given);
    if (!r && atomic_load(&fr_late_frees)) fr_late_frees_done(fr_stream_id(s), NULL, so_far);
    fr_pools_shrunk(&shrinking);
    return r;
}

/* A query that returns "done" is not a synchronisation: the pool memory that it brings back is read from the driver, and about
 * linear memory it proves nothing. */
static CUresult query(CUresult (*real)(CUstream), CUstream s)
{
    struct fr_shrinking shrinking;
    if (nothing_to_come()) return real(s);
    fr_pools_shrinking(&shrinking, FR_BRIEF);
    CUresult r = real(s);
    fr_pools_shrunk(&shrinking);
    return r;
}

HOOK CUresult cuStreamSynchronize(CUstream s) { return stream(REAL(cuStreamSynchronize), s, s); }
HOOK CUresult cuStreamSynchronize_ptsz(CUstream s) { return stream(REAL(cuStreamSynchronize_ptsz), s, fr_per_thread(s)); }
HOOK CUresult cuStreamQuery(CUstream s) { return query(REAL(cuStreamQuery), s); }
HOOK CUresult cuStreamQuery_ptsz(CUstream s) { return query(REAL(cuStreamQuery_ptsz), s); }

static CUresult event(CUresult (*real)(CUevent), CUevent e, enum fr_how_long how_long)
{
    struct fr_shrinking shrinking;
    if (unlikely(fr_event_is_own(e))) return CUDA_ERROR_INVALID_HANDLE;
    if (nothing_to_come()) return real(e);
    fr_pools_shrinking(&shrinking, how_long);
    CUresult r = real(e);
    fr_pools_shrunk(&shrinking);
    return r;
}

HOOK CUresult cuEventSynchronize(CUevent e) { return event(REAL(cuEventSynchronize), e, FR_WAITS); }
HOOK CUresult cuEventQuery(CUevent e) { return event(REAL(cuEventQuery), e, FR_BRIEF); }

static CUresult current(CUcontext none)
{
    (void)none;
    return REAL(cuCtxSynchronize)();
}

/* Waiting for a context waits for each of its streams. NULL: the current one. */
static CUresult context(CUresult (*real)(CUcontext), CUcontext given)
{
    CUcontext c = given;
    if (nothing_to_come() || (!c && (REAL(cuCtxGetCurrent)(&c) || !c))) return real(given);
    return fr_context_synchronised(c, real, given);
}

HOOK CUresult cuCtxSynchronize(void) { return context(current, NULL); }
HOOK CUresult cuCtxSynchronize_v2(CUcontext c) { return context(REAL(cuCtxSynchronize_v2), c); }
