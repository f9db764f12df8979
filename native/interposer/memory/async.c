/* The hooks of stream-ordered memory.
 *
 * A request for which a piece of the pool is known to be free needs no growth and goes as it is. Any other reserves the
 * 32 MiB steps by which the pool may grow at worst. Near the quota those do not fit, and then, in this order: what the
 * driver gave back by itself; what the pools of this process can give back, once the work of the stream is done; the bare
 * request from linear memory, which takes granules of 2 MiB and may be freed by cuMemFreeAsync as well. Only then is
 * memory out.
 *
 * A capturing stream allocates nothing: the request becomes a node of the graph (graph.c). Such a stream is never asked
 * whether its work is done, and calls that a capture forbids to other streams are made in relaxed mode. */
#include "pool.h"

#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_NS 1000000000ull /* for work that is on its way; a stream may also wait for the thread that allocates */
#define LEAST_NAP_NS 20000
#define MOST_NAP_NS 1000000

_Atomic int fr_captures;

/* ---- streams ---- */

uint64_t fr_order(CUstream s)
{
    unsigned long long id;
    if (fr_has(FR_cuStreamGetId)) return REAL(cuStreamGetId)(s, &id) ? FR_NO_ORDER : id + 1;
    uint64_t thread = s == CU_STREAM_PER_THREAD ? (uint64_t)syscall(SYS_gettid) : 0;
    CUcontext c = NULL;
    if ((uintptr_t)s <= 2 && REAL(cuStreamGetCtx)(s, &c)) return FR_NO_ORDER;
    return ((uint64_t)(uintptr_t)s + (uint64_t)(uintptr_t)c + (thread << 32)) | 1ull << 63;
}

bool fr_capturing(CUstream s)
{
    int status = 0;
    if (likely(!atomic_load_explicit(&fr_captures, memory_order_relaxed))) return false;
    return REAL(cuStreamIsCapturing)(s, &status) || status;
}

#define BEGIN(name, parameters, ...)                                      \
    HOOK CUresult name parameters                                         \
    {                                                                     \
        atomic_fetch_add(&fr_captures, 1);                                \
        CUresult r = REAL(name)(__VA_ARGS__);                             \
        if (r) atomic_fetch_sub(&fr_captures, 1);                         \
        return r;                                                         \
    }
#define TO_GRAPH (CUstream s, CUgraph g, const CUgraphNode *from, const void *edges, size_t n, unsigned mode)
BEGIN(cuStreamBeginCapture, (CUstream s, unsigned mode), s, mode)
BEGIN(cuStreamBeginCapture_ptsz, (CUstream s, unsigned mode), s, mode)
BEGIN(cuStreamBeginCapture_v2, (CUstream s, unsigned mode), s, mode)
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream s, unsigned mode), s, mode)
BEGIN(cuStreamBeginCaptureToGraph, TO_GRAPH, s, g, from, edges, n, mode)
BEGIN(cuStreamBeginCaptureToGraph_ptsz, TO_GRAPH, s, g, from, edges, n, mode)

/* A capture that was broken is over as well, with an error; the stream then captures no more. */
static CUresult ended(CUstream s, CUresult r)
{
    int status = 0;
    bool over = !r || (!REAL(cuStreamIsCapturing)(s, &status) && !status && r >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (over) atomic_fetch_sub(&fr_captures, 1);
    return r;
}

HOOK CUresult cuStreamEndCapture(CUstream s, CUgraph *out) { return ended(s, REAL(cuStreamEndCapture)(s, out)); }
HOOK CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *out) { return ended(fr_per_thread(s), REAL(cuStreamEndCapture_ptsz)(s, out)); }

/* ---- one attempt ---- */

struct request {
    struct fr_pool *pool;
    size_t size;
    CUstream stream;
    CUdeviceptr *out;
    CUresult result;   /* of the driver, when it was called */
    uint64_t attempts; /* at growing the pool */
};

