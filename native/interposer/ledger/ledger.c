/* What this process holds, and whether more fits. The threads of the process take turns at its account of a card for the few
 * instructions of an operation; no lock is held while the driver works. */
#include "ledger/ledger.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "base/point.h"
#include "ledger/account.h"
#include "ledger/frees.h"
#include "ledger/limits_page.h"
#include "ledger/oom_retry.h"
#include "ledger/own_account.h"
#include "ledger/process.h"
#include "ledger/reap.h"
#include "ledger/shared.h"

#include "cuda_abi.h"
#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LOOK_EVERY_MS 30

static uint64_t units_of(uint64_t bytes)
{
    return bytes > FR_UNITS_MOST * FR_UNIT_BYTES ? FR_UNITS_MOST + 1 : (bytes + FR_UNIT_BYTES - 1) / FR_UNIT_BYTES;
}

static bool counts(int card) /* does it have an account? */
{
    return fr_process_join() && card >= 0 && card < (int)fr_shared.card_count;
}

void fr_refusal_count(int card)
{
    if (counts(card)) atomic_fetch_add_explicit(&fr_shared.cards[card].refusals, 1, memory_order_relaxed);
}

CUresult fr_op_begin_within(struct fr_op *op, int card, uint64_t worst, struct fr_retry *patience)
{
    uint64_t units = units_of(worst);
    op->card = FR_NO_CARD;
    op->reserved = 0;
    if (unlikely(!counts(card))) return fr_isolation_is_off() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    /* A request for 0 bytes is always granted, even above the quota: the caller may ask for more inside the call, and hold what
     * others wait for. */
    if (units && unlikely(!fr_reserve(card, units)) && !fr_reserve_with_retry(card, units, patience)) {
        fr_refusal_count(card);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->card = card;
    op->reserved = units * FR_UNIT_BYTES;
    return CUDA_SUCCESS;
}

CUresult fr_op_begin(struct fr_op *op, int card, uint64_t worst)
{
    struct fr_retry patience = {0};
    return fr_op_begin_within(op, card, worst, &patience);
}

bool fr_op_try(struct fr_op *op, int card, uint64_t worst)
{
    *op = (struct fr_op){.card = FR_NO_CARD};
    if (unlikely(!counts(card))) return fr_isolation_is_off();
    op->card = card;
    if (!worst || likely(fr_op_more(op, worst))) return true;
    op->card = FR_NO_CARD;
    return false;
}

bool fr_op_more(struct fr_op *op, uint64_t bytes)
{
    uint64_t units = units_of(bytes);
    if (op->card < 0) return true;
    if (!fr_reserve(op->card, units)) {
        fr_reap_when_due(1); /* a call near the quota may try a dozen pools in turn */
        if (!fr_reserve(op->card, units)) return false;
    }
    op->reserved += units * FR_UNIT_BYTES;
    return true;
}

uint64_t fr_op_bytes(uint64_t bytes) { return units_of(bytes) * FR_UNIT_BYTES; }

void fr_op_split(struct fr_op *op, struct fr_op *part, uint64_t bytes)
{
    uint64_t units = units_of(bytes), all = op->reserved / FR_UNIT_BYTES;
    *part = (struct fr_op){.card = op->card, .reserved = (units < all ? units : all) * FR_UNIT_BYTES};
    op->reserved -= part->reserved;
}

static void raise_peak(int card)
{
    struct fr_region_card *c = &fr_shared.cards[card];
    uint64_t used = fr_used_units((uint32_t)card), seen = atomic_load_explicit(&c->peak, memory_order_relaxed);
    while (unlikely(seen < used) && !atomic_compare_exchange_weak_explicit(&c->peak, &seen, used, memory_order_relaxed, memory_order_relaxed)) {}
}

void fr_op_end(struct fr_op *op, uint64_t kept)
{
    if (op->card < 0) return;
    uint64_t reserved = op->reserved / FR_UNIT_BYTES, units = units_of(kept);
    int card = op->card;
    op->card = FR_NO_CARD;
    if (units < reserved) fr_own_account_change(card, (int64_t)units - (int64_t)reserved, 0, -(int64_t)reserved);
    else fr_own_account_slack(card, -(int64_t)reserved);
    if (unlikely(units > reserved)) fr_charge(card, (units - reserved) * FR_UNIT_BYTES); /* the caller's worst case was too small */
    if (units) raise_peak(card);
}

void fr_free_begin(struct fr_op *op, int card)
{
    op->reserved = 0;
    op->card = counts(card) ? card : FR_NO_CARD;
    if (op->card >= 0) op->epoch = fr_frees_begin(&fr_own_account(card)->frees);
}

void fr_free_most(struct fr_op *op, uint64_t bytes)
{
    uint64_t units = units_of(bytes);
    if (op->card < 0) return;
    fr_own_account_slack(op->card, (int64_t)units);
    op->reserved += units * FR_UNIT_BYTES;
}

void fr_free_end(struct fr_op *op, uint64_t bytes)
{
    if (op->card < 0) return;
    int card = op->card;
    int64_t slack = (int64_t)(op->reserved / FR_UNIT_BYTES);
    op->card = FR_NO_CARD;
    if (bytes) fr_own_account_change(card, -(int64_t)units_of(bytes), 0, -slack);
    else fr_own_account_slack(card, -slack);
    FR_POINT();
    fr_frees_end(&fr_own_account(card)->frees, op->epoch);
}

void fr_charge(int card, uint64_t bytes)
{
    if (!bytes || !counts(card)) return;
    fr_own_account_add(card, (int64_t)units_of(bytes), FR_UNITS_MOST);
    raise_peak(card);
}

void fr_slack_add(int card, int64_t bytes)
{
    int64_t units = bytes / (int64_t)FR_UNIT_BYTES;
    if (bytes && counts(card)) fr_own_account_slack(card, units);
}

uint64_t fr_used(int card)
{
    if (!fr_process_attach() || card < 0 || card >= (int)fr_shared.card_count) return 0;
    fr_reap_when_due(LOOK_EVERY_MS);
    uint64_t units = fr_used_units((uint32_t)card);
    return (units < FR_UNITS_MOST ? units : FR_UNITS_MOST) * FR_UNIT_BYTES;
}

bool fr_has_room(int card, uint64_t bytes)
{
    if (unlikely(!counts(card))) return false;
    uint64_t most = fr_limits_may_hold(card) / FR_UNIT_BYTES, units = units_of(bytes);
    return units <= most && fr_used_units((uint32_t)card) <= most - units;
}

/* What a query by the program returns. Programs may run one after the other: each would see what the one before held, and size
 * itself by the rest. So the first query reaps dead processes at once. */
uint64_t fr_used_shown(int card)
{
    static _Atomic uint32_t looked; /* era of the last search, plus 1 */
    uint32_t era = atomic_load_explicit(&fr_era, memory_order_relaxed) + 1;
    if (unlikely(atomic_load_explicit(&looked, memory_order_relaxed) != era)) {
        atomic_store_explicit(&looked, era, memory_order_relaxed);
        if (fr_process_attach()) fr_reap();
    }
    return fr_used(card);
}

uint64_t fr_used_here(int card)
{
    return counts(card) ? fr_charged_units(fr_own_account(card)) * FR_UNIT_BYTES : 0;
}

void fr_contexts_add(int card, int change)
{
    if (counts(card)) atomic_fetch_add_explicit(&fr_own_account(card)->contexts, (uint32_t)change, memory_order_relaxed);
}
