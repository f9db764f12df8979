/* NVML: which cards exist. A container sees its own cards, counted from 0 in the driver's order. Their handles are the driver's own. So
 * only functions that return a handle or an index are hooked; all others take the handle and go to the driver unchanged. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "nvml/nvml_busy.h"
#include "nvml/nvml_cards.h"

#include "nvml_abi.h"
#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

/* ---- the container's cards in the driver's order ---- */

static nvmlReturn_t real_at(unsigned index, nvmlDevice_t *out)
{
    return fr_driver_has(FR_nvmlDeviceGetHandleByIndex_v2) ? REAL(nvmlDeviceGetHandleByIndex_v2)(index, out) : REAL(nvmlDeviceGetHandleByIndex)(index, out);
}

static nvmlReturn_t real_count(unsigned *out)
{
    return fr_driver_has(FR_nvmlDeviceGetCount_v2) ? REAL(nvmlDeviceGetCount_v2)(out) : REAL(nvmlDeviceGetCount)(out);
}

/* The driver does not return the UUID of a lost card, but a lookup by that UUID reports that the card is lost. */
static int a_lost_card(const bool *seen, int cards)
{
    nvmlDevice_t device;
    for (int i = 0; i < cards; i++)
        if (!seen[i] && REAL(nvmlDeviceGetHandleByUUID)(fr_card_uuid(i), &device) == NVML_ERROR_GPU_IS_LOST) return i;
    return FR_NO_CARD;
}

static int card_at(unsigned index, const bool *seen, int cards)
{
    char uuid[96];
    nvmlDevice_t device;
    nvmlReturn_t r = real_at(index, &device);
    if (!r) r = REAL(nvmlDeviceGetUUID)(device, uuid, sizeof uuid);
    if (r == NVML_ERROR_GPU_IS_LOST) return a_lost_card(seen, cards);
    return r ? FR_NO_CARD : fr_nvml_card_named(uuid, cards);
}

static nvmlReturn_t list(int order[FR_MAX_CARDS], unsigned *count)
{
    bool seen[FR_MAX_CARDS] = {false};
    unsigned there;
    int cards = fr_card_count();
    nvmlReturn_t r = real_count(&there);
    if (r) return r;
    *count = 0;
    for (unsigned i = 0; i < there; i++) {
        int card = card_at(i, seen, cards);
        if (card == FR_NO_CARD || seen[card]) continue;
        seen[card] = true;
        order[(*count)++] = card;
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t device_count(unsigned *out)
{
    int order[FR_MAX_CARDS];
    unsigned count;
    nvmlReturn_t r = real_count(out); /* the driver reports a NULL pointer */
    if (!r) r = list(order, &count);
    if (!r) *out = count;
    return r;
}
HOOK nvmlReturn_t nvmlDeviceGetCount(unsigned *out) { return device_count(out); }
HOOK nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out) { return device_count(out); }

/* ---- handles ---- */

static nvmlReturn_t handle_of(int card, nvmlDevice_t *out)
{
    nvmlReturn_t r = REAL(nvmlDeviceGetHandleByUUID)(fr_card_uuid(card), out);
    if (!r) fr_nvml_card_remember(card, *out);
    if (!r) fr_busy_look(card);
    return r;
}

static nvmlReturn_t by_index(unsigned index, nvmlDevice_t *out)
{
    int order[FR_MAX_CARDS];
    unsigned count;
    nvmlReturn_t r = list(order, &count);
    if (r) return r;
    return !out || index >= count ? NVML_ERROR_INVALID_ARGUMENT : handle_of(order[index], out);
}
HOOK nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *out) { return by_index(index, out); }
HOOK nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out) { return by_index(index, out); }

/* Returns the card that the driver found if the container has it. Any other card looks as if it did not exist. */
static nvmlReturn_t ours_only(nvmlReturn_t r, nvmlDevice_t *out)
{
    int card;
    if (r) return r;
    r = fr_nvml_card(*out, &card);
    if (r) *out = NULL;
    else fr_busy_look(card);
    return r == NVML_ERROR_NO_PERMISSION ? NVML_ERROR_NOT_FOUND : r;
}

HOOK nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
    return ours_only(REAL(nvmlDeviceGetHandleByUUID)(uuid, out), out);
}
HOOK nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_v1_t *uuid, nvmlDevice_t *out)
{
    return ours_only(REAL(nvmlDeviceGetHandleByUUIDV)(uuid, out), out);
}
HOOK nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *out)
{
    return ours_only(REAL(nvmlDeviceGetHandleByPciBusId)(id, out), out);
}
HOOK nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *out)
{
    return ours_only(REAL(nvmlDeviceGetHandleByPciBusId_v2)(id, out), out);
}
HOOK nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *out)
{
    return ours_only(REAL(nvmlDeviceGetHandleBySerial)(serial, out), out);
}

HOOK nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *out)
{
    int order[FR_MAX_CARDS], card;
    unsigned count;
    nvmlReturn_t r = REAL(nvmlDeviceGetIndex)(device, out);
    if (!r) r = fr_nvml_card(device, &card);
    if (!r) r = list(order, &count);
    for (unsigned i = 0; !r && i < count; i++)
        if (order[i] == card) return *out = i, NVML_SUCCESS;
    return r ? r : NVML_ERROR_NOT_FOUND;
}

/* ---- lists of handles ---- */

/* The hooks fetch the whole list with one call into an array of their own, and return the container's cards. */
#define AT_MOST 256
static nvmlReturn_t hand_on(nvmlReturn_t r, nvmlDevice_t *all, unsigned there, unsigned *count, nvmlDevice_t *out)
{
    unsigned room = *count, found = 0;
    int card;
    if (r) return r;
    for (unsigned i = 0; i < there; i++) {
        if (fr_nvml_card(all[i], &card)) continue;
        if (out && found < room) out[found] = all[i];
        found++;
    }
    *count = found;
    return out && found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

HOOK nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, int level, unsigned *count, nvmlDevice_t *out)
{
    nvmlDevice_t all[AT_MOST];
    unsigned there = AT_MOST;
    if (!count) return REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, count, out);
    nvmlReturn_t r = REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, &there, all);
    return hand_on(r, all, there, count, out);
}

HOOK nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvmlDevice_t *out)
{
    nvmlDevice_t all[AT_MOST];
    unsigned there = AT_MOST;
    if (!count) return REAL(nvmlSystemGetTopologyGpuSet)(cpu, count, out);
    nvmlReturn_t r = REAL(nvmlSystemGetTopologyGpuSet)(cpu, &there, all);
    return hand_on(r, all, there, count, out);
}

HOOK nvmlReturn_t nvmlUnitGetDevices(nvmlUnit_t unit, unsigned *count, nvmlDevice_t *out)
{
    nvmlDevice_t all[AT_MOST];
    unsigned there = AT_MOST;
    if (!count) return REAL(nvmlUnitGetDevices)(unit, count, out);
    nvmlReturn_t r = REAL(nvmlUnitGetDevices)(unit, &there, all);
    return hand_on(r, all, there, count, out);
}