/* A pool that grew where none was reserved: the piece goes back at once, and nothing is claimed in this pool again. */
static CUresult take_back(struct request *q)
{
    REAL(cuMemFreeAsync)(*q->out, q->stream);
    *q->out = 0;
    fr_pools_trim(q->pool->card);
    fr_escape();
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static bool call(struct request *q, struct fr_growth *g)
{
    CUdeviceptr at = 0;
    q->result = REAL(cuMemAllocFromPoolAsync)(&at, q->size, q->pool->handle, q->stream);
    if (!q->result) *q->out = at;
    if (!fr_pool_end(q->pool, g, q->result ? 0 : at) && !q->result) q->result = take_back(q);
    return true;
}

static bool reserved(struct request *q)
{
    struct fr_growth g;
    q->attempts++;
    return fr_pool_grow_begin(q->pool, q->size, &g) && call(q, &g);
}

static bool claimed(struct request *q)
{
    struct fr_growth g;
    return fr_pool_claim_begin(q->pool, q->size, fr_order(q->stream), &g) && call(q, &g);
}

/* ---- at the margin ---- */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void nap(uint64_t ns)
{
    struct timespec t = {0, (long)ns};
    nanosleep(&t, NULL);
}

/* Is memory of this process on its way back to its pools? */
static bool awaited(const struct request *q)
{
    uint64_t order = fr_order(q->stream);
    fr_pools_enter();
    uint64_t now = fr_pieces_now();
    fr_unlock(&fr_pools_lock);
    CUresult r = REAL(cuStreamQuery)(q->stream);
    if (r == CUDA_ERROR_NOT_READY) return true;
    fr_pools_enter();
    if (!r) fr_pieces_ordered(order, now);
    bool waits = fr_chunk_waits(q->pool->card);
    fr_unlock(&fr_pools_lock);
    return waits;
}

static bool waited(struct request *q)
{
    uint64_t end = now_ns() + PATIENCE_NS, length = LEAST_NAP_NS;
    for (;;) {
        bool more = awaited(q);
        fr_pools_trim(q->pool->card);
        fr_graphs_trim(q->pool->card);
        if (reserved(q) || claimed(q)) return true;
        if (!more || now_ns() > end) return false;
        nap(length);
        if (length < MOST_NAP_NS) length *= 2;
    }
}

static CUresult last_resort(struct request *q)
{
    CUdevice device;
    bool here = !q->pool->exported && fr_card_here(&device) == q->pool->card;
    return here ? fr_linear_alloc(q->out, q->size) : CUDA_ERROR_OUT_OF_MEMORY;
}

/* While other threads allocate, what they hold for a moment may be what is missing: a refusal counts when none did. */
static CUresult persist(struct request *q)
{
    uint64_t end = now_ns() + PATIENCE_NS, length = LEAST_NAP_NS;
    for (;;) {
        uint64_t others = fr_pools_begun() - q->attempts;
        if (waited(q)) return q->result;
        CUresult r = last_resort(q);
        bool alone = !fr_pool_calls(q->pool) && fr_pools_begun() - q->attempts == others;
        if (r != CUDA_ERROR_OUT_OF_MEMORY || alone || now_ns() > end) return r;
        nap(length);
        if (length < MOST_NAP_NS) length *= 2;
    }
}

static CUresult at_the_margin(struct request *q)
{
    struct fr_quota quota;
    int mode = 2; /* relaxed */
    fr_quota(q->pool->card, &quota);
    if (q->size > quota.memory) return last_resort(q);
    if (claimed(q)) return q->result;
    fr_pools_settle(q->pool->card);
    if (reserved(q)) return q->result;
    bool relaxed = atomic_load(&fr_captures) && !REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    CUresult r = persist(q);
    if (relaxed) REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return r;
}

/* ---- the calls ---- */

static CUresult alloc_from(struct fr_pool *p, CUdeviceptr *out, size_t size, CUstream s)
{
    struct request q = {.pool = p, .size = size, .stream = s, .out = out};
    if (fr_process() == FR_CLOSED) return CUDA_ERROR_OUT_OF_MEMORY;
    if (p->card == FR_NO_CARD && p->device >= 0 && fr_process() != FR_OFF) return CUDA_ERROR_OUT_OF_MEMORY;
    if (p->card == FR_NO_CARD) return REAL(cuMemAllocFromPoolAsync)(out, size, p->handle, s);
    return claimed(&q) || reserved(&q) ? q.result : at_the_margin(&q);
}

/* The pool that serves the stream is the current one of its device. */
static struct fr_pool *pool_of(CUstream s)
{
    CUdevice device;
    CUcontext c = NULL;
    CUmemoryPool handle = NULL;
    int card = (uintptr_t)s > 2 && !REAL(cuStreamGetCtx)(s, &c) ? fr_card_of_context(c, &device) : fr_card_here(&device);
    if (device < 0 || REAL(cuDeviceGetMemPool)(&handle, device)) return NULL;
    struct fr_pool *p = fr_pool_use(handle);
    return p ? p : fr_pool_adopt(handle, device, card);
}

static CUresult alloc_async(CUdeviceptr *out, size_t size, CUstream s)
{
    if (!out || !size || fr_capturing(s)) return REAL(cuMemAllocAsync)(out, size, s);
    struct fr_pool *p = pool_of(s);
    if (!p) return fr_process() == FR_CLOSED ? CUDA_ERROR_OUT_OF_MEMORY : REAL(cuMemAllocAsync)(out, size, s);
    CUresult r = alloc_from(p, out, size, s);
    fr_pool_done(p);
    return r;
}

HOOK CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream s) { return alloc_async(out, size, s); }
HOOK CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream s) { return alloc_async(out, size, fr_per_thread(s)); }

