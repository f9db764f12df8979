/* Called when a stream is made or about to be destroyed: what is remembered under its handle is dropped, since a new stream may
 * get the handle of an old one. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/api_pool.h"
#include "memory/capture_origins.h"
#include "memory/function_table.h"
#include "memory/kept_blocks.h"
#include "memory/late_free.h"
#include "memory/streams.h"

#include "cuda_abi.h"

#include <stdatomic.h>

/* A destroyed stream's capture is over, and its handle may be reused at once. */
static CUresult ended(CUstream s, CUresult r)
{
    if (!r) fr_capture_stream_ended(s);
    fr_capture_changes_leave();
    return r;
}

void (*_Atomic fr_before_stream_ends)(CUstream s);

static void forget(CUstream s)
{
    void (*before)(CUstream) = atomic_load(&fr_before_stream_ends);
    if (before) before(s);
    fr_kept_blocks_free();
    fr_late_frees_stream_ends(s);
    fr_functions_stream_changes();
    fr_capture_changes_enter(s);
}

HOOK CUresult cuStreamDestroy(CUstream s)
{
    forget(s);
    return ended(s, REAL(cuStreamDestroy)(s));
}

HOOK CUresult cuStreamDestroy_v2(CUstream s)
{
    forget(s);
    return ended(s, REAL(cuStreamDestroy_v2)(s));
}

static CUresult made(CUresult r)
{
    fr_functions_stream_changes();
    return r;
}

HOOK CUresult cuStreamCreate(CUstream *out, unsigned flags) { return made(REAL(cuStreamCreate)(out, flags)); }
HOOK CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) { return made(REAL(cuStreamCreateWithPriority)(out, flags, priority)); }
HOOK CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned flags, int priority)
{
    return made(REAL(cuGreenCtxStreamCreate)(out, green, flags, priority));
}
