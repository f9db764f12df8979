/* Finds the size of the allocation behind a handle, which no call reports. The driver maps no more of it than exists, so
 * addresses are reserved and mappings tried: a driver that can map parts of an allocation maps up to its size and not a granule
 * more; a driver that maps an allocation as a whole accepts one size. Nothing above the quota is tried, since it would be
 * refused anyway. */
#include "memory/handle_size.h"

#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "ledger/process.h"
#include "memory/api_memory.h"
#include "memory/api_vmm.h"
#include "memory/devices.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct trial {
    CUmemGenericAllocationHandle number;
    CUdeviceptr at;
    size_t granule;
};

static bool fits(const struct trial *t, uint64_t granules)
{
    if (REAL(cuMemMap)(t->at, granules * t->granule, 0, t->number, 0)) return false;
    REAL(cuMemUnmap)(t->at, granules * t->granule);
    return true;
}

/* The size in granules; 0: more than `most`. */
static uint64_t search(const struct trial *t, uint64_t most)
{
    uint64_t low = 1, high = most + 1;
    if (fits(t, most + 1)) return 0;
    if (!fits(t, 1)) {
        for (uint64_t n = 2; n <= most; n++)
            if (fits(t, n)) return n;
        return 0;
    }
    while (high - low > 1) {
        uint64_t middle = (low + high) / 2;
        if (fits(t, middle)) low = middle;
        else high = middle;
    }
    return low;
}

static uint64_t most_of(CUdevice device)
{
    struct fr_quota quota;
    size_t total = 0;
    int card = fr_card_of(device);
    REAL(cuDeviceTotalMem_v2)(&total, device);
    if (card == FR_NO_CARD || fr_process_state() != FR_ENFORCE) return total;
    fr_quota(card, &quota);
    return quota.may_hold < total ? quota.may_hold : total;
}

static bool reserve(struct trial *t, const CUmemAllocationProp *prop, uint64_t bytes, uint64_t *addresses)
{
    if (REAL(cuMemGetAllocationGranularity)(&t->granule, prop, 0) || !t->granule) return false;
    *addresses = (bytes / t->granule + 1) * t->granule;
    return !REAL(cuMemAddressReserve)(&t->at, *addresses, 0, 0, 0);
}

bool fr_handle_size(CUmemGenericAllocationHandle number, const CUmemAllocationProp *prop, uint64_t *bytes)
{
    struct trial t = {.number = number};
    uint64_t most = most_of(fr_device_of_location(&prop->location)), addresses;
    *bytes = 0;
    if (!reserve(&t, prop, most, &addresses)) return false;
    *bytes = search(&t, most / t.granule) * t.granule;
    REAL(cuMemAddressFree)(t.at, addresses);
    return *bytes != 0;
}

bool fr_handle_has_size(CUmemGenericAllocationHandle number, const CUmemAllocationProp *prop, uint64_t bytes)
{
    struct trial t = {.number = number};
    uint64_t addresses;
    if (!bytes || !reserve(&t, prop, bytes, &addresses)) return false;
    uint64_t granules = bytes / t.granule;
    bool has = granules * t.granule == bytes && fits(&t, granules) && !fits(&t, granules + 1);
    REAL(cuMemAddressFree)(t.at, addresses);
    return has;
}
