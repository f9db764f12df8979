/* Virtual memory management: physical memory is charged when it is created, on the card where it is created, and refunded when
 * its last reference and its last mapping are gone (holding.c). Addresses cost nothing. */
#include "base/compiler.h"
#include "base/message.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/process.h"
#include "memory/api_vmm.h"
#include "memory/devices.h"
#include "memory/holding.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- create ---- */

/* The answer when there is no room: that of the driver to a request that it would not grant in any case (cuMemCreate: flags must
 * be 0, the size a multiple of the granularity). The driver is not asked: it would be given a request without a reservation. */
static CUresult refuse(size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    size_t granularity = 0;
    CUresult r = REAL(cuMemGetAllocationGranularity)(&granularity, prop, 0);
    if (r) return r;
    if (flags || !size || !granularity || size % granularity) return CUDA_ERROR_INVALID_VALUE;
    if (fr_card_of_location(&prop->location) == FR_NO_CARD && fr_process_state() == FR_ENFORCE)
        fr_say(FR_SAY_CARD, "device %d is not among this container's cards: nothing can be allocated on it", fr_device_of_location(&prop->location));
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static bool remember(CUmemGenericAllocationHandle number, int card, uint64_t bytes)
{
    struct fr_memory *m = fr_memory_new(card, bytes, FR_NO_OBJECT);
    if (!m) return false;
    bool ok = fr_handle_add(number, &m);
    if (!ok) m->bytes = 0; /* the caller gives it back */
    fr_memory_unpin(m);
    return ok;
}

static CUresult create(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    if (!fr_is_on_a_card(&prop->location)) return REAL(cuMemCreate)(out, size, prop, flags);
    struct fr_op op;
    int card = fr_card_of(fr_device_of_location(&prop->location));
    if (fr_op_begin(&op, card, size)) return refuse(size, prop, flags);
    fr_numbers_enter();
    CUresult r = REAL(cuMemCreate)(out, size, prop, flags);
    if (!r && !remember(*out, card, size)) {
        REAL(cuMemRelease)(*out);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    fr_numbers_leave();
    fr_op_end(&op, r ? 0 : size);
    return r;
}

/* Another thread may change the properties, or the returned handle: the driver reads and writes our copies. */
HOOK CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    if (!out || !prop) return REAL(cuMemCreate)(out, size, prop, flags);
    CUmemAllocationProp own = *prop;
    CUmemGenericAllocationHandle made = 0;
    CUresult r = create(&made, size, &own, flags);
    if (!r) *out = made;
    return r;
}

HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle number)
{
    struct fr_release g;
    fr_release_begin(&g);
    fr_numbers_enter();
    struct fr_memory *m = fr_handle_remove(&g, number);
    CUresult r = REAL(cuMemRelease)(number);
    fr_handle_removed(&g, number, m, r == CUDA_SUCCESS);
    fr_numbers_leave();
    fr_release_end(&g);
    return r;
}

/* At this address the driver has memory on a card that is not in the table, or other memory than the table has: it is being
 * unmapped, or was mapped without the library. */
static bool is_strange(CUmemGenericAllocationHandle number, const struct fr_memory *m)
{
    CUmemAllocationProp prop;
    if (m) return m->number != number;
    return !REAL(cuMemGetAllocationPropertiesFromHandle)(&prop, number) && fr_is_on_a_card(&prop.location);
}

static CUresult retain(CUmemGenericAllocationHandle *out, void *address, struct fr_memory **m)
{
    CUresult r = REAL(cuMemRetainAllocationHandle)(out, address);
    if (r) return r;
    bool strange = is_strange(*out, *m);
    if (!strange && (!*m || fr_handle_add(*out, m))) return CUDA_SUCCESS;
    REAL(cuMemRelease)(*out);
    return strange ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
}

HOOK CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    if (!out) return REAL(cuMemRetainAllocationHandle)(out, address);
    CUmemGenericAllocationHandle number = 0;
    fr_numbers_enter();
    struct fr_memory *m = fr_memory_pin_at((CUdeviceptr)(uintptr_t)address);
    CUresult r = retain(&number, address, &m);
    fr_numbers_leave();
    if (!r) *out = number;
    fr_memory_unpin(m);
    return r;
}

/* ---- map ---- */

static CUresult map(CUdeviceptr va, size_t size, size_t offset, CUmemGenericAllocationHandle number, unsigned long long flags, struct fr_memory *m)
{
    CUresult r = REAL(cuMemMap)(va, size, offset, number, flags);
    if (r || fr_mapping_add((struct fr_mapping){.place = va, .size = size, .memory = m})) return r;
    REAL(cuMemUnmap)(va, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

HOOK CUresult cuMemMap(CUdeviceptr va, size_t size, size_t offset, CUmemGenericAllocationHandle number, unsigned long long flags)
{
    fr_numbers_enter();
    struct fr_memory *m = fr_memory_pin(number);
    CUresult r = m ? map(va, size, offset, number, flags, m) : REAL(cuMemMap)(va, size, offset, number, flags);
    fr_numbers_leave();
    fr_memory_unpin(m);
    return r;
}

/* For mappings that another thread made while this call was under way: finds out whether the call ended them, or they are
 * newer. The query holds the memory for a moment, so memory that another thread lets go of meanwhile stays charged until the
 * query is over. */
static void end_what_is_gone(struct fr_release *g, CUdeviceptr va, size_t size)
{
    struct fr_mapping b;
    CUmemGenericAllocationHandle number;
    for (uint64_t from = va; fr_mapping_next(va, size, from, &b); from = b.place + 1) {
        CUresult r = REAL(cuMemRetainAllocationHandle)(&number, (void *)(uintptr_t)b.place);
        if (!r) REAL(cuMemRelease)(number), fr_mappings_keep_one(g, b.place, number);
        if (r == CUDA_ERROR_INVALID_VALUE) fr_mapping_drop(g, &b); /* any other error proves nothing about the mapping */
        fr_memory_unpin(b.memory);
    }
}

HOOK CUresult cuMemUnmap(CUdeviceptr va, size_t size)
{
    struct fr_release g;
    fr_release_begin(&g);
    fr_mappings_remove(&g, 0, 0, va, size);
    CUresult r = REAL(cuMemUnmap)(va, size);
    fr_mappings_removed(&g, 0, 0, va, size, r == CUDA_SUCCESS);
    if (!r) { /* a call that failed has ended nothing, and what the driver says about an address then may be about something else */
        fr_numbers_enter(); /* the table now has all mappings made so far */
        end_what_is_gone(&g, va, size);
        fr_numbers_leave();
    }
    fr_release_end(&g);
    return r;
}
