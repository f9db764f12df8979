/* The charge of pools: what the driver has reserved for them, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT.
 *
 * A pool grows only inside an allocation from it, and the library sees all of those. They take turns at the pool:
 *
 *      reserve the most by which the pool can grow         no lock is held; other calls may be waited for
 *      take the pool's turn
 *          the driver allocates
 *          read the pool's size
 *          charge what it has grown by, out of the reservation
 *      pass the turn on, and give back the unused reservation
 *
 * While a thread has the turn, no other thread makes the pool grow, so the size that it reads can only become smaller before
 * the charge is set to that size. So at every moment
 *
 *      charged + the reservation of the call that has the turn >= reserved by the driver
 *
 * If a pool grows by more than the most that is known, the excess is charged at once, above the quota if necessary.
 *
 * A pool shrinks in calls that wait for work, at a trim, and in other calls. After those the charge follows if the turn is
 * free; otherwise the call that has the turn compares once more (turn.h). A pool that the application has destroyed while its
 * memory is in use lives on until it is empty: the driver does not report the size of a destroyed pool. A pool is charged to
 * the process that made it. Processes that import pointers of it hold its object (objects.c), and what the pool gives back
 * although they hold it stays charged (pool_pieces.c). */
#include "memory/pool.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "ledger/descriptor.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/pool_pieces.h"
#include "memory/turn.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define CAPPED_SINCE 12020 /* CUmemPoolProps.maxSize */
#define BLOCK 32 /* places taken from the system at a time */

struct fr_lock fr_pools_lock;
_Atomic uint32_t fr_pools_any;

static struct fr_pool *pools; /* places are never given back, so a pointer to one stays valid */
static struct fr_pool *fresh; /* places that were never used */
static uint32_t fresh_count, pools_era;

void fr_pools_enter(void)
{
    fr_lock(&fr_pools_lock);
    uint32_t era = atomic_load_explicit(&fr_era, memory_order_relaxed);
    if (likely(pools_era == era)) return;
    pools_era = era;
    pools = NULL;
    fresh_count = 0;
    atomic_store(&fr_pools_any, 0);
}

/* The driver reuses a handle's number as soon as its pool is destroyed. So calls that make or destroy pools, and calls with a
 * handle that is not in the list, run one at a time, each together with its change of the list. */
static struct fr_mutex handles;
void fr_pool_handles_enter(void) { fr_mutex_lock(&handles); }
void fr_pool_handles_leave(void) { fr_mutex_unlock(&handles); }

/* ---- places ---- */

/* Only places that have been used are in the list, which every free walks through. */
static struct fr_pool *free_place(void)
{
    for (struct fr_pool *p = pools; p; p = p->next)
        if (!p->used && !p->users) return p;
    if (!fresh_count) {
        void *more = mmap(NULL, BLOCK * sizeof *fresh, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (more == MAP_FAILED) return NULL;
        fresh = more;
        fresh_count = BLOCK;
    }
    struct fr_pool *p = &fresh[--fresh_count];
    p->next = pools;
    return pools = p;
}

static struct fr_pool *find(CUmemoryPool handle)
{
    for (struct fr_pool *p = pools; p; p = p->next)
        if (p->used && p->handle == handle) return p;
    return NULL;
}

struct fr_pool *fr_pool_use(CUmemoryPool handle)
{
    fr_pools_enter();
    struct fr_pool *p = find(handle);
    if (p) p->users++;
    fr_unlock(&fr_pools_lock);
    return p;
}

struct fr_pool *fr_pool_adopt_new(CUmemoryPool handle, CUdevice device, int card)
{
    fr_pools_enter();
    struct fr_pool *old = find(handle);
    if (old) old->used = false;
    fr_unlock(&fr_pools_lock);
    return fr_pool_adopt(handle, device, card);
}

/* NULL: no memory for the place. */
struct fr_pool *fr_pool_adopt(CUmemoryPool handle, CUdevice device, int card)
{
    fr_pools_enter();
    struct fr_pool *p = find(handle);
    if (!p && (p = free_place())) {
        struct fr_pool *next = p->next;
        *p = (struct fr_pool){.handle = handle, .device = device, .card = card, .object = FR_NO_OBJECT, .used = true, .next = next};
    }
    if (p) {
        p->users++;
        atomic_store(&fr_pools_any, 1);
    }
    fr_unlock(&fr_pools_lock);
    return p;
}

static uint64_t attribute(const struct fr_pool *p, int which, uint64_t otherwise)
{
    uint64_t bytes = 0;
    return REAL(cuMemPoolGetAttribute)(p->handle, which, &bytes) ? otherwise : bytes;
}

static uint64_t reserved_by(const struct fr_pool *p)
{
    return attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, p->charged);
}

