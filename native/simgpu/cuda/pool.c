/* The calls of stream-ordered memory. How pools grow and shrink is in pool_chunks.c. */
#include "pool.h"

#include <stdlib.h>
#include <string.h>

struct sim_pool *sim_pool_make(int device, const CUmemPoolProps *props)
{
    struct sim_pool *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    *p = (struct sim_pool){.magic = MAGIC_POOL, .device = device, .reuse = {1, 1, 1}};
    if (props) p->props = *props;
    p->max_size = p->props.maxSize;
    sim_pool_list(p);
    return p;
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

/* ---- the calls ---- */

static CUresult alloc_async(CUdeviceptr *out, size_t size, CUmemoryPool pool, bool given, CUstream handle)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_stream *st = sim_stream_of(c, handle);
    if (!out || !size) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!st || (given && !SIM_VALID(pool, POOL))) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (sim_capturing(st)) return sim_leave(sim_capture_alloc(st, given ? pool->device : st->ctx->device, size, out));
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
    if (sim.policy.linear_free_async == SIM_FREE_WAITS) sim_wait_context(c);
    if ((region = sim_region_at(p))) sim_free_late(region, st);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) { return free_async(p, s); }
API CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream s) { return free_async(p, SIM_PER_THREAD(s)); }

/* ---- a pool's location: a device, the host, or, for managed memory, the current device wherever it is preferred ---- */

static bool on_device(const CUmemLocation *l) { return l->type == CU_MEM_LOCATION_DEVICE || l->type == CU_MEM_LOCATION_DEVICE_LOCALITY_DOMAIN; }

static bool kind_valid(int type, const CUmemLocation *l)
{
    bool host = l->type == CU_MEM_LOCATION_HOST || l->type == CU_MEM_LOCATION_HOST_NUMA;
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) return host || l->type == CU_MEM_LOCATION_DEVICE || !l->type;
    return type == CU_MEM_ALLOCATION_TYPE_PINNED && (host || on_device(l));
}

static int device_of(const CUmemLocation *l)
{
    struct sim_ctx *c = sim_current();
    if (on_device(l)) return l->type == CU_MEM_LOCATION_DEVICE ? l->id : (l->id & 0xff);
    return c ? c->device : 0;
}

static struct sim_pool *make_at(const CUmemPoolProps *props)
{
    struct sim_pool *p = sim_pool_make(device_of(&props->location), props);
    if (p) p->on_host = props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED && !on_device(&props->location);
    return p;
}

/* The pools of locations that are not a device: the default pool, and the pool that was set. */
static struct place { struct sim_pool *usual, *chosen; } host_place, managed_place;

static struct sim_pool *pool_of_place(int type, const CUmemLocation *l, bool current)
{
    struct place *at = type == CU_MEM_ALLOCATION_TYPE_MANAGED ? &managed_place : &host_place;
    if (!at->usual && (at->usual = make_at(&(CUmemPoolProps){.allocType = type, .location = *l}))) at->usual->is_default = true;
    return current && at->chosen ? at->chosen : at->usual;
}

API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !props || !kind_valid(props->allocType, &props->location)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sim_device_valid(device_of(&props->location))) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    struct sim_pool *pool = make_at(props);
    if (pool) *out = pool;
    return sim_leave(pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(pool, POOL) || pool->is_default) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (sim.devices[pool->device].current_pool == pool) sim.devices[pool->device].current_pool = NULL;
    if (host_place.chosen == pool) host_place.chosen = NULL;
    if (managed_place.chosen == pool) managed_place.chosen = NULL;
    sim_pool_seen(pool);
    sim_pool_trim(pool, 0);
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
    sim_pool_seen(pool);
    sim_pool_trim(pool, keep);
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
    if (what == P_RESERVED && !set) sim_pool_seen(pool);
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

static bool is_plain(int type, const CUmemLocation *l) { return type == CU_MEM_ALLOCATION_TYPE_PINNED && on_device(l); }

static CUresult pool_at(CUmemoryPool *out, const CUmemLocation *where, int type, bool current)
{
    if (!out || !where || !kind_valid(type, where)) return CUDA_ERROR_INVALID_VALUE;
    if (is_plain(type, where)) return get_pool(out, device_of(where), current);
    CUresult r = sim_enter();
    if (r) return r;
    if (!sim_device_valid(device_of(where))) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    struct sim_pool *pool = pool_of_place(type, where, current);
    if (pool) *out = pool;
    return sim_leave(pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *l, int type) { return pool_at(out, l, type, false); }
API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *l, int type) { return pool_at(out, l, type, true); }
API CUresult cuMemSetMemPool(CUmemLocation *l, int type, CUmemoryPool pool)
{
    if (!l || !kind_valid(type, l)) return CUDA_ERROR_INVALID_VALUE;
    if (is_plain(type, l)) return cuDeviceSetMemPool(device_of(l), pool);
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(pool, POOL) || pool->props.allocType != type) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    *(type == CU_MEM_ALLOCATION_TYPE_MANAGED ? &managed_place.chosen : &host_place.chosen) = pool;
    return sim_leave(CUDA_SUCCESS);
}
