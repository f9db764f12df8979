/* The hooks around a capture: how many streams are being captured is counted, and what was kept for them goes to the driver first. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/api_pool.h"
#include "memory/kept_blocks.h"
#include "memory/streams.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define BEGIN(name, parameters, ...)                   \
    HOOK CUresult name parameters                      \
    {                                                  \
        atomic_fetch_add(&fr_capture_count, 1);        \
        fr_kept_blocks_free();                         \
        CUresult r = REAL(name)(__VA_ARGS__);          \
        if (r) atomic_fetch_sub(&fr_capture_count, 1); \
        return r;                                      \
    }
#define TO_GRAPH (CUstream s, CUgraph g, const CUgraphNode *from, const void *edges, size_t n, unsigned mode)
BEGIN(cuStreamBeginCapture, (CUstream s, unsigned mode), s, mode)
BEGIN(cuStreamBeginCapture_ptsz, (CUstream s, unsigned mode), s, mode)
BEGIN(cuStreamBeginCapture_v2, (CUstream s, unsigned mode), s, mode)
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream s, unsigned mode), s, mode)
BEGIN(cuStreamBeginCaptureToGraph, TO_GRAPH, s, g, from, edges, n, mode)
BEGIN(cuStreamBeginCaptureToGraph_ptsz, TO_GRAPH, s, g, from, edges, n, mode)
#define AGAIN (CUstream s, unsigned mode, CUgraph g, void *callback, void *data)
BEGIN(cuStreamBeginRecaptureToGraph, AGAIN, s, mode, g, callback, data)
BEGIN(cuStreamBeginRecaptureToGraph_ptsz, AGAIN, s, mode, g, callback, data)
/* Into a command list of the graphics driver: what is launched runs with that, not now. */
BEGIN(cuStreamBeginCaptureToCig, (CUstream s, void *list), s, list)
BEGIN(cuStreamBeginCaptureToCig_ptsz, (CUstream s, void *list), s, list)

/* A capture that was broken is over as well, with an error; the stream then captures no more. */
static CUresult ended(CUstream s, CUresult r)
{
    int status = 0;
    bool over = !r || (!REAL(cuStreamIsCapturing)(s, &status) && !status && r >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (over) atomic_fetch_sub(&fr_capture_count, 1);
    return r;
}

HOOK CUresult cuStreamEndCapture(CUstream s, CUgraph *out) { return ended(s, REAL(cuStreamEndCapture)(s, out)); }
HOOK CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *out) { return ended(fr_per_thread(s), REAL(cuStreamEndCapture_ptsz)(s, out)); }
HOOK CUresult cuStreamEndCaptureToCig(CUstream s) { return ended(s, REAL(cuStreamEndCaptureToCig)(s)); }
HOOK CUresult cuStreamEndCaptureToCig_ptsz(CUstream s) { return ended(fr_per_thread(s), REAL(cuStreamEndCaptureToCig_ptsz)(s)); }
