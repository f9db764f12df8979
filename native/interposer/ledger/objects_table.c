/* The table of objects in the region: which slots hold an object, and how an object ends. For callers that hold the table's
 * lock (reap.c). Nothing here waits for another process or gives back what a dead one held, so the reaper can call it. */
#include "ledger/objects_table.h"

#include "base/point.h"
#include "ledger/account.h"
#include "ledger/descriptor.h"
#include "ledger/shared.h"

#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define NO_SLOT FR_MAX_SLOTS

struct fr_object *fr_object_at(uint32_t n)
{
    return &fr_shared.objects[n];
}

uint32_t fr_objects_in_use(void)
{
    uint32_t high = atomic_load(&fr_shared.region->object_high);
    return high < fr_shared.object_count ? high : fr_shared.object_count;
}

void fr_object_set_holder(struct fr_object *o, uint32_t slot, bool holds)
{
    if (holds) atomic_fetch_or(&o->holders[slot / 64], 1ull << slot % 64);
    else atomic_fetch_and(&o->holders[slot / 64], ~(1ull << slot % 64));
    FR_POINT();
}

bool fr_object_is_held_by_others(struct fr_object *o, uint32_t slot)
{
    for (uint32_t i = 0; i < FR_HOLDER_WORDS; i++) {
        uint64_t mine = slot / 64 == i ? 1ull << slot % 64 : 0;
        if (atomic_load(&o->holders[i]) & ~mine) return true;
    }
    return false;
}

/* A descriptor in a message on its way to another process keeps the driver's memory alive too. The search takes long and is
 * done without the lock: a closed descriptor stays closed, and one that has been closed since it was seen open is found by the
 * next process that settles. */
bool fr_object_descriptor_is_open(const struct fr_object *o)
{
    return fr_descriptor_open((struct fr_key){o->key[0], o->key[1]});
}

bool fr_objects_are_looked_at(void)
{
    for (uint32_t n = 0, high = fr_objects_in_use(); n < high; n++)
        if (fr_object_at(n)->key[0] == FR_KEY_LOOK && fr_object_is_live(n)) return true;
    return false;
}

void fr_object_set_state(struct fr_object *o, enum fr_object_state state)
{
    atomic_store(&o->state, state);
    FR_POINT();
}

/* Frees the object's names first: after a kill in between, an object is left that the next process frees, and not a name
 * without an object. */
void fr_object_free(uint32_t n)
{
    for (uint32_t i = 0, high = fr_objects_in_use(); i < high; i++)
        if (atomic_load(&fr_object_at(i)->state) == FR_OBJECT_NAME && fr_object_at(i)->units == n) fr_object_set_state(fr_object_at(i), FR_OBJECT_FREE);
    fr_object_set_state(fr_object_at(n), FR_OBJECT_FREE);
}

void fr_object_add_own(uint32_t n, int64_t units)
{
    fr_account_recover(FR_OBJECT_ACCOUNT + n, fr_object_at(n)->card);
    fr_account_add(FR_OBJECT_ACCOUNT + n, fr_object_at(n)->card, units, FR_UNITS_MOST);
}

/* Called when the last holder is gone. */
void fr_object_release_own(uint32_t n)
{
    struct fr_object *o = fr_object_at(n);
    fr_account_recover(FR_OBJECT_ACCOUNT + n, o->card);
    uint64_t units = fr_charged_units(&o->own);
    if (units) fr_account_add(FR_OBJECT_ACCOUNT + n, o->card, -(int64_t)units, 0);
    fr_object_free(n);
}

bool fr_object_card_is_sound(const struct fr_object *o)
{
    return o->card < fr_shared.card_count;
}

bool fr_object_is_live(uint32_t n)
{
    if (n >= fr_shared.object_count || !fr_object_card_is_sound(fr_object_at(n))) return false;
    uint32_t state = atomic_load(&fr_object_at(n)->state);
    return state == FR_OBJECT_COVERED || state == FR_OBJECT_OWN;
}

bool fr_object_is_covered_by(struct fr_object *o, uint32_t slot)
{
    return atomic_load(&o->state) == FR_OBJECT_COVERED && o->origin == slot;
}

/* An object that a descriptor may keep is left to settle_objects in reap.c, which every reaper runs. */
static bool may_be_kept(struct fr_object *o, uint32_t slot)
{
    return o->key[0] == FR_KEY_DESCRIPTOR || fr_object_is_held_by_others(o, slot);
}

void fr_objects_drop(uint32_t slot)
{
    for (uint32_t n = 0, high = fr_objects_in_use(); n < high; n++) {
        struct fr_object *o = fr_object_at(n);
        uint32_t state = atomic_load(&o->state);
        if (state == FR_OBJECT_FREE || state == FR_OBJECT_NAME) continue;
        if (state == FR_OBJECT_MADE || !fr_object_card_is_sound(o)) {
            fr_object_set_state(o, FR_OBJECT_FREE);
            continue;
        }
        if (fr_object_is_covered_by(o, slot)) {
            if (may_be_kept(o, slot)) fr_account_move(slot, n);
            else fr_object_free(n);
        }
        fr_object_set_holder(o, slot, false);
        if (atomic_load(&o->state) == FR_OBJECT_OWN && !may_be_kept(o, slot)) fr_object_release_own(n);
    }
}

bool fr_object_is_left(uint32_t n)
{
    return atomic_load(&fr_object_at(n)->state) == FR_OBJECT_OWN && fr_object_card_is_sound(fr_object_at(n)) && !fr_object_is_held_by_others(fr_object_at(n), NO_SLOT);
}
