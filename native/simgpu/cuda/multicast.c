/* Multicast objects: memory of several cards behind one address. Only their memory is modelled: each card that joins the team takes a granule,
 * and bound memory stays alive until it is unbound or the object is gone. Processes that hold the same object add and bind their own cards;
 * other processes do not see what they bound. */
#include "vmm.h"

#include <stdlib.h>

struct member {
    int device;
    uint32_t charge;
    struct member *next;
};

struct bind {
    int device;
    size_t offset, size;
    struct sim_handle *memory;
    struct bind *next;
};

struct sim_team {
    struct member *members;
    struct bind *binds;
};

static bool aligned(size_t a, size_t b, size_t c) { return (a | b | c) % SIM_GRANULE == 0; }

static bool prop_ok(const CUmulticastObjectProp *p)
{
    return p && p->numDevices && p->size && p->size % SIM_GRANULE == 0 && !p->flags &&
           !(p->handleTypes & ~(unsigned long long)(CU_MEM_HANDLE_TYPE_POSIX_FD | CU_MEM_HANDLE_TYPE_FABRIC));
}

API CUresult cuMulticastGetGranularity(size_t *out, const CUmulticastObjectProp *prop, int option)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !prop || !prop->numDevices || option < 0 || option > 1) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    *out = SIM_GRANULE;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMulticastCreate(CUmemGenericAllocationHandle *out, const CUmulticastObjectProp *prop)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !prop_ok(prop)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_handle h = {.multicast = true, .device = -1, .size = prop->size, .card = sim.devices[0].card,
                           .prop = {.requestedHandleTypes = (int)prop->handleTypes}};
    h.charge = sim_take(h.card, SIM_MULTICAST, 0, prop->size);
    *out = h.charge ? sim_handle_add(h) : 0;
    if (!*out) sim_give(h.charge);
    return sim_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

static struct sim_handle *object(CUmemGenericAllocationHandle number)
{
    struct sim_handle *h = sim_handle_find(number);
    if (!h || !h->multicast) return NULL;
    if (!h->team) h->team = calloc(1, sizeof *h->team);
    return h->team ? h : NULL;
}

static bool member(const struct sim_team *t, int device)
{
    for (const struct member *m = t->members; m; m = m->next)
        if (m->device == device) return true;
    return false;
}

static CUresult join(struct sim_team *t, int device)
{
    struct member *m = malloc(sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    *m = (struct member){device, sim_take(sim.devices[device].card, SIM_MULTICAST, SIM_GRANULE, 0), t->members};
    if (!m->charge) return free(m), CUDA_ERROR_OUT_OF_MEMORY;
    t->members = m;
    return CUDA_SUCCESS;
}

API CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle number, CUdevice device)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_handle *h = object(number);
    if (!h) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sim_device_valid(device)) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    if (member(h->team, device)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    return sim_leave(join(h->team, device));
}

static bool taken(const struct sim_team *t, int device, size_t offset, size_t size)
{
    for (const struct bind *b = t->binds; b; b = b->next)
        if (b->device == device && b->offset < offset + size && offset < b->offset + b->size) return true;
    return false;
}

static CUresult bind(struct sim_handle *h, int device, size_t at, struct sim_handle *memory, size_t from, size_t size)
{
    if (!h || !memory || memory->multicast || !size || !aligned(at, from, size)) return CUDA_ERROR_INVALID_VALUE;
    if (at > h->size || size > h->size - at || from > memory->size || size > memory->size - from) return CUDA_ERROR_INVALID_VALUE;
    if (!member(h->team, device)) return CUDA_ERROR_INVALID_DEVICE;
    struct bind *b = taken(h->team, device, at, size) ? NULL : malloc(sizeof *b);
    if (!b) return CUDA_ERROR_INVALID_VALUE;
    *b = (struct bind){device, at, size, memory, h->team->binds};
    h->team->binds = b;
    memory->maps++;
    return CUDA_SUCCESS;
}

#define ITS_OWN (-2) /* the card that the memory is on */

static CUresult bind_memory(CUmemGenericAllocationHandle object_number, int device, size_t at, CUmemGenericAllocationHandle number, size_t from,
                            size_t size, unsigned long long flags)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_handle *memory = sim_handle_find(number);
    if (flags || !memory) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    return sim_leave(bind(object(object_number), device == ITS_OWN ? memory->device : device, at, memory, from, size));
}

static CUresult bind_address(CUmemGenericAllocationHandle object_number, int device, size_t at, CUdeviceptr p, size_t size, unsigned long long flags)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_region *region = sim_region_find(p);
    if (flags || !region || region->kind != R_MAPPED) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    return sim_leave(bind(object(object_number), device == ITS_OWN ? region->device : device, at, region->owner, (size_t)(p - region->va), size));
}

API CUresult cuMulticastBindMem(CUmemGenericAllocationHandle o, size_t at, CUmemGenericAllocationHandle h, size_t from, size_t size, unsigned long long flags)
{
    return bind_memory(o, ITS_OWN, at, h, from, size, flags);
}

API CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle o, CUdevice d, size_t at, CUmemGenericAllocationHandle h, size_t from, size_t size, unsigned long long flags)
{
    return d < 0 ? CUDA_ERROR_INVALID_DEVICE : bind_memory(o, d, at, h, from, size, flags);
}

API CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle o, size_t at, CUdeviceptr p, size_t size, unsigned long long flags)
{
    return bind_address(o, ITS_OWN, at, p, size, flags);
}

API CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle o, CUdevice d, size_t at, CUdeviceptr p, size_t size, unsigned long long flags)
{
    return d < 0 ? CUDA_ERROR_INVALID_DEVICE : bind_address(o, d, at, p, size, flags);
}

static bool unbind_first(struct sim_team *t, int device, size_t at, size_t size)
{
    for (struct bind **p = &t->binds; *p; p = &(*p)->next) {
        struct bind *b = *p;
        if ((device >= 0 && b->device != device) || b->offset < at || b->offset + b->size > at + size) continue;
        *p = b->next;
        b->memory->maps--;
        sim_handle_drop_if_unused(b->memory);
        free(b);
        return true;
    }
    return false;
}

API CUresult cuMulticastUnbind(CUmemGenericAllocationHandle number, CUdevice device, size_t at, size_t size)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_handle *h = object(number);
    if (!h || !sim_device_valid(device) || !aligned(at, size, 0)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    bool any = false;
    while (unbind_first(h->team, device, at, size)) any = true;
    return sim_leave(any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

void sim_multicast_forget(struct sim_handle *h)
{
    if (!h->team) return;
    while (unbind_first(h->team, -1, 0, SIZE_MAX)) {}
    for (struct member *m = h->team->members, *next; m; m = next) {
        next = m->next;
        sim_give(m->charge);
        free(m);
    }
    free(h->team);
}
