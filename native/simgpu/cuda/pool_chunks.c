/* How pools grow and shrink. A pool takes chunks from the card and allocates pieces of them. Freed pieces stay in the pool, and chunks are
 * given back down to the release threshold. The policy chooses how large a chunk is, which piece is used, and when chunks are given back. The
 * process is charged for all memory that the pool has reserved.
 *
 *      piece:  FREE --alloc--> USED --free in a stream--> FREE: for that stream at once, for others when its work is done
 *                                                               (or, by policy, at the next synchronisation)
 *
 * A chunk that is given back in a call unrelated to the pool leaves an allowance: a library may count it until it queries the pool's size, or
 * uses the pool, or until the next synchronisation. */
#include "pool.h"

#include <stdlib.h>
#include <string.h>

#define MOST_CHUNK (32 * SIM_MIB) /* an allocation may grow its pool by its size rounded up to this */
#define UNIT 512

static struct sim_pool *pools;
static uint64_t draws, calls;

void sim_pool_list(struct sim_pool *pool)
{
    pool->next = pools;
    pools = pool;
}

/* ---- pieces ---- */

static bool work_done(const struct sim_piece *p) { return sim_work_done(p->context, p->generation, p->seq); }

/* May a stream that did not free the piece use it? */
static bool for_others(const struct sim_piece *p) { return sim.policy.pool_reuse_at_sync ? !p->seq : work_done(p); }

static bool usable(const struct sim_piece *p, size_t size, const struct sim_stream *st)
{
    return !p->used && p->size >= size && (p->stream == st->id || for_others(p));
}

static bool better(const struct sim_piece *new, const struct sim_piece *best, uint64_t seen)
{
    if (!best) return true;
    if (sim.policy.pool_fit == SIM_FIT_BEST) return new->size < best->size;
    return sim_policy_hash(sim.policy.seed + 1, ++draws) % seen == 0;
}

static struct sim_piece *find_piece(struct sim_pool *pool, size_t size, const struct sim_stream *st)
{
    struct sim_piece *best = NULL;
    uint64_t seen = 0;
    for (struct sim_chunk *c = pool->chunks; c; c = c->next)
        for (struct sim_piece *p = c->pieces; p; p = p->next) {
            if (!usable(p, size, st)) continue;
            if (better(p, best, ++seen)) best = p;
            if (sim.policy.pool_fit == SIM_FIT_FIRST) return best;
        }
    return best;
}

static void split(struct sim_piece *p, size_t size)
{
    if (p->size == size) return;
    struct sim_piece *rest = malloc(sizeof *rest);
    if (!rest) return; /* the whole piece is used */
    *rest = *p;
    rest->offset += size;
    rest->size -= size;
    p->size = size;
    p->next = rest;
}

/* Joins neighbouring free pieces that may be used under the same condition. */
static void join_free(struct sim_chunk *c)
{
    for (struct sim_piece *p = c->pieces; p && p->next;) {
        struct sim_piece *n = p->next;
        bool same = !p->used && !n->used && (p->stream == n->stream || (for_others(p) && for_others(n)));
        if (!same) {
            p = n;
            continue;
        }
        if (n->seq > p->seq) p->seq = n->seq, p->context = n->context, p->generation = n->generation, p->stream = n->stream;
        p->size += n->size;
        p->next = n->next;
        free(n);
    }
}

/* At a synchronisation: pieces whose earlier work is done may be used by any stream. */
static void settle_pieces(struct sim_pool *pool)
{
    for (struct sim_chunk *c = pool->chunks; c; c = c->next) {
        for (struct sim_piece *p = c->pieces; p; p = p->next)
            if (!p->used && p->seq && work_done(p)) p->seq = 0;
        join_free(c);
    }
}

/* ---- shrinking ---- */

static bool chunk_free(const struct sim_chunk *c)
{
    for (const struct sim_piece *p = c->pieces; p; p = p->next)
        if (p->used || !work_done(p)) return false;
    return true;
}

static void drop_chunk(struct sim_pool *pool, struct sim_chunk **at)
{
    struct sim_chunk *c = *at;
    *at = c->next;
    pool->reserved -= c->size;
    sim_give(c->charge);
    sim_release_address(c->va, c->size);
    sim_bytes_drop(c->bytes);
    for (struct sim_piece *p = c->pieces, *next; p; p = next) next = p->next, free(p);
    free(c);
}

void sim_pool_trim(struct sim_pool *pool, uint64_t keep)
{
    for (struct sim_chunk **at = &pool->chunks; *at && pool->reserved > keep;) {
        if (chunk_free(*at)) drop_chunk(pool, at);
        else at = &(*at)->next;
    }
}

static void shrink(struct sim_pool *pool)
{
    if (pool->reserved > pool->threshold) sim_pool_trim(pool, pool->threshold);
}

/* Shrinks in a call that is unrelated to the pool. */
static void trim_unseen(struct sim_pool *pool, uint64_t keep)
{
    uint64_t before = pool->reserved;
    sim_pool_trim(pool, keep);
    if (before == pool->reserved || pool->on_host) return;
    pool->unseen += before - pool->reserved;
    sim_give(pool->allowance);
    pool->allowance = sim_allowance(sim.devices[pool->device].card, SIM_POOL, (size_t)pool->unseen);
}

void sim_pool_seen(struct sim_pool *pool)
{
    sim_give(pool->allowance);
    pool->allowance = 0;
    pool->unseen = 0;
}

