/* Calls that wait for work: the driver gives unused memory of pools back in them, down to the release threshold. They cost
 * one look at a flag as long as this process has no pool. */
#include "pool.h"

static bool no_pools(void)
{
    return likely(!atomic_load_explicit(&fr_pools_any, memory_order_relaxed)) || atomic_load_explicit(&fr_era, memory_order_relaxed) == 0;
}

static CUresult stream(CUresult (*real)(CUstream), CUstream given, CUstream s)
{
    struct fr_lull l;
    if (no_pools()) return real(given);
    fr_lull_begin(&l);
    CUresult r = real(given);
    fr_lull_end(&l, r ? FR_NO_ORDER : fr_order(s));
    return r;
}

HOOK CUresult cuStreamSynchronize(CUstream s) { return stream(REAL(cuStreamSynchronize), s, s); }
HOOK CUresult cuStreamSynchronize_ptsz(CUstream s) { return stream(REAL(cuStreamSynchronize_ptsz), s, fr_per_thread(s)); }
HOOK CUresult cuStreamQuery(CUstream s) { return stream(REAL(cuStreamQuery), s, s); }
HOOK CUresult cuStreamQuery_ptsz(CUstream s) { return stream(REAL(cuStreamQuery_ptsz), s, fr_per_thread(s)); }

static CUresult event(CUresult (*real)(CUevent), CUevent e)
{
    struct fr_lull l;
    if (no_pools()) return real(e);
    fr_lull_begin(&l);
    CUresult r = real(e);
    fr_lull_end(&l, FR_NO_ORDER);
    return r;
}

HOOK CUresult cuEventSynchronize(CUevent e) { return event(REAL(cuEventSynchronize), e); }
HOOK CUresult cuEventQuery(CUevent e) { return event(REAL(cuEventQuery), e); }

/* The work of other contexts goes on, so no piece becomes free for all. */
HOOK CUresult cuCtxSynchronize(void)
{
    struct fr_lull l;
    if (no_pools()) return REAL(cuCtxSynchronize)();
    fr_lull_begin(&l);
    CUresult r = REAL(cuCtxSynchronize)();
    fr_lull_end(&l, FR_NO_ORDER);
    return r;
}

HOOK CUresult cuCtxSynchronize_v2(CUcontext c)
{
    struct fr_lull l;
    if (no_pools()) return REAL(cuCtxSynchronize_v2)(c);
    fr_lull_begin(&l);
    CUresult r = REAL(cuCtxSynchronize_v2)(c);
    fr_lull_end(&l, FR_NO_ORDER);
    return r;
}