static bool holds_nothing(const struct fr_pool *p)
{
    return p->card == FR_NO_CARD || (!p->charged && !attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0) && !reserved_by(p));
}

/* The last user of a doomed pool destroys it if it is empty. */
static void bury(struct fr_pool *p)
{
    fr_pool_handles_enter();
    fr_mutex_lock(&p->turn.lock);
    bool empty = holds_nothing(p);
    fr_pools_enter();
    bool last = empty && p->users == 1 && p->used;
    CUmemoryPool handle = p->handle;
    int object = p->object;
    if (last) p->used = false;
    p->users--;
    fr_unlock(&fr_pools_lock);
    fr_mutex_unlock(&p->turn.lock);
    if (last && object != FR_NO_OBJECT) fr_object_leave(object); /* it has no bytes any more */
    if (last) fr_pieces_forget(handle);
    if (last) REAL(cuMemPoolDestroy)(handle);
    fr_pool_handles_leave();
}

void fr_pool_done(struct fr_pool *p)
{
    if (unlikely(p->doomed)) {
        bury(p);
        return;
    }
    fr_pools_enter();
    p->users--;
    fr_unlock(&fr_pools_lock);
}

void fr_pool_gone(struct fr_pool *p)
{
    fr_pools_enter();
    p->used = false;
    fr_unlock(&fr_pools_lock);
}

/* ---- the charge: during the pool's turn ---- */

static void grown(struct fr_pool *p, struct fr_op *op, uint64_t now)
{
    uint64_t more = now - p->charged, kept = more < op->reserved ? more : op->reserved;
    p->charged = now;
    if (more > p->chunk) p->chunk = more;
    if (unlikely(p->object != FR_NO_OBJECT)) fr_object_resize(p->object, now);
    fr_op_end(op, kept);
    if (unlikely(more > kept)) fr_charge(p->card, more - kept);
}

static void shrunk(struct fr_pool *p, struct fr_op *op, uint64_t now)
{
    struct fr_op back;
    uint64_t less = p->charged - now;
    fr_op_end(op, 0);
    if (!less) return;
    fr_free_begin(&back, p->card);
    p->charged = now;
    if (unlikely(p->object != FR_NO_OBJECT)) {
        fr_pieces_stay(p->handle, less);
        fr_object_resize(p->object, now);
    }
    fr_free_end(&back, less);
}

/* Sets the charge to what the pool has, and ends the reservation. */
static void compare_with(struct fr_pool *p, struct fr_op *op, uint64_t now)
{
    p->seen = true;
    if (now > p->charged) grown(p, op, now);
    else shrunk(p, op, now);
}

static void compare(struct fr_pool *p, struct fr_op *op) { compare_with(p, op, reserved_by(p)); }

static void look(void *pool)
{
    struct fr_op none = {.card = FR_NO_CARD};
    compare(pool, &none);
}

static void take_turn(struct fr_pool *p) { fr_turn_take(&p->turn, p->card); }
static void give_turn(struct fr_pool *p) { fr_turn_give(&p->turn, look, p); }
void fr_pool_settle(struct fr_pool *p) { fr_turn_settle(&p->turn, p->card, look, p); }
void fr_pool_settle_within(struct fr_pool *p) { fr_turn_settle(&p->turn, FR_NO_CARD, look, p); }

bool fr_pool_make_object(struct fr_pool *p, struct fr_key key)
{
    take_turn(p);
    int object = fr_object_share(p->card, p->charged, key);
    p->object = object;
    give_turn(p);
    return object != FR_NO_OBJECT;
}

uint64_t fr_pool_chunk(struct fr_pool *p)
{
    take_turn(p);
    uint64_t chunk = p->chunk;
    give_turn(p);
    return chunk;
}

/* ---- an allocation ---- */

static uint64_t steps_of(size_t size)
{
    return size > UINT64_MAX - FR_POOL_STEP ? UINT64_MAX / FR_POOL_STEP * FR_POOL_STEP : ((uint64_t)size + FR_POOL_STEP - 1) / FR_POOL_STEP * FR_POOL_STEP;
}

