/* Near the quota, what is freed to an ordinary pool is kept here instead, for the next allocation that fits into it.
 *
 * The driver would use the memory again, but an allocation from an ordinary pool needs room for the pool's growth, which a
 * full quota does not have: a program that frees and allocates in turn would be refused. A block that was never given to
 * the driver needs no room. It is used again in the stream in which it was freed, or in any other when that stream's work is done,
 * and goes to the driver before anything that lets a pool shrink: a call that waits, a trim, the end of its stream, the start
 * of a capture. */
#include "memory/kept_blocks.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/pool.h"
#include "memory/streams.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLOCKS 256
#define TIGHT 256 /* allocations for which it is remembered that there was no room */

struct block {
    CUdeviceptr at;
    size_t size;
    CUmemoryPool pool;
    CUstream stream;
    uint64_t number; /* of the stream */
    CUcontext context; /* of a default stream */
};

_Atomic uint32_t fr_room_is_tight;
_Atomic uint32_t fr_kept_block_count;

static struct fr_lock lock;
static FR_LARGE struct block blocks[BLOCKS];
static uint32_t era;

static uint32_t enter(void)
{
    fr_lock(&lock);
    uint32_t now = atomic_load_explicit(&fr_era, memory_order_relaxed);
    if (unlikely(era != now)) atomic_store(&fr_kept_block_count, 0);
    era = now;
    return atomic_load_explicit(&fr_kept_block_count, memory_order_relaxed);
}

static struct block take(uint32_t i, uint32_t count)
{
    struct block b = blocks[i];
    blocks[i] = blocks[count - 1];
    atomic_store(&fr_kept_block_count, count - 1);
    return b;
}

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
    *b = (struct block){.at = p, .stream = s, .number = fr_stream_id(s)};
    if (b->number == FR_NO_STREAM || REAL(cuPointerGetAttribute)(&b->pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p) || !b->pool || !ordinary(b->pool)) return false;
    if ((uintptr_t)s <= 2 && REAL(cuCtxGetCurrent)(&b->context)) return false;
    return !REAL(cuMemGetAddressRange_v2)(&base, &b->size, p) && base == p;
}

enum fr_kept fr_kept_block_put(CUdeviceptr p, CUstream s)
{
    struct block b;
    bool again = false;
    if (likely(!atomic_load_explicit(&fr_room_is_tight, memory_order_relaxed)) || atomic_load(&fr_capture_count) || !describe(&b, p, s)) return FR_NOT_KEPT;
    uint32_t count = enter();
    for (uint32_t i = 0; i < count; i++) again |= blocks[i].at == p;
    bool keep = !again && count < BLOCKS;
    if (keep) {
        blocks[count] = b;
        atomic_store(&fr_kept_block_count, count + 1);
    }
    fr_unlock(&lock);
    return again ? FR_KEPT_BEFORE : keep ? FR_KEPT : FR_NOT_KEPT;
}

/* ---- using again ---- */

/* The smallest that fits; those of the same stream first. */
static int best(const struct fr_pool_request *q, uint64_t number, uint32_t count, bool same_stream)
{
    int found = -1;
    for (uint32_t i = 0; i < count; i++) {
        const struct block *b = &blocks[i];
        bool fits = b->pool == q->pool->handle && b->size >= q->size && (b->number == number) == same_stream;
        if (fits && (found < 0 || b->size < blocks[found].size)) found = (int)i;
    }
    return found;
}

/* Its stream, in the context in which it was freed. False: that context is gone, and what was in it. */
static bool enter_context(const struct block *b) { return !b->context || !REAL(cuCtxPushCurrent_v2)(b->context); }

static void leave_context(const struct block *b)
{
    CUcontext popped;
    if (b->context) REAL(cuCtxPopCurrent_v2)(&popped);
}

static void give(const struct block *b)
{
    if (!enter_context(b)) return;
    REAL(cuMemFreeAsync)(b->at, b->stream);
    leave_context(b);
}

static bool idle(const struct block *b)
{
    if (!enter_context(b)) return false;
    bool yes = !REAL(cuStreamQuery)(b->stream);
    leave_context(b);
    return yes;
}

bool fr_kept_block_take(const struct fr_pool_request *q)
{
    if (likely(!atomic_load_explicit(&fr_kept_block_count, memory_order_relaxed))) return false;
    uint64_t number = fr_stream_id(q->stream);
    uint32_t count = enter();
    int i = best(q, number, count, true);
    bool other = i < 0 && (i = best(q, number, count, false)) >= 0;
    struct block b = i >= 0 ? take((uint32_t)i, count) : (struct block){0};
    fr_unlock(&lock);
    if (other && !idle(&b)) {
        give(&b); /* in use still: the driver knows how to wait */
        return false;
    }
    if (b.at) *q->out = b.at;
    return b.at != 0;
}

/* ---- giving them to the driver ---- */

void fr_kept_blocks_free(void)
{
    while (atomic_load_explicit(&fr_kept_block_count, memory_order_relaxed)) {
        uint32_t count = enter();
        struct block b = count ? take(count - 1, count) : (struct block){0};
        fr_unlock(&lock);
        if (b.at) give(&b);
    }
}

/* ---- how near ---- */

void fr_room_was_short(void) { atomic_store_explicit(&fr_room_is_tight, TIGHT, memory_order_relaxed); }
