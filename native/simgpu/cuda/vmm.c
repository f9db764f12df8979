/* Virtual memory management: handles, reserved addresses, mappings. A handle's memory lives until its last reference and its last mapping are
 * gone, in all processes. A binding to a multicast object or to an array's tile counts as a mapping. */
#include "vmm.h"

#include <stdlib.h>
#include <string.h>

struct reservation {
    uint64_t va;
    size_t size, asked;
    struct reservation *next;
};

static struct sim_handle *handles;
static struct reservation *reservations;

struct sim_handle *sim_handle_find(CUmemGenericAllocationHandle number)
{
    for (struct sim_handle *h = handles; h; h = h->next)
        if ((uint64_t)(uintptr_t)h == number && h->refs) return h;
    return NULL;
}

void sim_handle_drop_if_unused(struct sim_handle *h)
{
    if (h->refs || h->maps) return;
    for (struct sim_handle **p = &handles; *p; p = &(*p)->next)
        if (*p == h) {
            *p = h->next;
            break;
        }
    sim_multicast_forget(h);
    sim_give(h->charge);
    sim_bytes_drop(h->bytes);
    free(h);
}

CUmemGenericAllocationHandle sim_handle_add(struct sim_handle h)
{
    struct sim_handle *new = malloc(sizeof *new);
    if (!new) return 0;
    *new = h;
    new->refs = 1;
    new->next = handles;
    handles = new;
    return (uint64_t)(uintptr_t)new;
}

static bool location_ok(const CUmemLocation *l)
{
    if (l->type == CU_MEM_LOCATION_DEVICE) return sim_device_valid(l->id);
    return l->type == CU_MEM_LOCATION_HOST || l->type == CU_MEM_LOCATION_HOST_NUMA || l->type == CU_MEM_LOCATION_HOST_NUMA_CURRENT;
}

API CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop, int option)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !prop || option < 0 || option > 1 || !location_ok(&prop->location)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    *out = SIM_GRANULE;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !prop || flags || !size || size % SIM_GRANULE || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || !location_ok(&prop->location))
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (prop->requestedHandleTypes & ~(CU_MEM_HANDLE_TYPE_POSIX_FD | CU_MEM_HANDLE_TYPE_FABRIC)) return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
    bool host = prop->location.type != CU_MEM_LOCATION_DEVICE;
    struct sim_handle h = {.host = host, .device = host ? -1 : prop->location.id, .size = size, .prop = *prop};
    if (!host) {
        h.card = sim.devices[h.device].card;
        h.charge = sim_take(h.card, SIM_VMM, size, size);
        if (!h.charge) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    h.bytes = sim_bytes_new(size);
    *out = h.bytes ? sim_handle_add(h) : 0;
    if (!*out) sim_give(h.charge);
    return sim_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle number)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_handle *h = sim_handle_find(number);
    if (!h) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    h->refs--;
    sim_handle_drop_if_unused(h);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUmemGenericAllocationHandle number)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_handle *h = sim_handle_find(number);
    if (!h || !out || h->multicast) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    *out = h->prop;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_region *region = sim_region_find((uint64_t)(uintptr_t)address);
    if (!out || !region || region->kind != R_MAPPED) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_handle *h = region->owner;
    h->refs++;
    *out = (uint64_t)(uintptr_t)h;
    return sim_leave(CUDA_SUCCESS);
}

/* ---- addresses ---- */

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t align, CUdeviceptr wish, unsigned long long flags)
{
    (void)wish;
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !size || size % SIM_GRANULE || (align & (align - 1)) || flags) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (size > 1ull << 43) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    struct reservation *v = malloc(sizeof *v);
    if (!v) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *v = (struct reservation){sim_reserve_address(size), size, size, reservations};
    reservations = v;
    *out = v->va;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemAddressFree(CUdeviceptr va, size_t size)
{
    CUresult r = sim_enter();
    if (r) return r;
    for (struct reservation **p = &reservations; *p; p = &(*p)->next) {
        struct reservation *v = *p;
        if (v->va != va || v->size != size) continue;
        *p = v->next;
        sim_release_address(v->va, v->size);
        free(v);
        return sim_leave(CUDA_SUCCESS);
    }
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
}

static bool reserved(uint64_t va, size_t size)
{
    for (struct reservation *v = reservations; v; v = v->next)
        if (va >= v->va && va + size <= v->va + v->size) return true;
    return false;
}

static bool overlaps(uint64_t va, size_t size)
{
    for (size_t i = 0; i < sim_region_count(); i++) {
        struct sim_region *r = sim_region_number(i);
        if (r->va < va + size && va < r->va + r->size) return true;
    }
    return false;
}

API CUresult cuMemMap(CUdeviceptr va, size_t size, size_t offset, CUmemGenericAllocationHandle number, unsigned long long flags)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_handle *h = sim_handle_find(number);
    if (!h || flags || offset || size != h->size || !reserved(va, size) || overlaps(va, size)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_region region = {.va = va, .size = size, .kind = R_MAPPED, .device = h->device, .bytes = h->bytes, .owner = h};
    if (!sim_region_add(region)) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    h->maps++;
    return sim_leave(CUDA_SUCCESS);
}

static bool unmap_first(uint64_t va, size_t size)
{
    for (size_t i = 0; i < sim_region_count(); i++) {
        struct sim_region *r = sim_region_number(i);
        if (r->kind != R_MAPPED || r->va < va || r->va + r->size > va + size) continue;
        struct sim_handle *h = r->owner;
        sim_region_remove(r);
        h->maps--;
        sim_handle_drop_if_unused(h);
        return true;
    }
    return false;
}

API CUresult cuMemUnmap(CUdeviceptr va, size_t size)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_ctx *c = sim_current();
    if (c && SIM_VALID(c, CTX)) sim_wait_context(c);
    bool any = false;
    while (unmap_first(va, size)) any = true;
    return sim_leave(any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuMemSetAccess(CUdeviceptr va, size_t size, const CUmemAccessDesc *d, size_t n)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_region *region = sim_region_find(va);
    bool ok = d && n && size && region && region->kind == R_MAPPED;
    for (size_t i = 0; ok && i < n; i++) ok = location_ok(&d[i].location);
    if (ok) region->flags = (unsigned)d[0].flags;
    return sim_leave(ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *where, CUdeviceptr va)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_region *region = sim_region_find(va);
    if (!flags || !where || !region || region->kind != R_MAPPED) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = region->flags;
    return sim_leave(CUDA_SUCCESS);
}
