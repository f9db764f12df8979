/* The hooks around a capture. They count the streams that are being captured, and give blocks that the library has kept back to
 * the driver before a capture begins. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/api_pool.h"
#include "memory/capture_origins.h"
#include "memory/kept_blocks.h"
#include "memory/streams.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

void (*_Atomic fr_before_capture)(void);

static void get_ready(void)
{
    void (*before)(void) = atomic_load(&fr_before_capture);
    atomic_fetch_add(&fr_capture_count, 1);
    if (before) before();
    fr_kept_blocks_free();
}

#define BEGIN(name, own, parameters, ...)              \
    HOOK CUresult name parameters                      \
    {                                                  \
        get_ready();                                   \
        fr_capture_changes_enter(own);                 \
        CUresult r = REAL(name)(__VA_ARGS__);          \
        if (r) atomic_fetch_sub(&fr_capture_count, 1); \
        else fr_capture_began(own);                    \
        fr_capture_changes_leave();                    \
        return r;                                      \
    }
#define TO_GRAPH (CUstream s, CUgraph g, const CUgraphNode *from, const void *edges, size_t n, unsigned mode)
BEGIN(cuStreamBeginCapture, s, (CUstream s, unsigned mode), s, mode)
BEGIN(cuStreamBeginCapture_ptsz, fr_per_thread(s), (CUstream s, unsigned mode), s, mode)
BEGIN(cuStreamBeginCapture_v2, s, (CUstream s, unsigned mode), s, mode)
BEGIN(cuStreamBeginCapture_v2_ptsz, fr_per_thread(s), (CUstream s, unsigned mode), s, mode)
BEGIN(cuStreamBeginCaptureToGraph, s, TO_GRAPH, s, g, from, edges, n, mode)
BEGIN(cuStreamBeginCaptureToGraph_ptsz, fr_per_thread(s), TO_GRAPH, s, g, from, edges, n, mode)
#define AGAIN (CUstream s, unsigned mode, CUgraph g, void *callback, void *data)
BEGIN(cuStreamBeginRecaptureToGraph, s, AGAIN, s, mode, g, callback, data)
BEGIN(cuStreamBeginRecaptureToGraph_ptsz, fr_per_thread(s), AGAIN, s, mode, g, callback, data)
/* Into a command list of the graphics driver: launched work runs with that list, not now. */
BEGIN(cuStreamBeginCaptureToCig, s, (CUstream s, void *list), s, list)
BEGIN(cuStreamBeginCaptureToCig_ptsz, fr_per_thread(s), (CUstream s, void *list), s, list)

/* A capture that was broken is over as well, with an error; the stream then captures no more. */
static CUresult ended(CUstream s, CUresult r)
{
    int status = 0;
    bool over = !r || (!REAL(cuStreamIsCapturing)(s, &status) && !status && r >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (over) fr_capture_ended(s);
    fr_capture_changes_leave();
    return r;
}

/* Waits while another thread has found the stream captured and its call is not done. */
#define END(name, own, parameters, ...)                 \
    HOOK CUresult name parameters                       \
    {                                                   \
        fr_capture_changes_enter(own);                  \
        return ended(own, REAL(name)(__VA_ARGS__));     \
    }
END(cuStreamEndCapture, s, (CUstream s, CUgraph *out), s, out)
END(cuStreamEndCapture_ptsz, fr_per_thread(s), (CUstream s, CUgraph *out), s, out)
END(cuStreamEndCaptureToCig, s, (CUstream s), s)
END(cuStreamEndCaptureToCig_ptsz, fr_per_thread(s), (CUstream s), s)
