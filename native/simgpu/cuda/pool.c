/* Stream-ordered memory. A pool takes chunks of the card and gives pieces of them; freed pieces stay in the pool, and
 * chunks go back at a synchronisation, down to the release threshold. What is charged is what the pool has reserved.
 *
 *      piece:  FREE --alloc--> USED --free in a stream--> FREE: for that stream at once, for others when its work is done
 */
#include "pool.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK (32 * SIM_MIB)
#define UNIT 512

static struct sim_pool *pools;

struct sim_pool *sim_pool_make(int device, const CUmemPoolProps *props)
{
    struct sim_pool *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    *p = (struct sim_pool){.magic = MAGIC_POOL, .device = device, .reuse = {1, 1, 1}, .next = pools};
    if (props) p->props = *props;
    p->max_size = p->props.maxSize;
    return pools = p;
}

struct sim_pool *sim_default_pool(int device)
{
    struct sim_device *d = &sim.devices[device];
    if (!d->default_pool && (d->default_pool = sim_pool_make(device, NULL))) d->default_pool->is_default = true;
    return d->default_pool;
}

static struct sim_pool *current_pool(int device)
{
    return sim.devices[device].current_pool ? sim.devices[device].current_pool : sim_default_pool(device);
}

/* ---- pieces ---- */

static bool work_done(const struct sim_piece *p)
{
    if (!p->seq) return true;
    sim_lock(&sim.host);
    sim_advance(&sim.host, sim_now());
    bool done = sim_item_done(&sim.host, p->context, p->generation, p->seq);
    sim_unlock(&sim.host);
    return done;
}

static struct sim_piece *find_piece(struct sim_pool *pool, size_t size, const struct sim_stream *st)
{
    for (struct sim_chunk *c = pool->chunks; c; c = c->next)
        for (struct sim_piece *p = c->pieces; p; p = p->next)
            if (!p->used && p->size >= size && (p->stream == st->id || work_done(p))) return p;
    return NULL;
}

static void split(struct sim_piece *p, size_t size)
{
    if (p->size == size) return;
    struct sim_piece *rest = malloc(sizeof *rest);
    if (!rest) return; /* the piece is given whole */
    *rest = *p;
    rest->offset += size;
    rest->size -= size;
    p->size = size;
    p->next = rest;
}

/* Neighbours that may be used under the same condition become one. */
static void join_free(struct sim_chunk *c)
{
    for (struct sim_piece *p = c->pieces; p && p->next;) {
        struct sim_piece *n = p->next;
        bool same = p->stream == n->stream || (work_done(p) && work_done(n));
        if (p->used || n->used || !same) {
            p = n;
            continue;
        }
        if (n->seq > p->seq) p->seq = n->seq, p->context = n->context, p->generation = n->generation, p->stream = n->stream;
        p->size += n->size;
        p->next = n->next;
        free(n);
    }
}

/* ---- chunks ---- */

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

static void trim(struct sim_pool *pool, uint64_t keep)
{
    for (struct sim_chunk **at = &pool->chunks; *at && pool->reserved > keep;) {
        if (chunk_free(*at)) drop_chunk(pool, at);
        else at = &(*at)->next;
    }
}

void sim_pool_bury(struct sim_pool *pool)
{
    for (struct sim_pool **p = &pools; *p; p = &(*p)->next)
        if (*p == pool) {
            *p = pool->next;
            break;
        }
    pool->magic = 0;
    sim_give(pool->name);
    free(pool);
}

void sim_pools_at_sync(void)
{
    for (struct sim_pool *p = pools, *next; p; p = next) {
        next = p->next;
        if (p->reserved > p->threshold) trim(p, p->destroyed ? 0 : p->threshold);
        if (p->destroyed && !p->chunks) sim_pool_bury(p);
    }
}

