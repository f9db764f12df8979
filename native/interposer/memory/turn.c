/* Turns at memory whose size only the driver knows: see turn.h. */
#include "memory/turn.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "ledger/ledger.h"

#include <stdatomic.h>
#include <stdbool.h>

void fr_turn_take(struct fr_turn *t, int card)
{
    struct fr_op back;
    fr_free_begin(&back, card);
    fr_mutex_lock(&t->lock);
    t->back = back;
}

void fr_turn_give(struct fr_turn *t, fr_turn_compare *compare, void *memory)
{
    struct fr_op back = t->back;
    do {
        while (atomic_load(&t->stale) && atomic_exchange(&t->stale, false)) compare(memory);
        fr_mutex_unlock(&t->lock);
        /* Another thread may have found the turn taken after the last comparison, and left the comparison to this one. */
    } while (unlikely(atomic_load(&t->stale)) && fr_mutex_try(&t->lock));
    fr_free_end(&back, 0);
}

void fr_turn_settle(struct fr_turn *t, int card, fr_turn_compare *compare, void *memory)
{
    struct fr_op back;
    fr_free_begin(&back, card);
    bool free_now = fr_mutex_try(&t->lock);
    if (unlikely(!free_now)) {
        atomic_store(&t->stale, true);
        if (!fr_mutex_try(&t->lock)) {
            fr_free_end(&back, 0); /* the thread that has the turn has also announced one */
            return;
        }
    }
    t->back = back;
    if (likely(free_now)) compare(memory);
    fr_turn_give(t, compare, memory);
}
