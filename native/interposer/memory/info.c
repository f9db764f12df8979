/* What programs see of the memory: the container's quota appears as the whole card. TensorFlow takes all the memory that is
 * reported free, and vLLM sizes its cache by it, so the free figure must be what the next allocation can have, to the granule. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "ledger/process.h"
#include "memory/api_memory.h"
#include "memory/devices.h"
#include "memory/granules.h"
#include "memory/place.h"

#include "cuda_abi.h"

#include <stddef.h>
#include <stdint.h>

static uint64_t less(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* free = quota - used - unaccounted, never below zero and never more than the card has. */
static void as_container(int card, uint64_t *free_bytes, uint64_t *total)
{
    struct fr_quota quota = {0};
    if (card != FR_NO_CARD) fr_quota(card, &quota);
    uint64_t gone = card == FR_NO_CARD ? 0 : fr_used_shown(card);
    uint64_t rest = quota.may_hold > gone ? quota.may_hold - gone : 0;
    *total = less(quota.memory, *total);
    *free_bytes = less(less(rest / FR_GRANULE * FR_GRANULE, *free_bytes), *total);
}

HOOK CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    size_t f = 0, t = 0;
    CUdevice device;
    CUresult r = REAL(cuMemGetInfo_v2)(free_bytes ? &f : NULL, total ? &t : NULL);
    if (r) return r;
    if (fr_process_state() != FR_OFF) {
        uint64_t wide_free = free_bytes ? f : UINT64_MAX, wide_total = total ? t : UINT64_MAX;
        as_container(fr_card_here(&device), &wide_free, &wide_total);
        f = (size_t)wide_free, t = (size_t)wide_total;
    }
    if (free_bytes) *free_bytes = f;
    if (total) *total = t;
    return CUDA_SUCCESS;
}

static unsigned narrow(uint64_t n) { return n > UINT32_MAX ? UINT32_MAX : (unsigned)n; }

HOOK CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
    unsigned f = 0, t = 0;
    CUdevice device;
    CUresult r = REAL(cuMemGetInfo)(free_bytes ? &f : NULL, total ? &t : NULL);
    if (r) return r;
    if (fr_process_state() != FR_OFF) { /* the driver's own figures end at 4 GiB, which means "at least" */
        uint64_t wide_free = f == UINT32_MAX || !free_bytes ? UINT64_MAX : f, wide_total = t == UINT32_MAX || !total ? UINT64_MAX : t;
        as_container(fr_card_here(&device), &wide_free, &wide_total);
        f = narrow(wide_free), t = narrow(wide_total);
    }
    if (free_bytes) *free_bytes = f;
    if (total) *total = t;
    return CUDA_SUCCESS;
}

static uint64_t quota_of(CUdevice device)
{
    struct fr_quota quota = {0};
    int card = fr_card_of(device);
    if (card != FR_NO_CARD) fr_quota(card, &quota);
    return quota.memory;
}

HOOK CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device)
{
    CUresult r = REAL(cuDeviceTotalMem_v2)(out, device);
    if (!r && out && fr_process_state() != FR_OFF) *out = (size_t)less(quota_of(device), *out);
    return r;
}

HOOK CUresult cuDeviceTotalMem(unsigned *out, CUdevice device)
{
    CUresult r = REAL(cuDeviceTotalMem)(out, device);
    if (!r && out && fr_process_state() != FR_OFF) *out = narrow(less(quota_of(device), *out == UINT32_MAX ? UINT64_MAX : *out));
    return r;
}
