/* What the driver made past our functions. The runtime library makes primary contexts and, before CUDA 12, loads modules through
 * private tables (cuGetExportTable). Those are handed on as they are: the runtime proves by a hash over their addresses that the
 * driver is the vendor's, so a table of ours in their place would end it. Instead, from the first table that was handed out on,
 * calls that allocate, load or ask look whether something is there that is not charged, and charge it, also above the quota:
 *
 *   the current context    known by one look into a small table; one that is not known is charged at once
 *   primary contexts       of devices where none is charged, asked for once in every tick of the coarse clock (4 ms)
 *   modules, the rest      the driver's own figure for this process against the ledger (own_figure.c): after the first use of a
 *                          function whose module is not known, and after every new context; FR_DUE_MS later, then less often
 *
 * What none of these finds (no figure, and no further call) is left to the node's audit. */
#include "memory/unseen.h"

#include "base/compiler.h"
#include "base/kernel.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "ledger/objects.h"
#include "ledger/own_account.h"
#include "ledger/records.h"
#include "memory/api_memory.h"
#include "memory/context_audit.h"
#include "memory/context_buffers.h"
#include "memory/context_cost.h"
#include "memory/devices.h"
#include "memory/own_figure.h"
#include "memory/place.h"
#include "memory/primary.h"

#include "cuda_abi.h"
#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TABLES = 1, DUE = 2 };
#define PLACES 256
#define CARDS 64
#define DEVICES 64
#define RARELY_MS 60000

_Atomic uint32_t fr_unseen_why;
static _Atomic uintptr_t known[PLACES];
static _Atomic uint32_t last_tick;
static struct fr_lock lock;

static struct { _Atomic uint32_t due_ms, last_ms, every_ms; _Atomic uint64_t extra; } audits[CARDS];

static _Atomic uintptr_t *place_of(CUcontext c) { return &known[((uintptr_t)c >> 4 ^ (uintptr_t)c >> 12) % PLACES]; }

void fr_context_known(CUcontext c) { atomic_store_explicit(place_of(c), (uintptr_t)c, memory_order_relaxed); }

void fr_context_forget(CUcontext c)
{
    uintptr_t one = (uintptr_t)c;
    atomic_compare_exchange_strong(place_of(c), &one, 0);
}

void fr_private_tables_given(void) { atomic_fetch_or(&fr_unseen_why, TABLES); }

/* ---- the driver's figure against the ledger ---- */

static void schedule(int card)
{
    if (card < 0 || card >= CARDS) return;
    uint32_t now = fr_coarse_ms() | 1, at = now + FR_DUE_MS, last = atomic_load(&audits[card].last_ms);
    uint32_t next = last + atomic_load(&audits[card].every_ms);
    if (last && (int32_t)(next - at) > 0) at = next | 1;
    uint32_t none = 0;
    atomic_compare_exchange_strong(&audits[card].due_ms, &none, at);
    atomic_fetch_or(&fr_unseen_why, DUE);
}

static void audit(int card)
{
    uint64_t held, charged;
    uint32_t every = atomic_load(&audits[card].every_ms);
    bool found = fr_own_figure(card, NULL, &held, &charged) && held > charged;
    atomic_store(&audits[card].last_ms, fr_coarse_ms() | 1);
    atomic_store(&audits[card].every_ms, found || !every ? FR_DUE_MS : every < RARELY_MS ? 2 * every : RARELY_MS);
    if (!found) return;
    fr_charge(card, held - charged);
    atomic_fetch_add(&audits[card].extra, held - charged);
}

static void audit_when_due(void)
{
    uint32_t now = fr_coarse_ms();
    bool more = false;
    for (int card = 0; card < fr_card_count() && card < CARDS; card++) {
        uint32_t due = atomic_load_explicit(&audits[card].due_ms, memory_order_relaxed);
        if (!due) continue;
        if ((int32_t)(now - due) < 0) more = true;
        else if (atomic_compare_exchange_strong(&audits[card].due_ms, &due, 0)) audit(card);
    }
    if (!more) atomic_fetch_and(&fr_unseen_why, ~(uint32_t)DUE);
}

uint64_t fr_unseen_take(int card)
{
    if (card < 0 || card >= CARDS || !atomic_load(&audits[card].extra) || atomic_load(&fr_own_account(card)->contexts) > 1) return 0;
    return atomic_exchange(&audits[card].extra, 0);
}

/* ---- contexts ---- */

void fr_context_made(int card, CUcontext c)
{
    fr_contexts_add(card, 1);
    if (c) fr_context_known(c);
    schedule(card);
}

static void give_back(int card, uint64_t bytes)
{
    struct fr_op op;
    fr_free_begin(&op, card);
    fr_free_end(&op, bytes);
}

/* Charged first: who books it before us has charged it, too, and then ours goes back. */
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
    bool first = !fr_record_find(FR_CONTEXT, r.key, &other) && fr_record_put(r);
    fr_unlock(&lock);
    if (first) fr_context_made(card, c);
    else give_back(card, bytes);
}

static void meet(CUcontext c, CUdevice device)
{
    struct fr_record r;
    int card = fr_card_of(device);
    if (card == FR_NO_CARD) fr_escape(); /* a card of others: nothing can be charged for it */
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
    if (why & TABLES) {
        if (!REAL(cuCtxGetCurrent)(&c) && c && unlikely(atomic_load_explicit(place_of(c), memory_order_relaxed) != (uintptr_t)c)) meet(c, device);
        if (atomic_load_explicit(&last_tick, memory_order_relaxed) != now) {
            atomic_store_explicit(&last_tick, now, memory_order_relaxed);
            look_at_primaries();
        }
    }
    if (unlikely(why & DUE)) audit_when_due();
}

/* ---- functions ---- */

static void look_at_module(CUfunction f)
{
    CUmodule module = NULL;
    CUdevice device;
    struct fr_record r;
    int card = fr_card_here(&device);
    if (!fr_driver_has(FR_cuFuncGetModule) || REAL(cuFuncGetModule)(&module, f) || fr_record_find(FR_MODULE, (uintptr_t)module, &r)) return;
    schedule(card);
}

CUresult fr_function_first_use(CUfunction f)
{
    if (atomic_load_explicit(&fr_unseen_why, memory_order_relaxed) & TABLES) look_at_module(f);
    return fr_stack_for(f);
}
