/* The hooks of stream-ordered memory.
 *
 * An allocation reserves the most by which its pool may grow (pool.c). Near the quota that does not fit, although the request
 * itself might. Then the memory comes from one of the library's own pools, which cannot grow beyond what is left
 * (margin_pool.c), or from linear memory, which takes granules of 2 MiB and may be freed by cuMemFreeAsync as well. If that
 * does not fit either, the library returns to the driver what the pools and graphs of this process hold unused. The call then
 * waits for running calls of other threads and processes and for the work in its own stream, which may free something. Only
 * then is the request refused as out of memory.
 *
 * A capturing stream allocates nothing: the request becomes a node of the graph (graph.c). The library never queries whether
 * the work of such a stream is done, and makes calls that a capture forbids to other streams in relaxed mode. */
#include "base/compiler.h"
#include "base/kernel.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "ledger/process.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/graph.h"
#include "memory/kept_blocks.h"
#include "memory/late_free.h"
#include "memory/linear.h"
#include "memory/linear_records.h"
#include "memory/margin_pool.h"
#include "memory/place.h"
#include "memory/pool.h"
#include "memory/pool_pieces.h"
#include "memory/pool_shrink.h"
#include "memory/pool_waits.h"
#include "memory/streams.h"

#include "cuda_abi.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WORK_NS 1000000000ull /* for work in the stream that may free memory */
#define LEAST_NAP_US 20
#define MOST_NAP_US 10000 /* hundreds of threads that check every millisecond would keep the processors from those that free */

/* ---- near the quota ---- */

/* Gives unused memory back to the driver. True: work in the stream is not done, and may free more. */
static bool make_room(const struct fr_pool_request *q)
{
    bool idle = fr_synchronised(q->stream);
    fr_late_frees_look();
    fr_pools_trim(q->pool->card);
    fr_graphs_trim(q->pool->card);
    return !idle && REAL(cuStreamQuery)(q->stream) == CUDA_ERROR_NOT_READY;
}

/* Memory of another pool, or linear memory, serves equally well, unless other processes or devices know the pool that was
 * named. */
static CUresult from_elsewhere(struct fr_pool_request *q)
{
    CUdevice device;
    if (q->pool->exported || q->pool->peers || fr_card_here(&device) != q->pool->card) return CUDA_ERROR_OUT_OF_MEMORY;
    return fr_margin_allocate(q) ? CUDA_SUCCESS : fr_linear_alloc(q->out, q->size, &q->patience);
}

/* If only kept blocks lie in the pool, it can give all its memory back. Otherwise this process would hold that memory and
 * memory from elsewhere too, and another process would be refused. */
static bool only_kept_blocks_lie_in(struct fr_pool *p)
{
    uint64_t reserved = __atomic_load_n(&p->charged, __ATOMIC_RELAXED);
    return reserved && fr_pool_unused(p) + fr_kept_block_bytes(p->handle) >= reserved;
}

static CUresult persist(struct fr_pool_request *q)
{
    uint64_t end = fr_clock_ns(CLOCK_MONOTONIC) + WORK_NS;
    if (fr_kept_block_take(q)) return CUDA_SUCCESS;
    if (only_kept_blocks_lie_in(q->pool)) {
        fr_kept_blocks_free();
        make_room(q);
        if (fr_pool_attempt(q, false)) return q->result;
    }
    CUresult r = from_elsewhere(q);
    if (r != CUDA_ERROR_OUT_OF_MEMORY) return r;
    fr_kept_blocks_free();
    for (unsigned nap = LEAST_NAP_US;;) {
        bool more = make_room(q);
        if (fr_pool_attempt(q, !more)) return q->result;
        r = from_elsewhere(q);
        if (r != CUDA_ERROR_OUT_OF_MEMORY || !more || fr_clock_ns(CLOCK_MONOTONIC) > end) return r;
        fr_sleep_us(nap);
        if (nap < MOST_NAP_US) nap += nap / 4; /* each nap is a fifth of the time waited before it */
    }
}

static CUresult at_the_margin(struct fr_pool_request *q)
{
    struct fr_quota quota;
    int mode = 2, before = errno; /* mode: relaxed */
    fr_room_was_short();
    fr_quota(q->pool->card, &quota);
    if (q->size > quota.may_hold) return CUDA_ERROR_OUT_OF_MEMORY;
    bool relaxed = atomic_load(&fr_capture_count) && !REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    CUresult r = persist(q);
    if (relaxed) REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    errno = before;
    return r;
}

