/* The last of the quota: the library's own pools, which the driver lets grow to what is left and no further
 * (CUmemPoolProps.maxSize).
 *
 * An allocation needs room for the most by which its pool may grow, so when the quota is full, the unused parts of an ordinary
 * pool cannot be used any more. A pool that has reached its largest size does not grow and needs no room: all that is unused in
 * it can be used, to the last byte. These pools are made when there is no room for two steps of an ordinary pool. They are
 * charged like every pool, by what the driver has reserved for them, and give back unused memory at a synchronisation. */
#include "memory/margin_pool.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "ledger/objects.h"
#include "ledger/records.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/devices.h"
#include "memory/granules.h"
#include "memory/late_free.h"
#include "memory/pool.h"
#include "memory/streams.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEVICES 64
#define POOLS 16 /* for each device */
#define LARGE (4ull << 20)

_Atomic uint32_t fr_margin_pieces;

static struct fr_lock lock;
static FR_LARGE CUmemoryPool made[DEVICES][POOLS];
static uint32_t era;

static void enter(void)
{
    fr_lock(&lock);
    uint32_t now = atomic_load_explicit(&fr_era, memory_order_relaxed);
    if (likely(era == now)) return;
    era = now;
    for (int d = 0; d < DEVICES; d++)
        for (int i = 0; i < POOLS; i++) made[d][i] = NULL;
}

static CUmemoryPool *place(CUdevice d, int i) { return &made[d][i]; }

static struct fr_pool *hold(CUdevice d, int i)
{
    enter();
    CUmemoryPool handle = *place(d, i);
    fr_unlock(&lock);
    return handle ? fr_pool_use(handle) : NULL;
}

static bool allocate_from(struct fr_pool *p, const struct fr_pool_request *q)
{
    struct fr_pool_request own = *q;
    own.pool = p;
    return fr_pool_attempt(&own, false) && !own.result;
}

/* From pools that have reached their largest size, or from those that may still grow. */
static bool allocate_from_known(const struct fr_pool_request *q, bool may_grow)
{
    bool done = false;
    for (int i = 0; i < POOLS && !done; i++) {
        struct fr_pool *p = hold(q->pool->device, i);
        if (!p) continue;
        if ((fr_pool_worst(p, q->size) != 0) == may_grow) done = allocate_from(p, q);
        fr_pool_done(p);
    }
    return done;
}

/* Frees the place of a pool that holds nothing: its size suited another moment. */
static void drop_if_empty(CUdevice d, int i, struct fr_pool *p)
{
    bool ours = false;
    if (fr_pool_is_empty(p)) {
        enter();
        ours = *place(d, i) == p->handle; /* no other thread was faster */
        if (ours) *place(d, i) = NULL;
        fr_unlock(&lock);
    }
    if (ours) p->doomed = true; /* destroyed by its last user */
    fr_pool_done(p);
}

/* -1: no free place. */
static int free_place(CUdevice d)
{
    int found = -1;
    for (int i = 0; i < POOLS; i++) {
        struct fr_pool *p = hold(d, i);
        if (p) drop_if_empty(d, i, p);
        if (!*place(d, i)) found = i;
    }
    return found;
}

/* A large allocation gets a pool of its size; small ones share what is left, at most a step of an ordinary pool. */
static uint64_t size_for(const struct fr_pool_request *q)
{
    struct fr_quota quota;
    fr_quota(q->pool->card, &quota);
    uint64_t used = fr_used(q->pool->card), left = used < quota.may_hold ? (quota.may_hold - used) / FR_GRANULE * FR_GRANULE : 0;
    uint64_t wanted = q->size >= LARGE ? fr_round_to_granules(q->size) : FR_POOL_STEP;
    return left < q->size ? 0 : left < wanted ? left : wanted;
}

static struct fr_pool *make(const struct fr_pool_request *q, uint64_t size)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_DEVICE, q->pool->device}, .maxSize = size};
    CUmemoryPool handle;
    int i = free_place(q->pool->device);
    if (i < 0) return NULL;
    fr_pool_handles_enter();
    bool there = !REAL(cuMemPoolCreate)(&handle, &props);
    struct fr_pool *p = there ? fr_pool_adopt_new(handle, q->pool->device, q->pool->card) : NULL;
    if (p) p->most = size, p->made = p->margin = true;
    else if (there) REAL(cuMemPoolDestroy)(handle);
    fr_pool_handles_leave();
    if (!p) return NULL;
    enter();
    p->doomed = *place(q->pool->device, i) != NULL; /* another thread was faster */
    if (!p->doomed) *place(q->pool->device, i) = handle;
    fr_unlock(&lock);
    return p;
}

