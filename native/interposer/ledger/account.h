/* One account of the ledger (see account.c). An account's number is that of its slot, or 1024 + that of its object. */
#ifndef FRACTILE_ACCOUNT_H
#define FRACTILE_ACCOUNT_H

#include "ledger/shared.h"

#include "region.h"

#include <stdatomic.h>
#include <stdint.h>

#define FR_SEQUENCE_BITS 19
#define FR_SEQUENCE_MASK ((1ull << FR_SEQUENCE_BITS) - 1)
#define FR_ACCOUNT_BITS 11
#define FR_UNITS_MOST (1ull << 33) /* 4 TiB on a card: a larger value is damage */
#define FR_OBJECT_ACCOUNT FR_MAX_SLOTS

enum fr_added { FR_ADDED, FR_FULL, FR_DAMAGED };

enum fr_added fr_account_add(uint32_t number, uint32_t card, int64_t units, uint64_t limit); /* refuses if the container's sum would exceed limit */
void fr_account_recover(uint32_t number, uint32_t card);                                     /* finish or discard what its dead owner had begun */
void fr_account_move(uint32_t number, uint32_t object);                                      /* the object's units: to its own account */

static inline uint64_t fr_used_units(uint32_t card)
{
    return atomic_load_explicit(&fr_shared.cards[card].used, memory_order_acquire) >> (FR_ACCOUNT_BITS + FR_SEQUENCE_BITS);
}

static inline uint64_t fr_charged_units(struct fr_account *a)
{
    return atomic_load_explicit(&a->charged, memory_order_relaxed) >> FR_SEQUENCE_BITS;
}

#endif