static struct sim_chunk *add_chunk(struct sim_pool *pool, size_t size)
{
    if (pool->max_size && pool->reserved + size > pool->max_size) return NULL;
    struct sim_chunk *c = calloc(1, sizeof *c);
    struct sim_piece *p = calloc(1, sizeof *p);
    struct sim_bytes *b = sim_bytes_new(size);
    uint32_t charge = c && p && b ? sim_take(sim.devices[pool->device].card, SIM_POOL, size, 0) : 0;
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

/* Grows by whole chunks; when the card is nearly full, by what is needed; then after giving back what lies unused. */
static bool grow(struct sim_pool *pool, size_t size)
{
    size_t whole = (size_t)sim_round(size, CHUNK), least = (size_t)sim_round(size, SIM_GRANULE);
    if (add_chunk(pool, whole) || (least < whole && add_chunk(pool, least))) return true;
    for (struct sim_pool *p = pools; p; p = p->next)
        if (p->device == pool->device) trim(p, 0);
    return add_chunk(pool, least) != NULL;
}

CUresult sim_pool_alloc(struct sim_pool *pool, size_t size, struct sim_stream *st, CUdeviceptr *out)
{
    if (pool && pool->imported) return CUDA_ERROR_INVALID_VALUE; /* the exporter allocates */
    if (!pool || size > 1ull << 50) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t rounded = (size_t)sim_round(size, UNIT);
    struct sim_piece *p = find_piece(pool, rounded, st);
    if (!p && grow(pool, rounded)) p = find_piece(pool, rounded, st);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
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
    p->used = false;
    p->seq = st ? st->last_seq : 0;
    p->stream = st ? st->id : 0;
    p->context = st ? st->ctx->id : 0;
    p->generation = st ? st->ctx->generation : 0;
    p->pool->used -= p->size;
    sim_region_remove(r);
    join_free(p->chunk);
    return CUDA_SUCCESS;
}

/* ---- the calls ---- */

static CUresult alloc_async(CUdeviceptr *out, size_t size, CUmemoryPool pool, bool given, CUstream handle)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_stream *st = sim_stream_of(c, handle);
    if (!out || !size) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!st || (given && !SIM_VALID(pool, POOL))) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (sim_capturing(st)) return sim_leave(sim_capture_alloc(st, size, out));
    return sim_leave(sim_pool_alloc(given ? pool : current_pool(st->ctx->device), size, st, out));
}

API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t n, CUstream s) { return alloc_async(out, n, NULL, false, s); }
API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t n, CUstream s) { return alloc_async(out, n, NULL, false, SIM_PER_THREAD(s)); }
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t n, CUmemoryPool p, CUstream s) { return alloc_async(out, n, p, true, s); }
API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t n, CUmemoryPool p, CUstream s) { return alloc_async(out, n, p, true, SIM_PER_THREAD(s)); }

static CUresult free_async(CUdeviceptr p, CUstream handle)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_stream *st = sim_stream_of(c, handle);
    if (!st) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!p) return sim_leave(CUDA_SUCCESS);
    if (sim_capturing(st)) {
        CUgraphNodeParams node = {.type = 11, .free = {p}};
        return sim_leave(sim_capture_node(st, &node));
    }
    struct sim_region *region = sim_region_at(p);
    if (region && region->kind == R_POOL) return sim_leave(sim_pool_free(region, st));
    if (region && region->kind == R_GRAPH) return sim_leave(sim_graph_free(region));
    if (region && region->kind == R_POOL_IMPORT) return sim_free_region(region), sim_leave(CUDA_SUCCESS);
    if (!region || (region->kind != R_LINEAR && region->kind != R_SMALL)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    sim_wait_context(c);
    if ((region = sim_region_at(p))) sim_free_region(region);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) { return free_async(p, s); }
API CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream s) { return free_async(p, SIM_PER_THREAD(s)); }