static bool allocate(const struct fr_pool_request *q, uint64_t size)
{
    if (q->pool->device < 0 || q->pool->device >= DEVICES || !fr_pool_can_be_capped()) return false;
    if (allocate_from_known(q, false)) return true;
    struct fr_pool *p = size ? make(q, size) : NULL;
    bool done = p && allocate_from(p, q);
    if (p) fr_pool_done(p);
    return done || allocate_from_known(q, true);
}

bool fr_margin_allocate(const struct fr_pool_request *q) { return allocate(q, size_for(q)); }

/* After a free that has waited: pools that hold nothing give their memory back at once, as linear memory does. A pool that lost
 * its place while another thread allocated from it is only in the list of all pools. */
void fr_margin_tidy(int card)
{
    for (struct fr_pool *p = fr_pool_next(NULL, card); p; p = fr_pool_next(p, card)) {
        struct fr_op back;
        if (!p->margin || !p->charged || fr_pool_unused(p) < p->charged) continue;
        fr_free_begin(&back, card);
        REAL(cuMemPoolTrimTo)(p->handle, 0);
        fr_pool_settle(p);
        fr_free_end(&back, 0);
    }
}

/* NULL: not in a known pool; otherwise end with fr_pool_done. */
static struct fr_pool *pool_at(CUdeviceptr p)
{
    CUmemoryPool handle = NULL;
    if (REAL(cuPointerGetAttribute)(&handle, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p) || !handle) return NULL;
    return fr_pool_use(handle);
}

/* True also for a pool that lost its place while another thread allocated from it. */
bool fr_margin_holds(CUdeviceptr p)
{
    struct fr_pool *pool = pool_at(p);
    bool ours = pool && pool->margin;
    if (pool) fr_pool_done(pool);
    return ours;
}

/* ---- small linear memory: as if the driver had packed it ---- */

static CUstream stream_of(CUcontext context)
{
    struct fr_record r;
    CUstream s = NULL;
    if (fr_record_find(FR_MARGIN_STREAM, (uintptr_t)context, &r)) return (CUstream)(uintptr_t)r.a;
    if (REAL(cuStreamCreate)(&s, CU_STREAM_NON_BLOCKING)) return NULL;
    r = (struct fr_record){.class = FR_MARGIN_STREAM, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = (uintptr_t)context, .context = context, .a = (uintptr_t)s};
    if (fr_record_put(r)) return s;
    REAL(cuStreamDestroy_v2)(s);
    return NULL;
}

/* Its stream has no other work, so the memory exists at once. A capture forbids waiting. */
bool fr_margin_small(CUdeviceptr *out, size_t size, const struct fr_place *at)
{
    struct fr_pool where = {.device = at->device, .card = at->card};
    struct fr_pool_request q = {.pool = &where, .size = size, .out = out};
    if (!at->context || atomic_load(&fr_capture_count) || !fr_pool_can_be_capped() || !(q.stream = stream_of(at->context))) return false;
    if (!allocate(&q, FR_GRANULE)) return false;
    fr_synchronised(q.stream);
    struct fr_record r = {.class = FR_MARGIN_PIECE, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = *out, .context = at->context};
    if (fr_record_put(r)) atomic_fetch_add(&fr_margin_pieces, 1);
    return true;
}

bool fr_margin_piece_gone(CUdeviceptr p)
{
    struct fr_record r;
    bool one = atomic_load_explicit(&fr_margin_pieces, memory_order_relaxed) && fr_record_take(FR_MARGIN_PIECE, p, &r);
    if (one) atomic_fetch_sub(&fr_margin_pieces, 1);
    return one;
}

void fr_margin_piece_free(CUdeviceptr p)
{
    struct fr_pool *pool = pool_at(p);
    struct fr_op back;
    fr_free_begin(&back, pool ? pool->card : FR_NO_CARD);
    REAL(cuMemFree_v2)(p);
    atomic_fetch_sub(&fr_margin_pieces, 1);
    if (pool) fr_pool_settle(pool), fr_margin_tidy(pool->card); /* some drivers keep an empty pool's memory until a trim */
    fr_free_end(&back, 0);
    if (pool) fr_pool_done(pool);
}
