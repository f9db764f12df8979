/* The accounts, and how they survive a kill. This is the hard part of the ledger: many processes change one sum, any of them
 * may be killed at any instruction, and the processes that come later must know exactly which changes the dead one had made.
 *
 *      used     (a card's sum)         units | account that changed it last | that account's sequence
 *      charged  (an account's part)    units | sequence of its last finished operation
 *      intent                          the operation that it began last, with its sequence q
 *      applied                         its latest operation that another account has seen applied
 *
 * An operation: 1. intent = (change, q)   2. compare-and-swap used from (v, s', q') to (v + change, me, q)
 *               3. charged = (value + change, q)
 * Before step 2 overwrites the mark (s', q'), the process makes sure that account s' has a record of that operation: either s'
 * has done step 3, or its `applied` is q'. So after the owner of an account has died: if `charged` has the sequence of
 * `intent`, no operation was left unfinished; otherwise operation q took place exactly if `used` carries the mark (account, q)
 * or `applied` is q. The process that recovers the account may die as well: recovery is itself a single store.
 *
 * Sequences have 19 bits and wrap around. An old q in `applied` must not be mistaken for a new one, so the owner writes a fresh
 * value there every 2^17 operations. The remaining bits of that word count its changes, so that a compare-and-swap that was
 * delayed across such a refresh fails. An account has one writer at a time (its owner under the process's lock, or the reaper). */
#include "ledger/account.h"

#include "base/point.h"
#include "ledger/shared.h"

#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MARK_SHIFT FR_SEQUENCE_BITS
#define UNITS_SHIFT (FR_ACCOUNT_BITS + FR_SEQUENCE_BITS)
#define INTENT_UNITS_BITS 34
#define REFRESH_MASK ((1ull << 17) - 1)

static struct fr_account *account_of(uint64_t number, uint32_t card) /* NULL: no such account; the number may come from a damaged file */
{
    if (number < FR_OBJECT_ACCOUNT) return number < fr_shared.slot_count ? fr_slot_account((uint32_t)number, card) : NULL;
    number -= FR_OBJECT_ACCOUNT;
    return number < fr_shared.object_count ? &fr_shared.objects[number].own : NULL;
}

static uint64_t pack_used(uint64_t units, uint64_t number, uint64_t sequence)
{
    return units << UNITS_SHIFT | number << MARK_SHIFT | sequence;
}

static uint64_t pack_intent(int64_t units, uint64_t moved_object, uint64_t sequence)
{
    uint64_t field = (uint64_t)units & ((1ull << INTENT_UNITS_BITS) - 1);
    return moved_object << (INTENT_UNITS_BITS + FR_SEQUENCE_BITS) | field << FR_SEQUENCE_BITS | sequence;
}

static int64_t intent_units(uint64_t intent)
{
    return (int64_t)(intent << FR_ACCOUNT_BITS) >> (FR_ACCOUNT_BITS + FR_SEQUENCE_BITS);
}

static bool set_applied(struct fr_account *a, uint64_t seen, uint64_t sequence)
{
    uint64_t fresh = ((seen >> FR_SEQUENCE_BITS) + 1) << FR_SEQUENCE_BITS | sequence;
    return atomic_compare_exchange_strong_explicit(&a->applied, &seen, fresh, memory_order_acq_rel, memory_order_acquire);
}

static void refresh_applied(struct fr_account *a, uint64_t done)
{
    while (!set_applied(a, atomic_load_explicit(&a->applied, memory_order_acquire), done & FR_SEQUENCE_MASK)) {}
}

/* Records that the operation whose mark `used` carries took place. False: the word has changed meanwhile. */
static bool record(_Atomic uint64_t *word, uint64_t used, struct fr_account *a)
{
    uint64_t sequence = used & FR_SEQUENCE_MASK;
    for (;;) {
        if ((atomic_load_explicit(&a->charged, memory_order_acquire) & FR_SEQUENCE_MASK) == sequence) return true;
        uint64_t seen = atomic_load_explicit(&a->applied, memory_order_acquire);
        if ((seen & FR_SEQUENCE_MASK) == sequence) return true;
        FR_POINT();
        if (atomic_load_explicit(word, memory_order_acquire) != used) return false;
        set_applied(a, seen, sequence);
        FR_POINT();
    }
}

