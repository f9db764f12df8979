/* This process's own account on each card. The threads of the process take turns at it for the few instructions of an
 * operation; no lock is held while the driver works. */
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

static __attribute__((noinline, cold)) void tell_damage(int card)
{
    fr_escape();
    fr_say(FR_SAY_REGION, "%s/shared/region is damaged: nothing more is granted on its card %d", fr_shared.directory, card);
}

/* The caller has the card's lock, so no atomic addition is needed. Other processes read the value at any time: slack is added
 * before its memory is taken, and removed after that memory came back. */
static void change_slack(struct fr_account *a, int64_t units)
{
    atomic_store_explicit(&a->slack, atomic_load_explicit(&a->slack, memory_order_relaxed) + (uint64_t)units, memory_order_release);
}

bool fr_own_account_change(int card, int64_t units, uint64_t limit, int64_t slack)
{
    struct fr_account *a = fr_own_account(card);
    fr_lock(&turns[card]);
    if (slack > 0) change_slack(a, slack);
    FR_POINT();
    enum fr_added r = fr_account_add(fr_shared.slot, (uint32_t)card, units, limit);
    if (slack < 0) change_slack(a, slack);
    else if (unlikely(slack && r != FR_ADDED)) change_slack(a, -slack);
    fr_unlock(&turns[card]);
    if (unlikely(r == FR_DAMAGED)) tell_damage(card);
    return r == FR_ADDED;
}

bool fr_own_account_add(int card, int64_t units, uint64_t limit) { return fr_own_account_change(card, units, limit, 0); }

void fr_own_account_slack(int card, int64_t units)
{
    if (!units) return;
    fr_lock(&turns[card]);
    change_slack(fr_own_account(card), units);
    fr_unlock(&turns[card]);
}

bool fr_reserve(int card, uint64_t units)
{
    uint64_t limit = limit_of(card);
    if (units > limit || fr_used_units((uint32_t)card) > limit - units) return false;
    return fr_own_account_change(card, (int64_t)units, limit, (int64_t)units);
}

/* For objects.c: the object's part of this account becomes the object's own. */
void fr_move_to_object(uint32_t object)
{
    int card = (int)fr_shared.objects[object].card;
    fr_lock(&turns[card]);
    fr_account_move(fr_shared.slot, object);
    fr_unlock(&turns[card]);
}
