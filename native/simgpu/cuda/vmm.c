/* Virtual memory management: handles, reserved addresses, mappings; export to and import from other processes, and the
 * older IPC handles. A handle's memory lives until its last reference and its last mapping are gone, in all processes. */
#include "local.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define IPC_MAGIC 0x53494d4950434d31ull

struct handle {
    struct handle *self; /* guards against numbers that are no handles */
    uint32_t card, charge;
    int device;
    bool host;
    size_t size;
    unsigned refs, maps;
    CUmemAllocationProp prop;
    struct sim_bytes *bytes;
    struct handle *next;
};

struct reservation {
    uint64_t va;
    size_t size, asked;
    struct reservation *next;
};

static struct handle *handles;
static struct reservation *reservations;

static struct handle *find(CUmemGenericAllocationHandle number)
{
    for (struct handle *h = handles; h; h = h->next)
        if ((uint64_t)(uintptr_t)h == number && h->refs) return h;
    return NULL;
}

static void drop_if_unused(struct handle *h)
{
    if (h->refs || h->maps) return;
    for (struct handle **p = &handles; *p; p = &(*p)->next)
        if (*p == h) {
            *p = h->next;
            break;
        }
    sim_give(h->charge);
    sim_bytes_drop(h->bytes);
    free(h);
}

static CUmemGenericAllocationHandle add(struct handle h)
{
    struct handle *new = malloc(sizeof *new);
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
    if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FD) return sim_leave(CUDA_ERROR_NOT_SUPPORTED); /* no fabric */
    bool host = prop->location.type != CU_MEM_LOCATION_DEVICE;
    struct handle h = {.host = host, .device = host ? -1 : prop->location.id, .size = size, .prop = *prop};
    if (!host) {
        h.card = sim.devices[h.device].card;
        h.charge = sim_take(h.card, SIM_VMM, size, size);
        if (!h.charge) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    h.bytes = sim_bytes_new(size);
    *out = h.bytes ? add(h) : 0;
    if (!*out) sim_give(h.charge);
    return sim_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle number)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct handle *h = find(number);
    if (!h) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    h->refs--;
    drop_if_unused(h);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUmemGenericAllocationHandle number)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct handle *h = find(number);
    if (!h || !out) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    *out = h->prop;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_region *region = sim_region_find((uint64_t)(uintptr_t)address);
    if (!out || !region || region->kind != R_MAPPED) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct handle *h = region->owner;
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
    struct handle *h = find(number);
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
        struct handle *h = r->owner;
        sim_region_remove(r);
        h->maps--;
        drop_if_unused(h);
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

/* ---- export and import ---- */

/* The object's number, after its charge is marked as shared and its bytes are where others find them. */
static uint64_t publish(uint32_t charge, struct sim_bytes *bytes)
{
    sim_lock(&sim.host);
    sim_share(&sim.host, charge);
    uint64_t object = sim.host.state->charges[charge - 1].object;
    sim_unlock(&sim.host);
    return sim_bytes_publish(bytes, object) ? object : 0;
}

API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle number, int type, unsigned long long flags)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct handle *h = find(number);
    bool allowed = h && (h->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FD);
    if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FD || !allowed || h->host) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    uint64_t object = publish(h->charge, h->bytes);
    char path[256];
    sim_object_path(&sim.host, object, path, sizeof path);
    int fd = object ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd < 0) return sim_leave(CUDA_ERROR_OPERATING_SYSTEM);
    fchmod(fd, 0666);
    *(int *)out = fd;
    return sim_leave(CUDA_SUCCESS);
}

/* Which object is behind a descriptor? Its file's name says it, wherever the directory is mounted. */
static uint64_t object_of(int fd)
{
    char link[64], path[300];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    const char *name = strrchr(path, '/');
    return name && !strncmp(name, "/object-", 8) && !strstr(name, "(deleted)") ? strtoull(name + 8, NULL, 10) : 0;
}

static int device_of(uint32_t card)
{
    for (int i = 0; i < sim.device_count; i++)
        if (sim.devices[i].card == card) return i;
    return -1;
}

/* Holds on to another process's object; 0 when it is gone. */
static uint32_t import(uint64_t object, enum sim_kind kind, uint32_t *card, uint64_t *size)
{
    uint32_t charge = 0;
    sim_lock(&sim.host);
    sim_reap(&sim.host);
    if (object && sim_object_find(&sim.host, object, card, size)) charge = sim_charge_import(&sim.host, *card, kind, object);
    sim_unlock(&sim.host);
    return charge;
}

API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *from, int type)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FD) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct handle h = {0};
    uint64_t object = object_of((int)(intptr_t)from), size;
    h.charge = import(object, SIM_VMM, &h.card, &size);
    h.device = h.charge ? device_of(h.card) : -1;
    if (!h.charge || h.device < 0) return sim_give(h.charge), sim_leave(CUDA_ERROR_INVALID_VALUE);
    h.size = (size_t)size;
    h.prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FD,
                                   .location = {CU_MEM_LOCATION_DEVICE, h.device}};
    h.bytes = sim_bytes_shared(object, h.size);
    *out = h.bytes ? add(h) : 0;
    if (!*out) sim_give(h.charge);
    return sim_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

/* ---- IPC handles ---- */

struct ipc {
    uint64_t magic, object, whole, offset, size;
    uint32_t process;
};

/* A small allocation shares its granule; the handle names the granule and the place in it. */
API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr p)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_region *region = sim_region_find(p);
    if (!out || !region || (region->kind != R_LINEAR && region->kind != R_SMALL)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    uint32_t charge = region->kind == R_LINEAR ? region->charge : sim_slab_charge(region);
    struct ipc h = {IPC_MAGIC, publish(charge, region->bytes), region->bytes->size, region->offset, region->size, sim.host.slot};
    if (!h.object) return sim_leave(CUDA_ERROR_OPERATING_SYSTEM);
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return sim_leave(CUDA_SUCCESS);
}

static CUresult open_ipc(CUdeviceptr *out, CUipcMemHandle handle)
{
    struct sim_ctx *c;
    struct ipc h;
    uint32_t card;
    uint64_t size;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    memcpy(&h, &handle, sizeof h);
    if (!out || h.magic != IPC_MAGIC) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (h.process == sim.host.slot) return sim_leave(CUDA_ERROR_INVALID_CONTEXT); /* not within one process */
    uint32_t charge = import(h.object, SIM_LINEAR, &card, &size);
    int device = charge ? device_of(card) : -1;
    if (device < 0) return sim_give(charge), sim_leave(CUDA_ERROR_INVALID_HANDLE);
    struct sim_region region = {.va = sim_reserve_address((size_t)h.size), .size = (size_t)h.size, .offset = (size_t)h.offset,
                                .kind = R_IPC, .ctx = c, .device = device, .charge = charge,
                                .bytes = sim_bytes_shared(h.object, (size_t)h.whole)};
    if (!region.bytes || !sim_region_add(region)) return sim_give(charge), sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *out = region.va;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle h, unsigned flags) { return (void)flags, open_ipc(out, h); }
API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle h, unsigned flags) { return (void)flags, open_ipc(out, h); }

API CUresult cuIpcCloseMemHandle(CUdeviceptr p)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_region *region = sim_region_at(p);
    if (!region || region->kind != R_IPC) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    sim_free_region(region);
    return sim_leave(CUDA_SUCCESS);
}