API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (props->location.type != CU_MEM_LOCATION_DEVICE) return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
    if (!sim_device_valid(props->location.id)) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    *out = sim_pool_make(props->location.id, props);
    return sim_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(pool, POOL) || pool->is_default) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (sim.devices[pool->device].current_pool == pool) sim.devices[pool->device].current_pool = NULL;
    trim(pool, 0);
    pool->destroyed = true;
    pool->threshold = 0;
    if (!pool->chunks) sim_pool_bury(pool);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(pool, POOL)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    trim(pool, keep);
    return sim_leave(CUDA_SUCCESS);
}

enum { P_REUSE_FIRST = 1, P_REUSE_LAST = 3, P_THRESHOLD, P_RESERVED, P_RESERVED_HIGH, P_USED, P_USED_HIGH, P_MAX = 13 };

static CUresult pool_attribute(struct sim_pool *p, int what, void *value, bool set)
{
    uint64_t *number = value;
    if (what >= P_REUSE_FIRST && what <= P_REUSE_LAST) {
        int *flag = &p->reuse[what - P_REUSE_FIRST];
        set ? memcpy(flag, value, sizeof *flag) : memcpy(value, flag, sizeof *flag);
        return CUDA_SUCCESS;
    }
    if (set && what == P_THRESHOLD) return p->threshold = *number, CUDA_SUCCESS;
    if (set && what == P_RESERVED_HIGH && !*number) return p->reserved_high = p->reserved, CUDA_SUCCESS;
    if (set && what == P_USED_HIGH && !*number) return p->used_high = p->used, CUDA_SUCCESS;
    if (set) return CUDA_ERROR_INVALID_VALUE;
    switch (what) {
    case P_THRESHOLD: *number = p->threshold; return CUDA_SUCCESS;
    case P_RESERVED: *number = p->reserved; return CUDA_SUCCESS;
    case P_RESERVED_HIGH: *number = p->reserved_high; return CUDA_SUCCESS;
    case P_USED: *number = p->used; return CUDA_SUCCESS;
    case P_USED_HIGH: *number = p->used_high; return CUDA_SUCCESS;
    case P_MAX: *number = p->max_size; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult access_attribute(CUmemoryPool pool, int what, void *value, bool set)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(pool, POOL) || !value) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    return sim_leave(pool_attribute(pool, what, value, set));
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool p, int what, void *value) { return access_attribute(p, what, value, false); }
API CUresult cuMemPoolSetAttribute(CUmemoryPool p, int what, void *value) { return access_attribute(p, what, value, true); }

API CUresult cuMemPoolSetAccess(CUmemoryPool p, const CUmemAccessDesc *d, size_t n)
{
    return SIM_VALID(p, POOL) && (d || !n) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool p, const CUmemLocation *where)
{
    if (!flags || !where || !SIM_VALID(p, POOL)) return CUDA_ERROR_INVALID_VALUE;
    *flags = 3;
    return CUDA_SUCCESS;
}

static CUresult get_pool(CUmemoryPool *out, CUdevice device, bool current)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sim_device_valid(device)) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    *out = current ? current_pool(device) : sim_default_pool(device);
    return sim_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice d) { return get_pool(out, d, false); }
API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice d) { return get_pool(out, d, true); }

API CUresult cuDeviceSetMemPool(CUdevice d, CUmemoryPool pool)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!sim_device_valid(d) || !SIM_VALID(pool, POOL) || pool->device != d) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    sim.devices[d].current_pool = pool;
    return sim_leave(CUDA_SUCCESS);
}

static CUresult pool_at(CUmemoryPool *out, const CUmemLocation *where, int type, bool current)
{
    if (!where || type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    return where->type == CU_MEM_LOCATION_DEVICE ? get_pool(out, where->id, current) : CUDA_ERROR_NOT_SUPPORTED;
}

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *l, int type) { return pool_at(out, l, type, false); }
API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *l, int type) { return pool_at(out, l, type, true); }
API CUresult cuMemSetMemPool(CUmemLocation *l, int type, CUmemoryPool pool)
{
    if (!l || type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    return l->type == CU_MEM_LOCATION_DEVICE ? cuDeviceSetMemPool(l->id, pool) : CUDA_ERROR_NOT_SUPPORTED;
}
