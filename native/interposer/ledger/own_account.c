/* This process's own account on each card. Threads of the process take turns at it for the few instructions of an operation;
 * nothing is held while the driver works. */
#include "ledger/own_account.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "base/message.h"
#include "base/point.h"
#include "ledger/account.h"
#include "ledger/limits_page.h"
#include "ledger/process.h"
#include "ledger/shared.h"

#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

static struct fr_lock turns[FR_MAX_CARDS];

struct fr_account *fr_own_account(int card)
{
    return fr_slot_account(fr_shared.slot, (uint32_t)card);
}

static uint64_t limit_of(int card)
{
    return unlikely(fr_isolation_is_off()) ? FR_UNITS_MOST : fr_limits_may_hold(card) / FR_UNIT_BYTES;
}

void fr_escape(void)
{
    if (fr_process_attach()) atomic_fetch_add_explicit(&fr_shared.region->escapes, 1, memory_order_relaxed);
}

bool fr_own_account_add(int card, int64_t units, uint64_t limit)
{
    fr_lock(&turns[card]);
    enum fr_added r = fr_account_add(fr_shared.slot, (uint32_t)card, units, limit);
    fr_unlock(&turns[card]);
    if (unlikely(r == FR_DAMAGED)) {
        fr_escape();
        fr_say(FR_SAY_REGION, "%s/shared/region is damaged: nothing more is granted on its card %d", fr_shared.directory, card);
    }
    return r == FR_ADDED;
}

/* Whatever may be given back at the end of the call is announced before it is taken. */
bool fr_reserve(int card, uint64_t units)
{
    uint64_t limit = limit_of(card);
    if (units > limit || fr_used_units((uint32_t)card) > limit - units) return false;
    struct fr_account *a = fr_own_account(card);
    atomic_fetch_add_explicit(&a->slack, units, memory_order_relaxed);
    FR_POINT();
    if (likely(fr_own_account_add(card, (int64_t)units, limit))) return true;
    atomic_fetch_sub_explicit(&a->slack, units, memory_order_relaxed);
    return false;
}

/* For objects.c: its part of this account becomes the object's own. */
void fr_move_to_object(uint32_t object)
{
    int card = (int)fr_shared.objects[object].card;
    fr_lock(&turns[card]);
    fr_account_move(fr_shared.slot, object);
    fr_unlock(&turns[card]);
}