uint64_t fr_pool_worst(const struct fr_pool *p, size_t size)
{
    uint64_t steps = steps_of(size);
    uint64_t charged = __atomic_load_n(&p->charged, __ATOMIC_RELAXED), room = p->most > charged ? p->most - charged : 0;
    return p->most && room < steps && p->object == FR_NO_OBJECT ? room : steps;
}

/* In one call the driver may give back the block of a piece that others hold, and take a new block: the change of the size does
 * not show that. But the new block is no larger than the steps of the request. */
static void stay_unseen(struct fr_pool *p, size_t size, uint64_t now)
{
    uint64_t more = now > p->charged ? now - p->charged : 0, steps = steps_of(size);
    if (steps > more) fr_pieces_stay(p->handle, steps - more);
}

bool fr_pool_allocate(struct fr_pool_request *q, struct fr_op *op)
{
    struct fr_pool *p = q->pool;
    CUdeviceptr at = 0;
    take_turn(p); /* some drivers give unused memory back in an allocation */
    if (unlikely(!p->seen)) look(p);
    bool enough = op->card == FR_NO_CARD || op->reserved >= fr_pool_worst(p, q->size);
    if (enough) {
        if (steps_of(q->size) > p->chunk) p->chunk = steps_of(q->size);
        q->result = REAL(cuMemAllocFromPoolAsync)(&at, q->size, p->handle, q->stream);
        if (!q->result) *q->out = at;
        uint64_t now = reserved_by(p);
        if (unlikely(p->object != FR_NO_OBJECT)) stay_unseen(p, q->size, now);
        compare_with(p, op, now);
    } else fr_op_end(op, 0);
    give_turn(p);
    return enough;
}

bool fr_pool_attempt(struct fr_pool_request *q, bool patiently)
{
    struct fr_op op;
    do {
        uint64_t worst = fr_pool_worst(q->pool, q->size);
        if (worst < q->size && !q->pool->most) return false;
        bool room = patiently ? !fr_op_begin_within(&op, q->pool->card, worst, &q->patience) : fr_op_try(&op, q->pool->card, worst);
        if (!room) return false;
    } while (!fr_pool_allocate(q, &op));
    return true;
}

/* The driver may have taken memory of this pool for another pool. A caller that reads the size sees that, and the charge must
 * follow; if another call has the turn, that call may have read the size before. */
static uint64_t reserved_now(struct fr_pool *p)
{
    struct fr_op back;
    fr_free_begin(&back, p->card);
    uint64_t reserved = reserved_by(p);
    if (reserved != __atomic_load_n(&p->charged, __ATOMIC_RELAXED)) fr_pool_settle(p);
    fr_free_end(&back, 0);
    return reserved;
}

bool fr_pool_is_empty(struct fr_pool *p) { return !reserved_now(p); }

uint64_t fr_pool_unused(struct fr_pool *p)
{
    uint64_t reserved = reserved_now(p), used = attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, reserved);
    return reserved > used ? reserved - used : 0;
}

/* Before CUDA 12.2 the field is reserved, and a driver may ignore it. */
bool fr_pool_can_be_capped(void)
{
    static _Atomic int known; /* 1: no, 2: yes */
    int version = 0, answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer) return answer == 2;
    if (REAL(cuDriverGetVersion)(&version)) return false;
    atomic_store(&known, version >= CAPPED_SINCE ? 2 : 1);
    return version >= CAPPED_SINCE;
}

/* ---- all pools ---- */

/* The next pool of the card, held; the previous one is let go. */
struct fr_pool *fr_pool_next(struct fr_pool *before, int card)
{
    bool let_go = before && !before->doomed;
    fr_pools_enter();
    struct fr_pool *p = before ? before->next : pools;
    while (p && !(p->used && p->card >= 0 && (card == FR_NO_CARD || p->card == card))) p = p->next;
    if (p) p->users++;
    if (let_go) before->users--;
    fr_unlock(&fr_pools_lock);
    if (before && !let_go) fr_pool_done(before);
    return p;
}

uint64_t fr_pools_charged(void)
{
    uint64_t cards = 0;
    fr_pools_enter();
    for (struct fr_pool *p = pools; p; p = p->next)
        if (p->used && p->card >= 0 && __atomic_load_n(&p->charged, __ATOMIC_RELAXED)) cards |= 1ull << p->card;
    fr_unlock(&fr_pools_lock);
    return cards;
}

bool fr_pool_could_shrink(struct fr_pool *p)
{
    uint64_t reserved = reserved_now(p);
    return reserved > attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0) && reserved > attribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
}
