/* NVML: memory information. The container's quota is shown as the memory of the card. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "ledger/limits_page.h"
#include "ledger/process.h"
#include "nvml/nvml_cards.h"

#include "nvml_abi.h"

#include <stdint.h>

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

struct share {
    uint64_t total, used, free;
};

/* Total and free are never more than the card has. Used is never more than the quota, even while a lowered quota is below the memory held:
 * programs compute total - used, which must not become negative. Without a region all values are zero, because nothing can be allocated. */
static struct share share_of(int card, uint64_t total_on_card, uint64_t free_on_card)
{
    struct fr_quota quota = {0};
    if (fr_process_attach()) fr_quota(card, &quota);
    uint64_t total = least(quota.memory, total_on_card), used = least(fr_used_shown(card) + quota.unaccounted, total);
    return (struct share){total, used, least(total - used, free_on_card)};
}

HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    int card;
    nvmlReturn_t r = fr_nvml_card(device, &card);
    if (r) return r;
    r = REAL(nvmlDeviceGetMemoryInfo)(device, out);
    if (r || fr_isolation_is_off()) return r;
    struct share share = share_of(card, out->total, out->free);
    *out = (nvmlMemory_t){share.total, share.free, share.used};
    return NVML_SUCCESS;
}

HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    int card;
    nvmlReturn_t r = fr_nvml_card(device, &card);
    if (r) return r;
    if (out && out->version != NVML_VERSION(nvmlMemory_v2_t, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    r = REAL(nvmlDeviceGetMemoryInfo_v2)(device, out);
    if (r || fr_isolation_is_off()) return r;
    struct share share = share_of(card, out->total, out->free);
    *out = (nvmlMemory_v2_t){out->version, share.total, 0, share.free, share.used};
    return NVML_SUCCESS;
}

/* BAR1 is the window through which the host sees the card's memory. The amount in use would reveal the work of other containers. */
HOOK nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
    int card;
    nvmlReturn_t r = fr_nvml_card(device, &card);
    if (r) return r;
    r = REAL(nvmlDeviceGetBAR1MemoryInfo)(device, out);
    if (r || fr_isolation_is_off()) return r;
    struct share share = share_of(card, UINT64_MAX, UINT64_MAX);
    uint64_t total = least(out->bar1Total, share.total), used = least(least(out->bar1Used, share.used), total);
    *out = (nvmlBAR1Memory_t){total, total - used, used};
    return NVML_SUCCESS;
}

/* Returns the quota, even if the driver does not support limits: the program needs to know how much it may allocate. */
HOOK nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *out)
{
    int card;
    nvmlReturn_t r = fr_nvml_card(device, &card);
    if (r) return r;
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    struct share share = share_of(card, UINT64_MAX, UINT64_MAX);
    *out = (nvmlGetMemoryLimits_v1_t){out->nameSpace, share.total, share.total, share.used};
    return NVML_SUCCESS;
}
