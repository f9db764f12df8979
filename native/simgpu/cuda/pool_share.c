/* Pools shared with other processes. The pool has a name: an object without bytes, whose file contains the card. Each chunk of which a piece
 * was exported is an object of its own, held by its pool and by the processes that imported the piece. */
#include "pool.h"
#include "vmm.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define POOL_MAGIC 0x53494d504f4f4c31ull
#define POINTER_MAGIC 0x53494d5054523031ull

struct named {
    uint64_t magic;
    uint32_t card, process;
};

struct pointer {
    uint64_t magic, object, pool, whole, offset, size;
};
_Static_assert(sizeof(struct pointer) <= sizeof(CUmemPoolPtrExportData), "it has to fit");

static uint64_t object_behind(uint32_t charge) { return sim.host.state->charges[charge - 1].object; }

static uint64_t name(struct sim_pool *p)
{
    if (!p->name) p->name = sim_take(sim.devices[p->device].card, SIM_POOL, 0, 0);
    if (!p->name) return 0;
    sim_lock(&sim.host);
    sim_share(&sim.host, p->name);
    uint64_t object = object_behind(p->name);
    sim_unlock(&sim.host);
    return object;
}

API CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type, unsigned long long flags)
{
    int fd;
    CUresult r = sim_enter();
    if (r) return r;
    bool ok = out && SIM_VALID(pool, POOL) && !flags && type == CU_MEM_HANDLE_TYPE_POSIX_FD && (pool->props.handleTypes & type) && !pool->imported;
    if (!ok) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    uint64_t object = name(pool);
    struct named n = {POOL_MAGIC, sim.devices[pool->device].card, sim.host.slot};
    if (!object || sim_export_descriptor(&fd, object)) return sim_leave(CUDA_ERROR_OPERATING_SYSTEM);
    if (pwrite(fd, &n, sizeof n, 0) != sizeof n) return close(fd), sim_leave(CUDA_ERROR_OPERATING_SYSTEM);
    *(int *)out = fd;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *from, int type, unsigned long long flags)
{
    struct named n = {0};
    int fd = (int)(intptr_t)from;
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FD) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    uint64_t object = sim_object_of(fd);
    bool read = object && pread(fd, &n, sizeof n, 0) == sizeof n && n.magic == POOL_MAGIC;
    int device = read ? sim_device_of(n.card) : -1;
    if (device < 0) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = type, .location = {CU_MEM_LOCATION_DEVICE, device}};
    struct sim_pool *p = sim_pool_make(device, &props);
    if (!p) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    p->imported = true;
    sim_lock(&sim.host);
    p->name = sim_charge_import(&sim.host, n.card, SIM_POOL, object, 0);
    sim_unlock(&sim.host);
    *out = p;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr at)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_region *region = sim_region_at(at);
    if (!out || !region || region->kind != R_POOL) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_piece *piece = region->owner;
    if (!piece->pool->name) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_chunk *c = piece->chunk;
    struct pointer p = {POINTER_MAGIC, sim_publish(c->charge, c->bytes), object_behind(piece->pool->name), c->size, region->offset, region->size};
    if (!p.object) return sim_leave(CUDA_ERROR_OPERATING_SYSTEM);
    memset(out, 0, sizeof *out);
    memcpy(out, &p, sizeof p);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    struct pointer p;
    uint32_t card;
    uint64_t size;
    enum sim_kind kind;
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !data || !SIM_VALID(pool, POOL) || !pool->imported || !pool->name) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(&p, data, sizeof p);
    if (p.magic != POINTER_MAGIC || p.pool != object_behind(pool->name)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    uint32_t charge = sim_import(p.object, &kind, &card, &size);
    if (!charge) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_region region = {.va = sim_reserve_address((size_t)p.size), .size = (size_t)p.size, .offset = (size_t)p.offset, .kind = R_POOL_IMPORT,
                                .device = pool->device, .charge = charge, .bytes = sim_bytes_shared(p.object, (size_t)p.whole)};
    if (!region.bytes || !sim_region_add(region)) return sim_give(charge), sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *out = region.va;
    return sim_leave(CUDA_SUCCESS);
}
