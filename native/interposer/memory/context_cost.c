/* What a context costs. The agent has measured it and says so in the limits; else it is measured here, as the difference that
 * NVML sees on the card, which neighbours may blur. Until it is known, as much as the quota has is held back, up to MOST. */
#include "api_memory.h"
#include "context.h"
#include "linear.h"

#define MOST (512ull << 20)
#define CARDS 64

struct nvml_memory { unsigned long long total, free, used; };
int nvmlInit_v2(void);
int nvmlDeviceGetHandleByUUID(const char *, void **);
int nvmlDeviceGetMemoryInfo(void *, struct nvml_memory *);

static _Atomic uint64_t measured[CARDS];

bool fr_device_exists(CUdevice device)
{
    size_t bytes;
    return !REAL(cuDeviceTotalMem_v2)(&bytes, device);
}

static bool used_on_card(int card, uint64_t *bytes)
{
    void *handle;
    struct nvml_memory m = {0};
    if (!fr_has(FR_nvmlDeviceGetMemoryInfo) || REAL(nvmlInit_v2)()) return false;
    if (REAL(nvmlDeviceGetHandleByUUID)(fr_card_uuid(card), &handle) || REAL(nvmlDeviceGetMemoryInfo)(handle, &m)) return false;
    *bytes = m.used;
    return true;
}

CUresult fr_context_reserve(struct fr_cost *cost, CUdevice device)
{
    struct fr_place at = {.card = fr_card_of(device), .device = device};
    struct fr_quota quota = {0};
    *cost = (struct fr_cost){0};
    if (at.card != FR_NO_CARD) fr_quota(at.card, &quota);
    cost->bytes = quota.context ? quota.context : at.card >= 0 && at.card < CARDS ? atomic_load(&measured[at.card]) : 0;
    CUresult r = fr_begin_here(&cost->op, &at, cost->bytes);
    if (r || cost->bytes || at.card == FR_NO_CARD) return r;
    for (uint64_t hold = MOST; hold >= FR_GRANULE && cost->op.reserved < MOST; hold /= 2) fr_more(&cost->op, hold);
    if (!cost->op.reserved) {
        fr_end(&cost->op, 0);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    cost->measured = used_on_card(at.card, &cost->before);
    return CUDA_SUCCESS;
}

bool fr_context_measure(struct fr_cost *cost)
{
    int card = cost->op.card;
    if (cost->bytes || card == FR_NO_CARD) return true;
    uint64_t after = 0;
    bool seen = cost->measured && used_on_card(card, &after) && after > cost->before;
    cost->bytes = seen ? after - cost->before : MOST;
    if (cost->bytes > 2 * MOST) cost->bytes = MOST; /* that was a neighbour */
    if (cost->bytes > cost->op.reserved && !fr_more(&cost->op, cost->bytes - cost->op.reserved)) return false;
    if (card < CARDS) atomic_store(&measured[card], cost->bytes);
    return true;
}