/* Step 2, repeated until it succeeds or cannot succeed. */
static enum fr_added swap_used(uint32_t number, uint32_t card, int64_t units, uint64_t limit, uint64_t sequence)
{
    _Atomic uint64_t *word = &fr_shared.cards[card].used;
    for (;;) {
        uint64_t used = atomic_load_explicit(word, memory_order_acquire), before = used >> UNITS_SHIFT;
        uint64_t last = used >> MARK_SHIFT & ((1u << FR_ACCOUNT_BITS) - 1), after = before + (uint64_t)units;
        if (before > FR_UNITS_MOST || after > FR_UNITS_MOST) return FR_DAMAGED; /* a sum below zero wraps far above the maximum */
        if (units > 0 && after > limit) return FR_FULL;
        if (last != number) {
            struct fr_account *previous = account_of(last, card);
            if (!previous) return FR_DAMAGED;
            if (!record(word, used, previous)) continue;
        }
        FR_POINT();
        if (atomic_compare_exchange_strong_explicit(word, &used, pack_used(after, number, sequence), memory_order_acq_rel,
                                                    memory_order_acquire))
            return FR_ADDED;
    }
}

enum fr_added fr_account_add(uint32_t number, uint32_t card, int64_t units, uint64_t limit)
{
    struct fr_account *a = account_of(number, card);
    uint64_t charged = atomic_load_explicit(&a->charged, memory_order_relaxed), value = charged >> FR_SEQUENCE_BITS;
    uint64_t sequence = (charged + 1) & FR_SEQUENCE_MASK;
    if (units < 0 && value < (uint64_t)-units) return FR_DAMAGED;
    if (units > 0 && limit > FR_UNITS_MOST) limit = FR_UNITS_MOST;
    if (units > 0 && ((uint64_t)units > limit || fr_used_units(card) > limit - (uint64_t)units)) return FR_FULL;
    if ((sequence & REFRESH_MASK) == 0) refresh_applied(a, charged);
    atomic_store_explicit(&a->intent, pack_intent(units, 0, sequence), memory_order_release);
    FR_POINT();
    enum fr_added r = swap_used(number, card, units, limit, sequence);
    FR_POINT();
    if (r == FR_ADDED) value += (uint64_t)units;
    atomic_store_explicit(&a->charged, value << FR_SEQUENCE_BITS | sequence, memory_order_release);
    FR_POINT();
    return r;
}

/* Moves the object's units from this account to the object's own; the sum is unchanged. object->state decides: in state 3 (OWN)
 * the object's own account counts, and this account's part is gone. The caller holds the lock of objects; if it dies, that lock
 * passes to the process that reaps it, before any other process changes the object. */
void fr_account_move(uint32_t number, uint32_t object)
{
    struct fr_object *o = &fr_shared.objects[object];
    struct fr_account *a = account_of(number, o->card);
    uint64_t charged = atomic_load_explicit(&a->charged, memory_order_relaxed), value = charged >> FR_SEQUENCE_BITS;
    uint64_t sequence = (charged + 1) & FR_SEQUENCE_MASK, units = o->units < value ? o->units : value;
    uint64_t own = atomic_load_explicit(&o->own.charged, memory_order_relaxed) & FR_SEQUENCE_MASK;
    atomic_store_explicit(&a->intent, pack_intent(-(int64_t)units, object + 1, sequence), memory_order_release);
    FR_POINT();
    atomic_store_explicit(&o->own.charged, units << FR_SEQUENCE_BITS | own, memory_order_release);
    FR_POINT();
    atomic_store_explicit(&o->state, FR_OBJECT_OWN, memory_order_release);
    FR_POINT();
    atomic_store_explicit(&a->charged, (value - units) << FR_SEQUENCE_BITS | sequence, memory_order_release);
    FR_POINT();
}

static bool took_place(struct fr_account *a, uint32_t number, uint32_t card, uint64_t intent)
{
    uint64_t object = intent >> (INTENT_UNITS_BITS + FR_SEQUENCE_BITS), sequence = intent & FR_SEQUENCE_MASK;
    if (object) return object <= fr_shared.object_count && atomic_load(&fr_shared.objects[object - 1].state) == FR_OBJECT_OWN;
    uint64_t used = atomic_load(&fr_shared.cards[card].used); /* read first: its mark is overwritten only after it is on record */
    if ((used & ((1ull << UNITS_SHIFT) - 1)) == ((uint64_t)number << MARK_SHIFT | sequence)) return true;
    return (atomic_load(&a->applied) & FR_SEQUENCE_MASK) == sequence;
}

void fr_account_recover(uint32_t number, uint32_t card)
{
    struct fr_account *a = account_of(number, card);
    uint64_t intent = atomic_load(&a->intent), charged = atomic_load(&a->charged), value = charged >> FR_SEQUENCE_BITS;
    if (((intent ^ charged) & FR_SEQUENCE_MASK) == 0) return;
    FR_POINT();
    if (took_place(a, number, card, intent)) value += (uint64_t)intent_units(intent);
    if (value > FR_UNITS_MOST) value = 0; /* damage */
    atomic_store(&a->charged, value << FR_SEQUENCE_BITS | (intent & FR_SEQUENCE_MASK));
    FR_POINT();
}