/* ---- the calls ---- */

/* An ordinary pool is used if there is room for two steps, or for one step that it will hardly need. What the last step left
 * unused could not be used again: the next allocation would need room for a step. So the last of the quota is given out by
 * pools that cannot grow further (margin_pool.c). */
static bool ask_the_pool(const struct fr_pool_request *q)
{
    struct fr_quota quota;
    uint64_t worst = fr_pool_worst(q->pool, q->size), used;
    if (likely(worst < UINT64_MAX - FR_POOL_STEP && fr_has_room(q->pool->card, worst + FR_POOL_STEP))) return true;
    if (fr_process_state() == FR_OFF || q->pool->exported || q->pool->peers || !worst) return true;
    fr_quota(q->pool->card, &quota);
    used = fr_used(q->pool->card);
    if (worst > quota.may_hold || used > quota.may_hold - worst) return false;
    return quota.may_hold - worst - used >= FR_POOL_STEP || fr_pool_unused(q->pool) >= q->size;
}

static CUresult alloc_from(struct fr_pool *p, CUdeviceptr *out, size_t size, CUstream s)
{
    struct fr_pool_request q = {.pool = p, .size = size, .stream = s, .out = out};
    enum fr_process_state state = fr_process_state();
    if (state == FR_CLOSED) return CUDA_ERROR_OUT_OF_MEMORY;
    if (p->card == FR_NO_CARD && p->device >= 0 && state != FR_OFF) return CUDA_ERROR_OUT_OF_MEMORY;
    if (p->card == FR_NO_CARD) return REAL(cuMemAllocFromPoolAsync)(out, size, p->handle, s);
    if (!ask_the_pool(&q) || !fr_pool_attempt(&q, false)) return at_the_margin(&q);
    uint32_t tight = atomic_load_explicit(&fr_room_is_tight, memory_order_relaxed);
    if (unlikely(tight)) atomic_store_explicit(&fr_room_is_tight, tight - 1, memory_order_relaxed);
    return q.result;
}

/* The driver's answer for a stream whose card is not known: the stream is invalid, its context is just being ended, or there is
 * no context. The driver is not called, because another thread may make a stream with this handle meanwhile. */
static CUresult unknown_place(CUstream s)
{
    CUdevice device;
    CUresult r = (uintptr_t)s > 2 ? CUDA_ERROR_INVALID_HANDLE : REAL(cuCtxGetDevice)(&device);
    return r ? r : CUDA_ERROR_INVALID_CONTEXT;
}

/* The current pool of the stream's device serves the stream. */
static CUresult pool_of(CUstream s, struct fr_pool **out)
{
    CUdevice device;
    CUcontext c = NULL;
    CUmemoryPool handle = NULL;
    int card = (uintptr_t)s > 2 && !REAL(cuStreamGetCtx)(s, &c) ? fr_card_of_context(c, &device) : fr_card_here(&device);
    if (device < 0) return unknown_place(s);
    CUresult r = REAL(cuDeviceGetMemPool)(&handle, device);
    if (r || (*out = fr_pool_use(handle))) return r;
    fr_pool_handles_enter(); /* until here the device may have got another pool */
    r = REAL(cuDeviceGetMemPool)(&handle, device);
    if (!r && !(*out = fr_pool_adopt(handle, device, card))) r = CUDA_ERROR_OUT_OF_MEMORY;
    fr_pool_handles_leave();
    return r;
}

static CUresult alloc_async(CUdeviceptr *out, size_t size, CUstream s)
{
    struct fr_pool *p = NULL;
    if (!out || !size) return REAL(cuMemAllocAsync)(out, size, s);
    if (fr_capture_hold(s)) return fr_captured(REAL(cuMemAllocAsync)(out, size, s));
    CUresult r = pool_of(s, &p);
    if (r && fr_process_state() == FR_OFF) return REAL(cuMemAllocAsync)(out, size, s);
    if (r) return fr_process_state() == FR_CLOSED ? CUDA_ERROR_OUT_OF_MEMORY : r;
    r = alloc_from(p, out, size, s);
    fr_pool_done(p);
    return r;
}

