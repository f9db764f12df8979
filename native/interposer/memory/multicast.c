/* Multicast objects. A card that joins the team costs at most a granule, which is charged for it until the object is gone.
 * Memory that is bound stays alive until it is unbound or the object is gone, whatever else happens to it: a bind is a hold
 * like a mapping (holding.c), with the object as its owner. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "memory/api_memory.h"
#include "memory/api_vmm.h"
#include "memory/devices.h"
#include "memory/granules.h"
#include "memory/holding.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MEMBER UINT64_MAX /* the place of a card's own overhead among the holds of the object */

static uint64_t owner_of(const struct fr_memory *team) { return (uint64_t)(uintptr_t)team; }

HOOK CUresult cuMulticastCreate(CUmemGenericAllocationHandle *out, const CUmulticastObjectProp *prop)
{
    struct fr_memory *team = NULL;
    CUmemGenericAllocationHandle number = 0;
    fr_numbers_enter();
    CUresult r = REAL(cuMulticastCreate)(out ? &number : NULL, prop);
    if (!r) team = fr_memory_new(FR_NO_CARD, 0, FR_NO_OBJECT);
    if (!r && (!team || !fr_handle_add(number, &team))) {
        REAL(cuMemRelease)(number);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    fr_numbers_leave();
    if (!r) *out = number;
    fr_memory_unpin(team);
    return r;
}

/* From now on the object holds the memory. */
static bool hold(struct fr_memory *team, int device, uint64_t place, uint64_t size, struct fr_memory *m)
{
    return fr_mapping_add((struct fr_mapping){.owner = owner_of(team), .device = device, .place = place, .size = size, .memory = m});
}

static CUresult join(CUmemGenericAllocationHandle number, CUdevice device)
{
    struct fr_op op;
    int card = fr_card_of(device);
    if (fr_op_begin(&op, card, FR_GRANULE)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct fr_memory *cost = fr_memory_new(card, FR_GRANULE, FR_NO_OBJECT);
    fr_numbers_enter();
    struct fr_memory *team = fr_memory_pin(number);
    CUresult r = cost ? REAL(cuMulticastAddDevice)(number, device) : CUDA_ERROR_OUT_OF_MEMORY;
    bool held = !r && team && hold(team, device, MEMBER, 0, cost);
    fr_numbers_leave();
    if (!r && team && !held) r = CUDA_ERROR_OUT_OF_MEMORY;
    if (!held && cost) cost->bytes = 0; /* given back here */
    fr_op_end(&op, held ? FR_GRANULE : 0);
    fr_memory_unpin(team);
    fr_memory_unpin(cost);
    return r;
}

HOOK CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle number, CUdevice device)
{
    CUuuid uuid;
    return REAL(cuDeviceGetUuid)(&uuid, device) ? REAL(cuMulticastAddDevice)(number, device) : join(number, device);
}

/* ---- bind ---- */

/* A call that binds memory. cuMulticastBindMem and cuMulticastBindAddr do not name the card: it is the memory's own, so that
 * unbinding finds the bind; 0 if the driver does not report it. */
struct bind {
    CUmemGenericAllocationHandle object, memory;
    CUdevice device;
    CUdeviceptr address;
    size_t at, from, size;
    unsigned long long flags;
    CUresult (*call)(const struct bind *b);
};

static CUresult bind_memory(const struct bind *b) { return REAL(cuMulticastBindMem)(b->object, b->at, b->memory, b->from, b->size, b->flags); }
static CUresult bind_memory_2(const struct bind *b) { return REAL(cuMulticastBindMem_v2)(b->object, b->device, b->at, b->memory, b->from, b->size, b->flags); }
static CUresult bind_address(const struct bind *b) { return REAL(cuMulticastBindAddr)(b->object, b->at, b->address, b->size, b->flags); }
static CUresult bind_address_2(const struct bind *b) { return REAL(cuMulticastBindAddr_v2)(b->object, b->device, b->at, b->address, b->size, b->flags); }

static CUresult run(struct bind *b, bool by_address)
{
    fr_numbers_enter();
    struct fr_memory *team = fr_memory_pin(b->object);
    struct fr_memory *m = by_address ? fr_memory_pin_at(b->address) : fr_memory_pin(b->memory);
    CUresult r = b->call(b);
    if (!r && team && m && !hold(team, b->device, b->at, b->size, m)) {
        REAL(cuMulticastUnbind)(b->object, b->device, b->at, b->size);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    fr_numbers_leave();
    fr_memory_unpin(m);
    fr_memory_unpin(team);
    return r;
}

/* The device of memory, as the driver reports it. */
static CUdevice device_of(CUmemGenericAllocationHandle memory)
{
    CUmemAllocationProp prop;
    return REAL(cuMemGetAllocationPropertiesFromHandle)(&prop, memory) || prop.location.type != CU_MEM_LOCATION_DEVICE ? 0 : prop.location.id;
}

static CUdevice device_at(CUdeviceptr address)
{
    CUmemGenericAllocationHandle memory;
    if (REAL(cuMemRetainAllocationHandle)(&memory, (void *)(uintptr_t)address)) return 0;
    CUdevice device = device_of(memory);
    REAL(cuMemRelease)(memory);
    return device;
}

HOOK CUresult cuMulticastBindMem(CUmemGenericAllocationHandle o, size_t at, CUmemGenericAllocationHandle memory, size_t from, size_t size, unsigned long long flags)
{
    struct bind b = {.object = o, .memory = memory, .device = device_of(memory), .at = at, .from = from, .size = size, .flags = flags, .call = bind_memory};
    return run(&b, false);
}

HOOK CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle o, CUdevice device, size_t at, CUmemGenericAllocationHandle memory, size_t from, size_t size,
                                    unsigned long long flags)
{
    struct bind b = {.object = o, .memory = memory, .device = device, .at = at, .from = from, .size = size, .flags = flags, .call = bind_memory_2};
    return run(&b, false);
}

HOOK CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle o, size_t at, CUdeviceptr address, size_t size, unsigned long long flags)
{
    struct bind b = {.object = o, .address = address, .device = device_at(address), .at = at, .size = size, .flags = flags, .call = bind_address};
    return run(&b, true);
}

HOOK CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle o, CUdevice device, size_t at, CUdeviceptr address, size_t size, unsigned long long flags)
{
    struct bind b = {.object = o, .address = address, .device = device, .at = at, .size = size, .flags = flags, .call = bind_address_2};
    return run(&b, true);
}

HOOK CUresult cuMulticastUnbind(CUmemGenericAllocationHandle number, CUdevice device, size_t at, size_t size)
{
    struct fr_release g;
    fr_release_begin(&g);
    fr_numbers_enter();
    struct fr_memory *team = fr_memory_pin(number);
    if (team) fr_mappings_remove(&g, owner_of(team), device, at, size);
    CUresult r = REAL(cuMulticastUnbind)(number, device, at, size);
    if (team) fr_mappings_removed(&g, owner_of(team), device, at, size, r == CUDA_SUCCESS);
    fr_numbers_leave();
    fr_release_end(&g);
    fr_memory_unpin(team);
    return r;
}
