/* Matches the driver's devices to the container's cards by UUID, so that neither CUDA_VISIBLE_DEVICES nor the driver's
 * numbering can give one card's limit to another. A device that the limits do not name has a quota of zero and is not shown;
 * the driver's own CUdevice values are not changed. */
#include "memory/devices.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "base/message.h"
#include "base/text.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/oom_retry.h"
#include "ledger/limits.h"
#include "ledger/process.h"
#include "ledger/shared.h"
#include "memory/api_memory.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DEVICES 64
#define PREFIX 4 /* "GPU-", "MIG-" */

static _Atomic int known[DEVICES]; /* card + 2, so 0: not looked up; 1: no card */
static _Atomic uint32_t known_in;  /* the era in which `known` was filled */

static int nibble(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : ((c | 0x20) - 'a' + 10) & 15;
}

static bool same_uuid(const char *text, const CUuuid *uuid)
{
    unsigned char bytes[16] = {0};
    unsigned count = 0;
    if (fr_bounded_length(text, PREFIX) < PREFIX) return false;
    for (const char *p = text + PREFIX; *p && count < 32; p++) {
        if (*p == '-') continue;
        bytes[count / 2] |= (unsigned char)(nibble(*p) << (count % 2 ? 0 : 4));
        count++;
    }
    return count == 32 && !memcmp(bytes, uuid->bytes, sizeof bytes);
}

/* The second version of the call names the MIG instance; the first one names its card, which the limits may name too. */
static int find_card(CUdevice device)
{
    CUuuid instance, card;
    bool has_instance = fr_driver_has(FR_cuDeviceGetUuid_v2) && !REAL(cuDeviceGetUuid_v2)(&instance, device);
    int count = fr_card_count();
    for (int i = 0; i < count && has_instance; i++)
        if (same_uuid(fr_card_uuid(i), &instance)) return i;
    bool has_card = fr_driver_has(FR_cuDeviceGetUuid) && !REAL(cuDeviceGetUuid)(&card, device);
    for (int i = 0; i < count && has_card; i++)
        if (same_uuid(fr_card_uuid(i), &card)) return i;
    return has_instance || has_card ? FR_NO_CARD : FR_NO_CARD - 1; /* the driver is not ready: query it again next time */
}

int fr_card_of(CUdevice device)
{
    if (device < 0 || fr_process_state() == FR_CLOSED) return FR_NO_CARD;
    if (unlikely(atomic_load(&known_in) != atomic_load(&fr_era))) {
        for (int i = 0; i < DEVICES; i++) atomic_store(&known[i], 0);
        atomic_store(&known_in, atomic_load(&fr_era));
    }
    int seen = device < DEVICES ? atomic_load_explicit(&known[device], memory_order_relaxed) : 0;
    if (likely(seen)) return seen - 2;
    int card = find_card(device);
    if (card < FR_NO_CARD) return FR_NO_CARD;
    if (device < DEVICES) atomic_store(&known[device], card + 2);
    return card;
}

/* A card that the limits do not name has no quota. */
CUresult fr_op_begin_at_within(struct fr_op *op, const struct fr_place *at, uint64_t worst, struct fr_retry *patience)
{
    if (likely(at->card != FR_NO_CARD)) return fr_op_begin_within(op, at->card, worst, patience);
    *op = (struct fr_op){.card = FR_NO_CARD};
    if (fr_process_state() == FR_OFF) return CUDA_SUCCESS;
    if (fr_process_state() != FR_CLOSED) fr_say(FR_SAY_CARD, "device %d is not among this container's cards: nothing can be allocated on it", at->device);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult fr_op_begin_at(struct fr_op *op, const struct fr_place *at, uint64_t worst)
{
    struct fr_retry patience = {0};
    return fr_op_begin_at_within(op, at, worst, &patience);
}

bool fr_is_on_a_card(const CUmemLocation *l)
{
    return l->type == CU_MEM_LOCATION_DEVICE || l->type == CU_MEM_LOCATION_DEVICE_LOCALITY_DOMAIN;
}

CUdevice fr_device_of_location(const CUmemLocation *l)
{
    return l->type == CU_MEM_LOCATION_DEVICE ? l->id : (l->id & 0xff); /* the other bits are the domain */
}

int fr_card_of_location(const CUmemLocation *l)
{
    return fr_is_on_a_card(l) ? fr_card_of(fr_device_of_location(l)) : FR_NO_CARD;
}

/* ---- what programs see ---- */

/* Without limits nothing can be allocated, and hiding the devices would only hide the reason. */
static bool shown(CUdevice device)
{
    return fr_process_state() != FR_ENFORCE || fr_card_of(device) != FR_NO_CARD;
}

static void tell_if_none(int mine, int all)
{
    if (!mine && all) fr_say(FR_SAY_CARD, "none of the container's cards is on this machine, and the %d that are there are hidden from it: fractile-slice show %s lists its cards", all, fr_shared.directory);
}

HOOK CUresult cuDeviceGetCount(int *out)
{
    int all = 0, mine = 0;
    CUresult r = REAL(cuDeviceGetCount)(out ? &all : NULL);
    if (r || !out) return r;
    for (int i = 0; i < all; i++) {
        CUdevice device;
        mine += !REAL(cuDeviceGet)(&device, i) && shown(device);
    }
    tell_if_none(mine, all);
    *out = mine;
    return CUDA_SUCCESS;
}

HOOK CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
    int all = 0, mine = 0;
    CUdevice device;
    if (!out || ordinal < 0 || REAL(cuDeviceGetCount)(&all)) return REAL(cuDeviceGet)(out, ordinal);
    for (int i = 0; i < all; i++) {
        CUresult r = REAL(cuDeviceGet)(&device, i);
        if (r || !shown(device) || mine++ < ordinal) continue;
        *out = device;
        return CUDA_SUCCESS;
    }
    tell_if_none(mine, all);
    return CUDA_ERROR_INVALID_DEVICE;
}

HOOK CUresult cuDeviceGetByPCIBusId(CUdevice *out, const char *id)
{
    CUdevice device = -1;
    CUresult r = REAL(cuDeviceGetByPCIBusId)(out ? &device : NULL, id);
    if (r || !out) return r;
    if (!shown(device)) return CUDA_ERROR_INVALID_DEVICE;
    *out = device;
    return CUDA_SUCCESS;
}
