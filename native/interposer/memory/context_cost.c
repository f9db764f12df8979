/* What a context costs. The agent measures it and states it in the limits. If it does not, the cost is measured here, when this
 * process makes its first context on a card, by the driver's own figure for this process (own_figure.c). Neighbours do not
 * affect that figure, and the context is all that the process then holds. Until the cost is known, as much as is left of the
 * quota is reserved, up to MOST. If there is no figure, MOST is charged, or what the whole card took meanwhile if that is more.
 *
 * The charge is too low only in three cases:
 *   - A context is larger than the agent's figure, or than the first one of this process. FR_DUE_MS later the driver's figure, if
 *     there is one, is compared with the ledger, and what is missing is charged (context_audit.c); otherwise the node's audit
 *     finds it.
 *   - Without any figure, it is larger than MOST while a neighbour frees memory: the node's audit finds it.
 *   - Without the agent's figure, less than MOST is left of the quota and the context is larger than that: it is destroyed at
 *     once, and was above the quota until then. */
#include "memory/context_cost.h"

#include "base/message.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "ledger/process.h"
#include "memory/api_memory.h"
#include "memory/devices.h"
#include "memory/granules.h"
#include "memory/own_figure.h"

#include "cuda_abi.h"
#include "nvml_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOST (512ull << 20)
#define CARDS 64

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out);

static _Atomic uint64_t measured[CARDS];

bool fr_device_exists(CUdevice device)
{
    size_t bytes;
    return !REAL(cuDeviceTotalMem_v2)(&bytes, device);
}

static uint64_t known_size(int card)
{
    struct fr_quota quota;
    fr_quota(card, &quota);
    return quota.context ? quota.context : card < CARDS ? atomic_load(&measured[card]) : 0;
}

uint64_t fr_context_size(int card)
{
    uint64_t known = known_size(card);
    return known ? known : MOST;
}

static bool used_on_card(int card, uint64_t *bytes)
{
    nvmlDevice_t handle;
    nvmlMemory_t m = {0};
    if (!fr_driver_has(FR_nvmlDeviceGetMemoryInfo) || REAL(nvmlDeviceGetHandleByUUID)(fr_card_uuid(card), &handle)) return false;
    if (REAL(nvmlDeviceGetMemoryInfo)(handle, &m)) return false;
    *bytes = m.used;
    return true;
}

_Atomic uint32_t fr_contexts_made;

/* Reserved in one step: a call that held one part and waited for the other would wait for its own reservation. */
static CUresult reserve_all(struct fr_cost *cost, const struct fr_place *at, unsigned contexts, struct fr_retry *patience)
{
    CUresult r = fr_op_begin_at_within(&cost->op, at, contexts * cost->bytes + cost->libraries, patience);
    if (r || cost->bytes || at->card == FR_NO_CARD) return r;
    uint64_t most = contexts * MOST + cost->libraries;
    for (uint64_t hold = contexts * MOST; hold >= FR_GRANULE && cost->op.reserved < most; hold /= 2) fr_op_more(&cost->op, hold);
    if (cost->op.reserved <= cost->libraries) {
        fr_op_end(&cost->op, 0);
        fr_refusal_count(at->card);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fr_neighbours_note(at->card, &cost->neighbours);
    cost->measured = used_on_card(at->card, &cost->before);
    return CUDA_SUCCESS;
}

CUresult fr_context_reserve(struct fr_cost *costs, unsigned contexts, CUdevice device, uint64_t libraries, struct fr_retry *patience)
{
    atomic_fetch_add_explicit(&fr_contexts_made, contexts, memory_order_relaxed);
    struct fr_place at = {.card = fr_card_of(device), .device = device};
    struct fr_cost *first = &costs[0];
    *first = (struct fr_cost){.libraries = fr_op_bytes(libraries)};
    if (at.card != FR_NO_CARD) first->bytes = fr_op_bytes(known_size(at.card));
    CUresult r = reserve_all(first, &at, contexts, patience);
    for (unsigned i = 1; !r && i < contexts; i++) {
        costs[i] = *first;
        costs[i].libraries = 0;
        fr_op_split(&first->op, &costs[i].op, (first->op.reserved - first->libraries) / (contexts - i + 1));
    }
    return r;
}

/* For the first context of this process on the card: nothing else is charged for the process there. */
static uint64_t own_figure(const struct fr_cost *cost)
{
    uint64_t held, charged;
    return fr_own_figure(cost->op.card, &cost->neighbours, &held, &charged) && charged == cost->op.reserved ? held : 0;
}

static uint64_t of_card(const struct fr_cost *cost)
{
    uint64_t after;
    bool more = cost->measured && used_on_card(cost->op.card, &after) && after > cost->before + MOST;
    return more && after - cost->before <= 2 * MOST ? after - cost->before : MOST; /* more than that was a neighbour's */
}

bool fr_context_measure(struct fr_cost *cost)
{
    int card = cost->op.card;
    if (cost->bytes || card == FR_NO_CARD) return true;
    uint64_t figure = own_figure(cost);
    cost->bytes = figure ? figure : of_card(cost);
    if (figure && card < CARDS) atomic_store(&measured[card], figure); /* so the next one is refused before it is made */
    bool fits = cost->bytes <= cost->op.reserved || fr_op_more(&cost->op, cost->bytes - cost->op.reserved);
    if (!fits) fr_refusal_count(card);
    return fits;
}

CUresult fr_context_refused(CUdevice device, unsigned contexts)
{
    int card = fr_card_of(device);
    if (card == FR_NO_CARD || fr_process_state() != FR_ENFORCE) return CUDA_ERROR_OUT_OF_MEMORY; /* another line says why */
    struct fr_quota quota;
    fr_quota(card, &quota);
    uint64_t used = fr_used(card), left = used < quota.may_hold ? quota.may_hold - used : 0, needed = contexts * known_size(card);
    if (needed) fr_say(FR_SAY_CONTEXT, "a CUDA context is not made: it takes %llu MiB of the card, and %llu MiB of the quota of %llu MiB are free",
                       (unsigned long long)needed >> 20, (unsigned long long)left >> 20, (unsigned long long)quota.memory >> 20);
    else fr_say(FR_SAY_CONTEXT, "a CUDA context is not made: %llu MiB of the quota of %llu MiB are free", (unsigned long long)left >> 20, (unsigned long long)quota.memory >> 20);
    return CUDA_ERROR_OUT_OF_MEMORY;
}