HOOK CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream s) { return alloc_async(out, size, s); }
HOOK CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream s) { return alloc_async(out, size, fr_per_thread(s)); }

/* A pool handle that the library has not seen is invalid, or made without the library: the driver says which. No pool with this
 * handle can be made meanwhile. */
static CUresult adopt_unknown(CUmemoryPool pool, struct fr_pool **out)
{
    CUdevice device = -1;
    uint64_t reserved;
    fr_pool_handles_enter();
    CUresult r = CUDA_SUCCESS;
    if (!(*out = fr_pool_use(pool))) {
        int card = fr_card_here(&device);
        r = REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
        if (!r && !(*out = fr_pool_adopt(pool, device, card))) r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    fr_pool_handles_leave();
    return r;
}

static CUresult alloc_unknown(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream s)
{
    struct fr_pool *p;
    if (fr_process_state() == FR_CLOSED) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = adopt_unknown(pool, &p);
    if (r) return r;
    r = alloc_from(p, out, size, s);
    fr_pool_done(p);
    return r;
}

static CUresult alloc_from_pool(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream s)
{
    if (!out || !size || !pool) return REAL(cuMemAllocFromPoolAsync)(out, size, pool, s);
    if (fr_capture_hold(s)) return fr_captured(REAL(cuMemAllocFromPoolAsync)(out, size, pool, s));
    struct fr_pool *p = fr_pool_use(pool);
    if (!p) return alloc_unknown(out, size, pool, s);
    CUresult r = alloc_from(p, out, size, s);
    fr_pool_done(p);
    return r;
}

HOOK CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool p, CUstream s) { return alloc_from_pool(out, size, p, s); }
HOOK CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool p, CUstream s) { return alloc_from_pool(out, size, p, fr_per_thread(s)); }

static CUcontext context_of(CUstream s)
{
    CUcontext c = NULL;
    if ((uintptr_t)s > 2 && !REAL(cuStreamGetCtx)(s, &c)) return c;
    return REAL(cuCtxGetCurrent)(&c) ? NULL : c;
}

/* Some pool may be smaller afterwards. It need not be known which pool the pointer is from. */
static CUresult free_to_pool(CUdeviceptr p, CUstream s)
{
    struct fr_shrinking shrinking;
    if (!atomic_load_explicit(&fr_pools_any, memory_order_relaxed)) return REAL(cuMemFreeAsync)(p, s);
    fr_margin_piece_gone(p);
    if (unlikely(atomic_load_explicit(&fr_pieces_any, memory_order_relaxed))) fr_piece_freed(p);
    enum fr_kept kept = fr_kept_block_put(p, s);
    if (unlikely(kept)) return kept == FR_KEPT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    fr_pools_shrinking(&shrinking, FR_BRIEF);
    fr_pools_free_beside_waits();
    CUresult r = REAL(cuMemFreeAsync)(p, s);
    fr_pools_shrunk(&shrinking);
    return r;
}

/* If another thread has begun a capture of the stream meanwhile, the free may have become a node of its graph, and the memory
 * still exists. */
static bool is_there(CUdeviceptr p)
{
    CUdeviceptr base;
    size_t size;
    return !REAL(cuMemGetAddressRange_v2)(&base, &size, p);
}

static CUresult free_async(CUdeviceptr p, CUstream s)
{
    struct fr_linear linear;
    uint32_t changes = fr_capture_changes(s);
    if (!p) return REAL(cuMemFreeAsync)(p, s);
    if (fr_capture_hold(s)) return fr_captured(REAL(cuMemFreeAsync)(p, s));
    if (!fr_linear_free_begin(&linear, p)) return free_to_pool(p, s);
    CUresult r = REAL(cuMemFreeAsync)(p, s);
    if (unlikely(!r && fr_capture_changes(s) != changes && is_there(p))) fr_linear_free_end(&linear, CUDA_ERROR_UNKNOWN);
    else if (r || fr_synchronised(s)) fr_linear_free_end(&linear, r);
    else fr_late_free(&linear, s, fr_stream_id(s), context_of(s));
    return r;
}

HOOK CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) { return free_async(p, s); }
HOOK CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream s) { return free_async(p, fr_per_thread(s)); }
