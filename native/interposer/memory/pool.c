/* What pools are charged with: what the driver has reserved for them, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT.
 *
 * A call that may make a pool grow holds a reservation of the worst. When it is over, the pool's size is read and the
 * charge brought up to it, out of that reservation: by whichever call looks first, so the growth of one may be kept by
 * another, but at every moment
 *
 *      charged + reservations of the calls on their way >= reserved by the driver
 *
 * The size is read without a lock. A number that moves with every change (version) tells whether it is still true.
 * A pool that the application destroyed while memory of it is in use lives on until it is empty: only so can its size be
 * seen. A pool is charged to the process that made it; processes that import it hold on to its object (objects.c). */
#include "pool.h"

#include <sys/mman.h>

#define BLOCK 32   /* places taken from the system at a time */
#define PATIENCE 64
#define TIGHT 256   /* allocations for which it is remembered that there was no room */

struct fr_lock fr_pools_lock;
_Atomic uint32_t fr_pools_any;

static struct fr_pool *pools; /* places are never given back, so a pointer to one stays good */
static uint32_t pools_era;
static uint32_t lulls;        /* calls on their way after which chunks may be gone */
static uint64_t begun;        /* allocations ever */

void fr_pools_enter(void)
{
    fr_lock(&fr_pools_lock);
    uint32_t era = atomic_load_explicit(&fr_era, memory_order_relaxed);
    if (likely(pools_era == era)) return;
    pools_era = era;
    pools = NULL;
    lulls = 0;
    fr_pieces_drop();
    atomic_store(&fr_pools_any, 0);
}

/* ---- places ---- */

