/* Memory shared between processes: handles exported as descriptors and as fabric handles, and the older IPC handles. */
#include "vmm.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define IPC_MAGIC 0x53494d4950434d31ull
#define FABRIC_MAGIC 0x53494d4641423031ull

/* Marks the charge as shared, moves its bytes to a file that other processes can map, and returns the object's number. */
uint64_t sim_publish(uint32_t charge, struct sim_bytes *bytes)
{
    sim_lock(&sim.host);
    sim_share(&sim.host, charge);
    uint64_t object = sim.host.state->charges[charge - 1].object;
    sim_unlock(&sim.host);
    return sim_bytes_publish(bytes, object) ? object : 0;
}

/* Both forms of a handle name an object: a file with that number in the host's directory. */
struct fabric {
    uint64_t magic, object;
    char unused[48];
};

static uint64_t publish_handle(struct sim_handle *h)
{
    if (h->bytes) return sim_publish(h->charge, h->bytes);
    sim_lock(&sim.host); /* a multicast object has no bytes of its own */
    sim_share(&sim.host, h->charge);
    uint64_t object = sim.host.state->charges[h->charge - 1].object;
    sim_unlock(&sim.host);
    return object;
}

/* The descriptor keeps the memory alive until its last copy is closed. */
CUresult sim_export_descriptor(int *out, uint64_t object)
{
    char path[256];
    sim_object_path(&sim.host, object, path, sizeof path);
    int fd = object ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    fchmod(fd, 0666);
    if (!sim_descriptor_mark(fd)) return close(fd), CUDA_ERROR_OPERATING_SYSTEM;
    *out = fd;
    return CUDA_SUCCESS;
}

static CUresult export_fabric(struct fabric *out, uint64_t object)
{
    struct fabric f = {.magic = FABRIC_MAGIC, .object = object};
    if (object) memcpy(out, &f, sizeof f);
    return object ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle number, int type, unsigned long long flags)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_handle *h = sim_handle_find(number);
    bool known = type == CU_MEM_HANDLE_TYPE_POSIX_FD || type == CU_MEM_HANDLE_TYPE_FABRIC;
    if (!out || flags || !h || !known || !(h->prop.requestedHandleTypes & type) || h->host) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    uint64_t object = publish_handle(h);
    return sim_leave(type == CU_MEM_HANDLE_TYPE_FABRIC ? export_fabric(out, object) : sim_export_descriptor(out, object));
}

/* The object behind a descriptor, from its file's name, wherever the directory is mounted. */
uint64_t sim_object_of(int fd)
{
    char link[64], path[300];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    const char *name = strrchr(path, '/');
    return name && !strncmp(name, "/object-", 8) && !strstr(name, "(deleted)") ? strtoull(name + 8, NULL, 10) : 0;
}

int sim_device_of(uint32_t card)
{
    for (int i = 0; i < sim.device_count; i++)
        if (sim.devices[i].card == card) return i;
    return -1;
}

/* Charges this process as a holder of another process's object; 0: the object is gone. */
uint32_t sim_import(uint64_t object, enum sim_kind *kind, uint32_t *card, uint64_t *size)
{
    uint32_t charge = 0;
    sim_lock(&sim.host);
    sim_reap(&sim.host);
    if (object && sim_object_find(&sim.host, object, kind, card, size)) charge = sim_charge_import(&sim.host, *card, *kind, object, *size);
    sim_unlock(&sim.host);
    return charge;
}

static CUresult import_handle(CUmemGenericAllocationHandle *out, uint64_t object, int type)
{
    struct sim_handle h = {0};
    enum sim_kind kind = SIM_VMM;
    uint64_t size;
    h.charge = sim_import(object, &kind, &h.card, &size);
    h.device = h.charge ? sim_device_of(h.card) : -1;
    if (!h.charge || h.device < 0) return sim_give(h.charge), CUDA_ERROR_INVALID_VALUE;
    h.size = (size_t)size;
    h.multicast = kind == SIM_MULTICAST;
    h.prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = type, .location = {CU_MEM_LOCATION_DEVICE, h.device}};
    if (!h.multicast) h.bytes = sim_bytes_shared(object, h.size);
    *out = h.bytes || h.multicast ? sim_handle_add(h) : 0;
    if (!*out) sim_give(h.charge);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *from, int type)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct fabric f;
    bool fabric = type == CU_MEM_HANDLE_TYPE_FABRIC;
    if (!out || (fabric && !from) || (!fabric && type != CU_MEM_HANDLE_TYPE_POSIX_FD)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!fabric) return sim_leave(import_handle(out, sim_object_of((int)(intptr_t)from), type));
    memcpy(&f, from, sizeof f);
    return sim_leave(f.magic == FABRIC_MAGIC ? import_handle(out, f.object, type) : CUDA_ERROR_INVALID_HANDLE);
}

/* ---- IPC handles ---- */

struct ipc {
    uint64_t magic, object, whole, offset, size;
    uint32_t process, unused; /* no padding, so that the same allocation gives the same bytes */
    uint64_t check;           /* a driver knows its handles: one with other bytes is none of them */
};

static uint64_t check_of(const struct ipc *h)
{
    uint64_t words[sizeof *h / 8], sum = IPC_MAGIC;
    memcpy(words, h, sizeof words);
    for (size_t i = 0; i < offsetof(struct ipc, check) / 8; i++) sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15ull, sum ^= sum >> 31;
    return sum;
}

/* A small allocation shares its granule. The handle names the granule and the offset in it. */
API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr p)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_region *region = sim_region_find(p);
    if (!out || !region || (region->kind != R_LINEAR && region->kind != R_SMALL)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    uint32_t charge = region->kind == R_LINEAR ? region->charge : sim_slab_charge(region);
    struct ipc h = {IPC_MAGIC, sim_publish(charge, region->bytes), region->bytes->size, region->offset, region->size, sim.host.slot, 0, 0};
    h.check = check_of(&h);
    if (!h.object) return sim_leave(CUDA_ERROR_OPERATING_SYSTEM);
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return sim_leave(CUDA_SUCCESS);
}

/* A descriptor of addresses (dma-buf) keeps the memory behind them, as an exported handle does. Here the range lies in one
 * allocation or mapping. */
API CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr p, size_t size, int type, unsigned long long flags)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_region *region = sim_region_find(p);
    bool whole = region && size && p - region->va < region->size && size <= region->size - (p - region->va);
    if (!out || !whole || type != 1 || flags > 1) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    switch (region->kind) {
    case R_LINEAR: return sim_leave(sim_export_descriptor(out, sim_publish(region->charge, region->bytes)));
    case R_SMALL: return sim_leave(sim_export_descriptor(out, sim_publish(sim_slab_charge(region), region->bytes)));
    case R_MAPPED: return sim_leave(sim_export_descriptor(out, publish_handle(region->owner)));
    default: return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
}

static CUresult open_ipc(CUdeviceptr *out, CUipcMemHandle handle)
{
    struct sim_ctx *c;
    struct ipc h;
    uint32_t card;
    uint64_t size;
    enum sim_kind kind;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    memcpy(&h, &handle, sizeof h);
    if (!out || h.magic != IPC_MAGIC || h.check != check_of(&h)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (h.process == sim.host.slot) return sim_leave(CUDA_ERROR_INVALID_CONTEXT); /* not allowed within one process */
    uint32_t charge = sim_import(h.object, &kind, &card, &size);
    int device = charge ? sim_device_of(card) : -1;
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
