/* Near the quota, memory freed to an ordinary pool is kept here instead, for the next allocation that fits into it.
 *
 * The driver would use the memory again, but an allocation from an ordinary pool needs room for the pool's growth, which a full
 * quota does not have: a program that frees and allocates by turns would be refused. A block that was never given to the driver
 * needs no room. It is used again in the stream in which it was freed, or in any other once that stream's work is done. It goes
 * to the driver before anything that lets a pool shrink: a call that waits, a trim, the end of its stream, the start of a
 * capture. A capture must not begin while another thread is giving a block back in the stream: the free would become a node of
 * that graph. So one thread at a time gives blocks back, and a call to fr_kept_blocks_free returns when the driver has all of
 * them. */
#include "memory/kept_blocks.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/pool.h"
#include "memory/pool_waits.h"
#include "memory/streams.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLOCKS 256
#define ROUND 512 /* bytes */
#define TIGHT 256 /* allocations for which a lack of room is remembered */

struct block {
    CUdeviceptr at;
    size_t size;
    CUmemoryPool pool;
    CUstream stream;
    uint64_t number; /* the stream's */
    CUcontext context; /* the stream's: when the block is given back, another context may be current, or none */
};

_Atomic uint32_t fr_room_is_tight;
_Atomic uint32_t fr_kept_block_count; /* those below, and those being given to the driver */

static struct fr_mutex giving;
static struct fr_lock lock;
static uint32_t count; /* under `lock`, like the blocks and the era */
static FR_LARGE struct block blocks[BLOCKS];
static uint32_t era;

static void enter(void)
{
    fr_lock(&lock);
    uint32_t now = atomic_load_explicit(&fr_era, memory_order_relaxed);
    if (likely(era == now)) return;
    era = now;
    count = 0;
    atomic_store(&fr_kept_block_count, 0);
}

static struct block take(uint32_t i)
{
    struct block b = blocks[i];
    blocks[i] = blocks[--count];
    return b;
}

static void is_gone(void) { atomic_fetch_sub(&fr_kept_block_count, 1); }

/* ---- keeping ---- */

static bool ordinary(CUmemoryPool handle)
{
    struct fr_pool *p = fr_pool_use(handle);
    bool yes = p && p->card >= 0 && !p->most && !p->exported && !p->peers && !p->doomed;
    if (p) fr_pool_done(p);
    return yes;
}

static bool describe(struct block *b, CUdeviceptr p, CUstream s)
{
    CUdeviceptr base = 0;
    if (s == CU_STREAM_PER_THREAD) return false; /* in another thread it would mean that thread's stream */
    *b = (struct block){.at = p, .stream = s, .number = fr_stream_id(s)};
    if (b->number == FR_NO_STREAM || REAL(cuPointerGetAttribute)(&b->pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p) || !b->pool || !ordinary(b->pool)) return false;
    if ((uintptr_t)s > 2 ? REAL(cuStreamGetCtx)(s, &b->context) : REAL(cuCtxGetCurrent)(&b->context)) return false;
    return !REAL(cuMemGetAddressRange_v2)(&base, &b->size, p) && base == p;
}

enum fr_kept fr_kept_block_put(CUdeviceptr p, CUstream s)
{
    struct block b;
    bool again = false;
    if (likely(!atomic_load_explicit(&fr_room_is_tight, memory_order_relaxed)) || atomic_load(&fr_capture_count) || !describe(&b, p, s)) return FR_NOT_KEPT;
    enter();
    for (uint32_t i = 0; i < count; i++) again |= blocks[i].at == p;
    bool keep = !again && count < BLOCKS;
    if (keep) {
        blocks[count++] = b;
        atomic_fetch_add(&fr_kept_block_count, 1);
    }
    fr_unlock(&lock);
    return again ? FR_KEPT_BEFORE : keep ? FR_KEPT : FR_NOT_KEPT;
}

/* ---- using blocks again ---- */

/* The smallest block that fits; blocks of the same stream first. */
static int best(const struct fr_pool_request *q, uint64_t number, bool same_stream)
{
    int found = -1;
    for (uint32_t i = 0; i < count; i++) {
        const struct block *b = &blocks[i];
        bool fits = b->pool == q->pool->handle && b->size >= q->size && (b->number == number) == same_stream;
        if (fits && (found < 0 || b->size < blocks[found].size)) found = (int)i;
    }
    return found;
}

/* Makes the context current in which the block was freed, for its stream. False: that context is gone. */
static bool enter_context(const struct block *b) { return !b->context || !REAL(cuCtxPushCurrent_v2)(b->context); }

static void leave_context(const struct block *b)
{
    CUcontext popped;
    if (b->context) REAL(cuCtxPopCurrent_v2)(&popped);
}

static bool give_in_stream(const struct block *b)
{
    if (!enter_context(b)) return false;
    CUresult r = REAL(cuMemFreeAsync)(b->at, b->stream);
    leave_context(b);
    return !r;
}

/* The pool may be smaller afterwards. It outlives the stream and its context, so if these are gone the memory is freed without
 * them. */
static void give(const struct block *b)
{
    struct fr_op back;
    struct fr_pool *p = fr_pool_use(b->pool);
    fr_free_begin(&back, p ? p->card : FR_NO_CARD);
    fr_pools_free_beside_waits();
    if (!give_in_stream(b)) REAL(cuMemFree_v2)(b->at);
    if (p) fr_pool_settle(p);
    fr_free_end(&back, 0);
    if (p) fr_pool_done(p);
}

static bool idle(const struct block *b)
{
    if (!enter_context(b)) return false;
    bool yes = !REAL(cuStreamQuery)(b->stream);
    leave_context(b);
    return yes;
}

static bool take_best(const struct fr_pool_request *q, struct block *b, bool *same_stream)
{
    uint64_t number = fr_stream_id(q->stream);
    enter();
    int i = best(q, number, true);
    *same_stream = i >= 0;
    if (i < 0) i = best(q, number, false);
    if (i >= 0) *b = take((uint32_t)i);
    fr_unlock(&lock);
    return i >= 0;
}

bool fr_kept_block_take(const struct fr_pool_request *q)
{
    struct block b;
    bool same_stream, reused = false;
    if (likely(!atomic_load_explicit(&fr_kept_block_count, memory_order_relaxed))) return false;
    fr_mutex_lock(&giving);
    if (take_best(q, &b, &same_stream)) {
        reused = same_stream || idle(&b);
        if (reused) *q->out = b.at;
        else give(&b); /* still in use: the driver waits correctly */
        is_gone();
    }
    fr_mutex_unlock(&giving);
    return reused;
}

/* ---- giving blocks to the driver ---- */

uint64_t fr_kept_block_bytes(CUmemoryPool pool)
{
    uint64_t bytes = 0;
    enter();
    for (uint32_t i = 0; i < count; i++)
        if (blocks[i].pool == pool) bytes += (blocks[i].size + ROUND - 1) / ROUND * ROUND;
    fr_unlock(&lock);
    return bytes;
}

static bool take_last(struct block *b)
{
    enter();
    bool any = count != 0;
    if (any) *b = take(count - 1);
    fr_unlock(&lock);
    return any;
}

void fr_kept_blocks_free(void)
{
    struct block b;
    if (likely(!atomic_load(&fr_kept_block_count))) return;
    fr_mutex_lock(&giving);
    while (take_last(&b)) {
        give(&b);
        is_gone();
    }
    fr_mutex_unlock(&giving);
}

/* ---- how near the quota is ---- */

void fr_room_was_short(void) { atomic_store_explicit(&fr_room_is_tight, TIGHT, memory_order_relaxed); }