/* A handle that was never seen is none, or the driver knows better. */
static CUresult alloc_unknown(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream s)
{
    CUdevice device;
    if (fr_process() == FR_CLOSED) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = REAL(cuMemAllocFromPoolAsync)(out, size, pool, s);
    struct fr_pool *p = r ? NULL : fr_pool_adopt(pool, -1, fr_card_here(&device));
    if (p) {
        p->device = device;
        fr_pools_settle(p->card);
        fr_pool_done(p);
    }
    return r;
}

static CUresult alloc_from_pool(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream s)
{
    if (!out || !size || !pool || fr_capturing(s)) return REAL(cuMemAllocFromPoolAsync)(out, size, pool, s);
    struct fr_pool *p = fr_pool_use(pool);
    if (!p) return alloc_unknown(out, size, pool, s);
    CUresult r = alloc_from(p, out, size, s);
    fr_pool_done(p);
    return r;
}

HOOK CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool p, CUstream s) { return alloc_from_pool(out, size, p, s); }
HOOK CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool p, CUstream s) { return alloc_from_pool(out, size, p, fr_per_thread(s)); }

/* With nothing to do in the stream, before the free and after it, nothing uses the piece any more and the driver has
 * joined it with its neighbours. Worth asking only where there are some, or where the quota is short. */
static bool idle(const struct fr_piece *piece, CUstream s)
{
    return piece->asks && !atomic_load_explicit(&fr_captures, memory_order_relaxed) && !REAL(cuStreamQuery)(s);
}

static CUresult free_piece(struct fr_piece *piece, CUdeviceptr p, CUstream s)
{
    bool unused = idle(piece, s);
    CUresult r = REAL(cuMemFreeAsync)(p, s);
    fr_piece_free_end(piece, r, unused && idle(piece, s) ? 0 : fr_order(s));
    return r;
}

static CUresult free_async(CUdeviceptr p, CUstream s)
{
    struct fr_piece piece;
    struct fr_linear linear;
    if (!p || fr_capturing(s)) return REAL(cuMemFreeAsync)(p, s);
    if (fr_piece_free_begin(&piece, p)) return free_piece(&piece, p, s);
    if (!fr_linear_free_begin(&linear, p)) return REAL(cuMemFreeAsync)(p, s);
    CUresult r = REAL(cuMemFreeAsync)(p, s);
    fr_linear_free_end(&linear, r);
    return r;
}

HOOK CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) { return free_async(p, s); }
HOOK CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream s) { return free_async(p, fr_per_thread(s)); }