void sim_pool_bury(struct sim_pool *pool)
{
    for (struct sim_pool **p = &pools; *p; p = &(*p)->next)
        if (*p == pool) {
            *p = pool->next;
            break;
        }
    pool->magic = 0;
    sim_pool_seen(pool);
    sim_give(pool->name);
    free(pool);
}

void sim_pools_at_sync(void)
{
    for (struct sim_pool *p = pools, *next; p; p = next) {
        next = p->next;
        if (sim.policy.pool_reuse_at_sync) settle_pieces(p);
        if (p->destroyed) sim_pool_trim(p, 0);
        else if (sim.policy.pool_shrink == SIM_SHRINK_AT_SYNC) shrink(p);
        sim_pool_seen(p);
        if (p->destroyed && !p->chunks) sim_pool_bury(p);
    }
}

void sim_pools_between_calls(void)
{
    if (sim.policy.pool_shrink != SIM_SHRINK_AT_ANY_CALL || ++calls % sim.policy.pool_shrink_every) return;
    for (struct sim_pool *p = pools; p; p = p->next)
        if (p->reserved > p->threshold) trim_unseen(p, p->threshold);
}

/* ---- growing ---- */

static struct sim_chunk *add_chunk(struct sim_pool *pool, size_t size)
{
    if (pool->max_size && pool->reserved + size > pool->max_size) return NULL;
    struct sim_chunk *c = calloc(1, sizeof *c);
    struct sim_piece *p = calloc(1, sizeof *p);
    struct sim_bytes *b = sim_bytes_new(size);
    uint32_t charge = c && p && b ? sim_take(sim.devices[pool->device].card, SIM_POOL, pool->on_host ? 0 : size, 0) : 0;
    if (!charge) {
        sim_bytes_drop(b);
        return free(c), free(p), NULL;
    }
    *p = (struct sim_piece){.pool = pool, .chunk = c, .size = size};
    *c = (struct sim_chunk){.charge = charge, .va = sim_reserve_address(size), .size = size, .bytes = b, .pieces = p, .next = pool->chunks};
    pool->chunks = c;
    pool->reserved += size;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    return c;
}

static uint64_t most_growth(size_t size) { return sim_round(size, MOST_CHUNK); }

static size_t chunk_size(const struct sim_pool *pool, size_t size)
{
    const struct sim_policy *p = &sim.policy;
    uint64_t most = most_growth(size), whole = sim_round(size, p->pool_step);
    uint64_t twice = p->pool_doubles && pool->chunks ? 2 * pool->chunks->size : 0;
    if (twice > whole) whole = twice;
    if (whole > most) whole = most;
    return (size_t)(p->pool_percent > 100 ? sim_round(most / 100 * p->pool_percent, SIM_GRANULE) : whole);
}

/* Grows by a whole chunk; if the card is nearly full, by the size needed; if that fails, after giving back unused chunks. */
static bool grow(struct sim_pool *pool, size_t size)
{
    size_t whole = chunk_size(pool, size), least = (size_t)sim_round(size, SIM_GRANULE);
    if (add_chunk(pool, whole) || (least < whole && add_chunk(pool, least))) return true;
    for (struct sim_pool *p = pools; p; p = p->next) {
        if (p->device != pool->device) continue;
        if (p == pool) sim_pool_trim(p, 0);
        else trim_unseen(p, 0);
    }
    return add_chunk(pool, least) != NULL;
}

CUresult sim_pool_alloc(struct sim_pool *pool, size_t size, struct sim_stream *st, CUdeviceptr *out)
{
    if (pool && pool->imported) return CUDA_ERROR_INVALID_VALUE; /* the exporter allocates */
    if (!pool || size > 1ull << 50) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t rounded = (size_t)sim_round(size, UNIT);
    uint64_t before = pool->reserved;
    sim_pool_seen(pool);
    if (sim.policy.pool_shrink == SIM_SHRINK_AT_ALLOC) shrink(pool);
    struct sim_piece *p = find_piece(pool, rounded, st);
    if (!p && grow(pool, rounded)) p = find_piece(pool, rounded, st);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_bound("the growth of a pool", pool->reserved > before ? pool->reserved - before : 0, most_growth(size));
    sim_bound("a pool with a largest size", pool->reserved, pool->max_size ? pool->max_size : UINT64_MAX);
    split(p, rounded);
    struct sim_region r = {.va = p->chunk->va + p->offset, .size = size, .offset = p->offset, .kind = R_POOL, .ctx = st->ctx,
                           .device = pool->device, .bytes = p->chunk->bytes, .owner = p};
    if (!sim_region_add(r)) return CUDA_ERROR_OUT_OF_MEMORY;
    p->used = true;
    pool->used += p->size;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    *out = r.va;
    return CUDA_SUCCESS;
}

/* Without a stream: the caller has waited for the work. */
CUresult sim_pool_free(struct sim_region *r, struct sim_stream *st)
{
    struct sim_piece *p = r->owner;
    struct sim_pool *pool = p->pool;
    p->used = false;
    p->seq = st ? st->last_seq : 0;
    p->stream = st ? st->id : 0;
    p->context = st ? st->ctx->id : 0;
    p->generation = st ? st->ctx->generation : 0;
    pool->used -= p->size;
    sim_region_remove(r);
    join_free(p->chunk);
    sim_pool_seen(pool);
    if (sim.policy.pool_shrink == SIM_SHRINK_AT_FREE) shrink(pool);
    return CUDA_SUCCESS;
}
