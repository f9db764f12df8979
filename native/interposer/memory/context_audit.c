/* Remembers which contexts are known, and compares the driver's own figure for this process with the ledger (own_figure.c):
 * after every new context, and after the first use of a function of an unknown module. The first comparison is FR_DUE_MS later,
 * the next ones less often. */
#include "memory/context_audit.h"

#include "base/kernel.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "ledger/own_account.h"
#include "memory/own_figure.h"

#include "cuda_abi.h"
#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLACES 256
#define CARDS 64
#define RARELY_MS 60000

_Atomic uint32_t fr_unseen_why;
static _Atomic uintptr_t known[PLACES];
static struct { _Atomic uint32_t due_ms, last_ms, every_ms; _Atomic uint64_t extra; } audits[CARDS];

static _Atomic uintptr_t *place_of(CUcontext c) { return &known[((uintptr_t)c >> 4 ^ (uintptr_t)c >> 12) % PLACES]; }

void fr_context_known(CUcontext c) { atomic_store_explicit(place_of(c), (uintptr_t)c, memory_order_relaxed); }

bool fr_context_is_known(CUcontext c) { return atomic_load_explicit(place_of(c), memory_order_relaxed) == (uintptr_t)c; }

void fr_context_forget(CUcontext c)
{
    uintptr_t one = (uintptr_t)c;
    atomic_compare_exchange_strong(place_of(c), &one, 0);
}

void fr_context_audit_soon(int card)
{
    if (card < 0 || card >= CARDS) return;
    uint32_t now = fr_coarse_ms() | 1, at = now + FR_DUE_MS, last = atomic_load(&audits[card].last_ms);
    uint32_t next = last + atomic_load(&audits[card].every_ms);
    if (last && (int32_t)(next - at) > 0) at = next | 1;
    uint32_t none = 0;
    atomic_compare_exchange_strong(&audits[card].due_ms, &none, at);
    atomic_fetch_or(&fr_unseen_why, FR_UNSEEN_DUE);
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

void fr_context_audit_when_due(void)
{
    uint32_t now = fr_coarse_ms();
    bool more = false;
    for (int card = 0; card < fr_card_count() && card < CARDS; card++) {
        uint32_t due = atomic_load_explicit(&audits[card].due_ms, memory_order_relaxed);
        if (!due) continue;
        if ((int32_t)(now - due) < 0) more = true;
        else if (atomic_compare_exchange_strong(&audits[card].due_ms, &due, 0)) audit(card);
    }
    if (!more) atomic_fetch_and(&fr_unseen_why, ~(uint32_t)FR_UNSEEN_DUE);
}

uint64_t fr_unseen_take(int card)
{
    if (card < 0 || card >= CARDS || !atomic_load(&audits[card].extra) || atomic_load(&fr_own_account(card)->contexts) > 1) return 0;
    return atomic_exchange(&audits[card].extra, 0);
}

void fr_context_made(int card, CUcontext c)
{
    fr_contexts_add(card, 1);
    if (c) fr_context_known(c);
    fr_context_audit_soon(card);
}