static struct fr_pool *free_place(void)
{
    for (struct fr_pool *p = pools; p; p = p->next)
        if (!p->used && !p->users) return p;
    struct fr_pool *more = mmap(NULL, BLOCK * sizeof *more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED) return NULL;
    for (int i = 0; i < BLOCK; i++) {
        more[i].next = pools;
        pools = &more[i];
    }
    return pools;
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

/* NULL: no memory for the place. What the pool has by now is counted as it is. */
struct fr_pool *fr_pool_adopt(CUmemoryPool handle, CUdevice device, int card)
{
    fr_pools_enter();
    struct fr_pool *p = find(handle);
    if (!p && (p = free_place())) {
        struct fr_pool *next = p->next;
        uint64_t version = atomic_load(&p->version);
        *p = (struct fr_pool){.handle = handle, .device = device, .card = card, .object = FR_NO_OBJECT, .used = true, .next = next};
        atomic_store(&p->version, version + 1);
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

/* The last user of a doomed pool that is empty destroys it. */
void fr_pool_done(struct fr_pool *p)
{
    bool empty = p->doomed && !attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0) && !reserved_by(p);
    fr_pools_enter();
    bool last = !--p->users && empty && !p->charged && !p->calls;
    CUmemoryPool handle = p->handle;
    int object = p->object;
    if (last) {
        fr_chunk_forget(p, false);
        p->used = false;
    }
    fr_unlock(&fr_pools_lock);
    if (!last) return;
    if (object != FR_NO_OBJECT) fr_object_leave(object); /* it has no bytes any more */
    REAL(cuMemPoolDestroy)(handle);
}

void fr_pool_leave(struct fr_pool *p)
{
    fr_pools_enter();
    p->users--;
    p->used = false;
    fr_unlock(&fr_pools_lock);
}

/* ---- the charge ---- */

struct change {
    uint64_t kept, back, beyond; /* of the reservation; what leaves the ledger; what nobody had reserved */
};

/* With the lock held: makes the charge what the pool has now. */
static struct change compare(struct fr_pool *p, uint64_t now, uint64_t reserved, bool ours)
{
    struct change c = {0};
    if (p->claim && !ours) c.kept = reserved; /* whoever goes without a reservation relies on what others hold */
    else if (now < p->charged) c.back = p->charged - now;
    else {
        c.kept = now - p->charged < reserved ? now - p->charged : reserved;
        if (!p->calls) c.beyond = now - p->charged - c.kept;
    }
    p->charged += c.kept + c.beyond - c.back;
    atomic_fetch_add(&p->version, 1);
    return c;
}

/* Reads the pool's size and takes the lock, such that the size is true under it; false: others are too quick. */
static bool enter_with_size(struct fr_pool *p, uint64_t *now)
{
    for (int i = 0; i < PATIENCE; i++) {
        uint64_t version = atomic_load(&p->version);
        *now = reserved_by(p);
        fr_pools_enter();
        if (atomic_load_explicit(&p->version, memory_order_relaxed) == version) return true;
        if (i < PATIENCE - 1) fr_unlock(&fr_pools_lock);
    }
    return false;
}

void fr_pool_resize_object(struct fr_pool *p)
{
    if (unlikely(p->object != FR_NO_OBJECT)) fr_object_resize(p->object, p->charged);
}

static void settle(struct fr_pool *p)
{
    uint64_t now;
    struct fr_op op;
    fr_free_begin(&op, p->card);
    struct change c = {0};
    if (enter_with_size(p, &now)) c = compare(p, now, 0, false);
    if (c.back) fr_chunk_forget(p, true);
    fr_unlock(&fr_pools_lock);
    if (c.back || c.beyond) fr_pool_resize_object(p);
    fr_free_end(&op, c.back);
    if (c.beyond) fr_charge(p->card, c.beyond);
}

/* ---- an allocation on its way ---- */

static uint64_t growth_of(size_t size)
{
    return ((uint64_t)size + FR_CHUNK - 1) / FR_CHUNK * FR_CHUNK;
}

static void begin(struct fr_pool *p, struct fr_growth *g)
{
    begun++;
    p->calls++;
    g->version = atomic_fetch_add(&p->version, 1) + 1;
    g->alone = p->calls == 1;
}

static void leave(struct fr_pool *p)
{
    fr_pools_enter();
    p->calls--;
    fr_unlock(&fr_pools_lock);
}

/* Not before the reservation is there may the driver be called; a claim that comes in between knows of us by `calls`. */
bool fr_pool_grow_begin(struct fr_pool *p, size_t size, struct fr_growth *g)
{
    uint64_t worst = growth_of(size);
    *g = (struct fr_growth){.size = size};
    if (worst < size) return false;
    fr_pools_enter();
    begin(p, g);
    if (p->claim > worst) worst = p->claim;
    fr_unlock(&fr_pools_lock);
    if (!fr_begin(&g->op, p->card, 0)) {
        if (fr_more(&g->op, worst)) {
            if (unlikely(p->tight)) p->tight--;
            return true;
        }
        fr_end(&g->op, 0);
    }
    p->tight = TIGHT;
    leave(p);
    return false;
}

/* Whoever else takes the piece meanwhile holds a reservation, which is then kept for the growth of this call. */
bool fr_pool_claim_begin(struct fr_pool *p, size_t size, uint64_t order, struct fr_growth *g)
{
    uint64_t worst = growth_of(size);
    *g = (struct fr_growth){.op = {.card = FR_NO_CARD}, .size = size, .claimed = true};
    if (worst < size) return false;
    fr_pools_enter();
    bool ok = !p->claim && !p->mistrusted && (worst <= FR_CHUNK || !p->calls) && fr_piece_fits(p, size, order, !lulls);
    if (ok) {
        p->claim = worst;
        begin(p, g);
    }
    fr_unlock(&fr_pools_lock);
    if (ok) fr_free_begin(&g->op, p->card); /* what others keep because of us goes back when we end: who is short of it waits */
    return ok;
}

/* A call that was alone and made the pool grow by a chunk got the beginning of it. */
static void learn(struct fr_pool *p, const struct fr_growth *g, CUdeviceptr at, uint64_t grown)
{
    uint64_t least = (g->size + FR_GRANULE - 1) / FR_GRANULE * FR_GRANULE;
    bool chunk = g->alone && (grown == growth_of(g->size) || grown == least) && at % FR_GRANULE == 0;
    if (grown && chunk) fr_chunk_add(p, at, grown);
    fr_piece_given(at, g->size);
}

static bool charge_if_it_fits(int card, uint64_t bytes)
{
    struct fr_op op;
    if (fr_begin(&op, card, 0)) return false;
    bool fits = fr_more(&op, bytes);
    fr_end(&op, fits ? bytes : 0);
    return fits;
}

bool fr_pool_end(struct fr_pool *p, struct fr_growth *g, CUdeviceptr at)
{
    uint64_t now;
    bool sure = enter_with_size(p, &now);
    uint64_t before = p->charged;
    g->alone &= atomic_load_explicit(&p->version, memory_order_relaxed) == g->version;
    p->calls--;
    if (g->claimed) p->claim = 0;
    if (!sure) now = p->charged + g->op.reserved;
    struct change c = compare(p, now, g->op.reserved, g->claimed);
    if (at) learn(p, g, at, sure && now > before ? now - before : 0);
    if (g->claimed && c.beyond) p->mistrusted = true;
    fr_unlock(&fr_pools_lock);
    if (c.kept || c.back || c.beyond) fr_pool_resize_object(p);
    if (!g->claimed) {
        fr_end(&g->op, c.kept);
        if (c.back) fr_free_begin(&g->op, p->card);
    }
    if (g->claimed || c.back) fr_free_end(&g->op, c.back);
    bool room = !c.beyond || charge_if_it_fits(p->card, c.beyond);
    if (!room) fr_charge(p->card, c.beyond);
    return room || !g->claimed;
}

/* ---- all pools ---- */

/* The next pool of the card, held; the one before is let go. */
static struct fr_pool *next_pool(struct fr_pool *before, int card)
{
    fr_pools_enter();
    struct fr_pool *p = before ? before->next : pools;
    while (p && !(p->used && p->card >= 0 && (card == FR_NO_CARD || p->card == card))) p = p->next;
    if (p) p->users++;
    fr_unlock(&fr_pools_lock);
    if (before) fr_pool_done(before);
    return p;
}

uint32_t fr_pool_calls(struct fr_pool *p)
{
    fr_pools_enter();
    uint32_t calls = p->calls;
    fr_unlock(&fr_pools_lock);
    return calls;
}

uint64_t fr_pools_begun(void)
{
    fr_pools_enter();
    uint64_t so_far = begun;
    fr_unlock(&fr_pools_lock);
    return so_far;
}

void fr_pools_settle(int card)
{
    for (struct fr_pool *p = next_pool(NULL, card); p; p = next_pool(p, card)) settle(p);
}

void fr_pools_trim(int card)
{
    struct fr_lull l;
    fr_lull_begin(&l);
    for (struct fr_pool *p = next_pool(NULL, card); p; p = next_pool(p, card)) REAL(cuMemPoolTrimTo)(p->handle, 0);
    fr_lull_end(&l, FR_NO_ORDER);
}

/* Others who are short of memory wait for what is announced, so only what may come back is. */
static bool could_shrink(const struct fr_pool *p)
{
    uint64_t reserved = p->charged ? reserved_by(p) : 0;
    return reserved > attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0) && reserved > attribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
}

void fr_lull_begin(struct fr_lull *l)
{
    l->cards = 0;
    fr_pools_enter();
    lulls++;
    l->begun = begun;
    l->freed = fr_pieces_now();
    fr_unlock(&fr_pools_lock);
    for (struct fr_pool *p = next_pool(NULL, FR_NO_CARD); p; p = next_pool(p, FR_NO_CARD))
        if (could_shrink(p)) l->cards |= 1ull << p->card;
    for (int card = 0; card < 64; card++)
        if (l->cards >> card & 1) fr_free_begin(&l->op[card], card);
}

/* What the pools were charged with and have still, with no allocation in between, they kept: else a chunk may be gone. */
static void settle_after(struct fr_pool *p, const struct fr_lull *l)
{
    uint64_t now;
    bool same = enter_with_size(p, &now) && now == p->charged && begun == l->begun;
    if (!same) fr_chunk_forget(p, true);
    fr_unlock(&fr_pools_lock);
    if (!same) settle(p);
}

void fr_lull_end(struct fr_lull *l, uint64_t order)
{
    for (struct fr_pool *p = next_pool(NULL, FR_NO_CARD); p; p = next_pool(p, FR_NO_CARD)) settle_after(p, l);
    fr_pools_enter();
    lulls--;
    if (order != FR_NO_ORDER) fr_pieces_ordered(order, l->freed);
    fr_unlock(&fr_pools_lock);
    for (int card = 0; card < 64; card++)
        if (l->cards >> card & 1) fr_free_end(&l->op[card], 0);
}
