/* What the driver made without the library. The runtime library makes primary contexts and, before CUDA 12, loads modules
 * through private tables (cuGetExportTable). Those are passed on as they are: the runtime proves by a hash over their addresses
 * that the driver is the vendor's, so a replacement table would make the runtime stop. Instead, from the first returned table
 * on, calls that allocate, load or query look for anything that is not charged, and charge it, even above the quota:
 *
 *   the current context    known by one look into a small table; an unknown one is charged at once
 *   primary contexts       of devices where none is charged: looked for once in every tick of the coarse clock (4 ms)
 *   modules, the rest      the driver's own figure for this process is compared with the ledger (own_figure.c): after the first
 *                          use of a function whose module is not known, and after every new context and every load of code;
 *                          FR_DUE_MS later, then less often
 *
 * What none of these finds (no figure, and no further call) is left to the node's audit. */
#include "memory/unseen.h"

#include "base/compiler.h"
#include "base/kernel.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/own_account.h"
#include "ledger/records.h"
#include "memory/api_memory.h"
#include "memory/context_audit.h"
#include "memory/context_cost.h"
#include "memory/devices.h"
#include "memory/primary.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DEVICES 64

static _Atomic uint32_t last_tick;
static struct fr_lock lock;

/* ---- contexts ---- */

static void give_back(int card, uint64_t bytes)
{
    struct fr_op op;
    fr_free_begin(&op, card);
    fr_free_end(&op, bytes);
}

/* Charges first: a thread that booked it before this one has charged it, too, and then this charge goes back. */
static void charge_primary(CUdevice device, int card)
{
    uint64_t bytes = fr_context_size(card);
    fr_charge(card, bytes);
    if (fr_primary_claim(device, card, bytes)) fr_context_made(card, NULL);
    else give_back(card, bytes);
}

static void charge_context(CUcontext c, int card)
{
    uint64_t bytes = fr_context_size(card);
    struct fr_record r = {.class = FR_CONTEXT, .card = card, .object = FR_NO_OBJECT, .key = (uintptr_t)c, .bytes = bytes};
    struct fr_record other;
    fr_charge(card, bytes);
    fr_lock(&lock);
    bool known = fr_record_find(FR_CONTEXT, r.key, &other), first = !known && fr_record_put(r);
    fr_unlock(&lock);
    if (first) fr_context_made(card, c);
    else if (known) give_back(card, bytes); /* without memory for the record it stays charged */
}

static void meet(CUcontext c, CUdevice device)
{
    struct fr_record r;
    int card = fr_card_of(device);
    if (card == FR_NO_CARD) fr_escape(); /* not the container's card: nothing can be charged for it */
    else {
        if (fr_primary_unseen(device)) charge_primary(device, card);
        if (!fr_record_find(FR_CONTEXT, (uintptr_t)c, &r) && !fr_primary_is(device, c)) charge_context(c, card);
    }
    fr_context_known(c);
}

static void look_at_primaries(void)
{
    int count = 0;
    if (REAL(cuDeviceGetCount)(&count)) return;
    for (CUdevice d = 0; d < count && d < DEVICES; d++) {
        int card = fr_card_of(d);
        if (card != FR_NO_CARD && fr_primary_unseen(d)) charge_primary(d, card);
    }
}

void fr_unseen_look(CUdevice device)
{
    CUcontext c = NULL;
    uint32_t why = atomic_load_explicit(&fr_unseen_why, memory_order_relaxed), now = fr_coarse_ms();
    if (why & FR_UNSEEN_TABLES) {
        if (!REAL(cuCtxGetCurrent)(&c) && c && unlikely(!fr_context_is_known(c))) meet(c, device);
        if (atomic_load_explicit(&last_tick, memory_order_relaxed) != now) {
            atomic_store_explicit(&last_tick, now, memory_order_relaxed);
            look_at_primaries();
        }
    }
    if (unlikely(why & FR_UNSEEN_DUE)) fr_context_audit_when_due();
}

/* ---- functions ---- */

static void look_at_module(CUfunction f)
{
    CUmodule module = NULL;
    CUdevice device;
    struct fr_record r;
    if (REAL(cuCtxGetDevice)(&device)) return;
    fr_unseen_look(device);
    if (!fr_driver_has(FR_cuFuncGetModule) || REAL(cuFuncGetModule)(&module, f) || fr_record_find(FR_MODULE, (uintptr_t)module, &r)) return;
    fr_context_audit_soon(fr_card_of(device));
}

void fr_unseen_function(CUfunction f)
{
    if (atomic_load_explicit(&fr_unseen_why, memory_order_relaxed) & FR_UNSEEN_TABLES) look_at_module(f);
}

/* ---- private tables. The runtime library cannot work without them, so they are passed on as they are. Some of their functions
 * make contexts, load modules or reach a heap past every hook: the code above looks for their results. Two tables that the
 * runtime itself never requests serve no other purpose: a request for one of these is counted. ---- */

CUresult cuGetExportTable(const void **out, const CUuuid *id);

static bool goes_past_us(const CUuuid *id)
{
    static const unsigned char context_creation[] = {0x0c, 0xa5, 0x0b, 0x8c}, heap[] = {0x19, 0x5b, 0xcb, 0xf4};
    return !memcmp(id->bytes, context_creation, 4) || !memcmp(id->bytes, heap, 4);
}

HOOK CUresult cuGetExportTable(const void **out, const CUuuid *id)
{
    CUresult result = REAL(cuGetExportTable)(out, id);
    if (result == CUDA_SUCCESS) atomic_fetch_or(&fr_unseen_why, FR_UNSEEN_TABLES);
    if (result == CUDA_SUCCESS && id && goes_past_us(id)) fr_escape();
    return result;
}
