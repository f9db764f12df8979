/* Memory that several processes of the container hold. An object is counted once: in its maker's account as long as the maker
 * holds it (COVERED), then in an account of its own (OWN) until the last holder is gone.
 *
 *      FREE -> MADE -> COVERED -> FREE          the maker was the last holder
 *                         `-----> OWN -> FREE   other holders remained, or a descriptor that is open in any process
 *      FREE -> MADE -> NAME -> FREE             a second key of another object, which goes with that object
 *
 * Changes are rare, and one process makes them at a time: the lock word names its slot. If the holder of the lock dies, only
 * the process that reaps that slot may continue, and it continues with the lock. So every change is either finished or undone
 * before any other process sees the table, and the order of the stores below is all that this requires. */
#include "ledger/objects.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "base/point.h"
#include "ledger/account.h"
#include "ledger/descriptor.h"
#include "ledger/ledger.h"
#include "ledger/objects_table.h"
#include "ledger/own_account.h"
#include "ledger/process.h"
#include "ledger/reap.h"
#include "ledger/shared.h"

#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static FR_LARGE uint32_t times_held[FR_MAX_OBJECTS]; /* by this process; under the lock */
static uint32_t times_of_era;

static bool lock_table(void)
{
    if (!fr_process_join() || !fr_objects_lock_as(fr_shared.slot)) return false;
    uint32_t era = atomic_load(&fr_era);
    if (times_of_era != era) memset(times_held, 0, sizeof times_held);
    times_of_era = era;
    return true;
}

/* ---- make, find, let go ---- */

static int find(struct fr_key key)
{
    for (uint32_t n = 0, high = fr_objects_in_use(); n < high; n++) {
        struct fr_object *o = fr_object_at(n);
        if (atomic_load(&o->state) < FR_OBJECT_COVERED || o->key[0] != key.a || o->key[1] != key.b) continue;
        uint32_t named = atomic_load(&o->state) == FR_OBJECT_NAME ? (uint32_t)o->units : n;
        if (fr_object_is_live(named)) return (int)named;
    }
    return FR_NO_OBJECT;
}

static int find_free(void)
{
    for (uint32_t n = 0; n < fr_shared.object_count; n++) {
        if (atomic_load(&fr_object_at(n)->state) >= FR_OBJECT_COVERED) continue; /* MADE: its maker died while making it */
        if (n >= atomic_load(&fr_shared.region->object_high)) atomic_store(&fr_shared.region->object_high, n + 1);
        return (int)n;
    }
    return FR_NO_OBJECT;
}

static struct fr_object *begin(uint32_t n, uint32_t card, struct fr_key key)
{
    struct fr_object *o = fr_object_at(n);
    fr_object_set_state(o, FR_OBJECT_MADE);
    o->card = card;
    o->origin = fr_shared.slot;
    o->origin_generation = atomic_load(&fr_slot(fr_shared.slot)->generation);
    o->key[0] = key.a;
    o->key[1] = key.b;
    return o;
}

static void make(uint32_t n, int card, uint64_t bytes, struct fr_key key)
{
    struct fr_object *o = begin(n, (uint32_t)card, key);
    o->units = (bytes + FR_UNIT_BYTES - 1) / FR_UNIT_BYTES;
    for (uint32_t i = 0; i < FR_HOLDER_WORDS; i++) atomic_store(&o->holders[i], 0);
    atomic_store(&o->own.charged, atomic_load(&o->own.intent) & FR_SEQUENCE_MASK);
    FR_POINT();
    fr_object_set_holder(o, fr_shared.slot, true);
    fr_object_set_state(o, FR_OBJECT_COVERED);
}

static int hold(int object)
{
    if (object >= 0 && times_held[object]++ == 0) fr_object_set_holder(fr_object_at((uint32_t)object), fr_shared.slot, true);
    return object;
}

int fr_object_claim(int card, uint64_t bytes, struct fr_key key, bool *made)
{
    *made = false;
    if (!lock_table()) return FR_NO_OBJECT;
    int object = find(key);
    if (object < 0 && card >= 0 && card < (int)fr_shared.card_count) {
        object = find_free();
        if (object >= 0) make((uint32_t)object, card, bytes, key);
        *made = object >= 0;
    }
    hold(object);
    fr_objects_unlock();
    return object;
}

int fr_object_share(int card, uint64_t bytes, struct fr_key key)
{
    bool made;
    return fr_object_claim(card, bytes, key, &made);
}

bool fr_object_also(int object, struct fr_key key)
{
    if (!lock_table()) return false;
    int known = find(key), n = known == FR_NO_OBJECT && fr_object_is_live((uint32_t)object) ? find_free() : FR_NO_OBJECT;
    if (n >= 0) {
        struct fr_object *o = begin((uint32_t)n, fr_object_at((uint32_t)object)->card, key);
        o->units = (uint64_t)object;
        fr_object_set_state(o, FR_OBJECT_NAME);
    }
    fr_objects_unlock();
    return n >= 0 || known == object;
}

/* Whenever this process is killed here, the old key still finds the object. */
static bool rename_object(uint32_t object, struct fr_key key)
{
    struct fr_object *o = fr_object_at(object);
    int n = find_free();
    if (n < 0) return false;
    struct fr_object *name = begin((uint32_t)n, o->card, (struct fr_key){o->key[0], o->key[1]});
    name->units = object;
    fr_object_set_state(name, FR_OBJECT_NAME);
    o->key[1] = key.b;
    o->key[0] = key.a;
    return true;
}

bool fr_object_by_descriptor(int object, struct fr_key *key)
{
    if (!lock_table()) return false;
    const struct fr_object *o = fr_object_at((uint32_t)object);
    bool has = o->key[0] == FR_KEY_DESCRIPTOR, ok = has || (fr_object_is_live((uint32_t)object) && rename_object((uint32_t)object, *key));
    if (has) *key = (struct fr_key){o->key[0], o->key[1]};
    fr_objects_unlock();
    return ok;
}

int fr_object_join(struct fr_key key)
{
    if (!lock_table()) return FR_NO_OBJECT;
    int object = hold(find(key));
    fr_objects_unlock();
    return object;
}

static uint64_t let_go(uint32_t n, bool open)
{
    struct fr_object *o = fr_object_at(n);
    uint32_t slot = fr_shared.slot;
    bool ours = fr_object_is_covered_by(o, slot), others = open || fr_object_is_held_by_others(o, slot);
    if (ours && others) fr_move_to_object(n);
    fr_object_set_holder(o, slot, false);
    if (others) return 0;
    if (atomic_load(&o->state) == FR_OBJECT_OWN) fr_object_release_own(n);
    if (ours) fr_object_free(n);
    return ours ? o->units * FR_UNIT_BYTES : 0;
}

static bool is_held(int object)
{
    return object >= 0 && object < (int)fr_shared.object_count && times_held[object] > 0 && fr_object_card_is_sound(fr_object_at((uint32_t)object));
}

/* Called after the driver has let go: a look that begins later cannot find memory that only this process kept. */
static bool may_be_open(const struct fr_object *o)
{
    return (o->key[0] == FR_KEY_DESCRIPTOR && fr_objects_are_looked_at()) || fr_object_descriptor_is_open(o);
}

uint64_t fr_object_leave(int object)
{
    uint64_t bytes = 0;
    bool open = object >= 0 && object < (int)fr_shared.object_count && may_be_open(fr_object_at((uint32_t)object));
    if (!lock_table()) return 0;
    if (is_held(object) && --times_held[object] == 0) bytes = let_go((uint32_t)object, open);
    fr_objects_unlock();
    return bytes;
}

void fr_object_unmake(int object)
{
    if (!lock_table()) return;
    if (is_held(object) && --times_held[object] == 0) let_go((uint32_t)object, false); /* no other process can know its key yet */
    fr_objects_unlock();
}

int fr_look_begin(void) { return fr_object_share(0, 0, (struct fr_key){FR_KEY_LOOK, fr_shared.slot}); }
void fr_look_end(int look) { fr_object_leave(look); }

int fr_object_card(int object)
{
    return object >= 0 && fr_object_is_live((uint32_t)object) ? (int)fr_object_at((uint32_t)object)->card : FR_NO_CARD;
}

uint64_t fr_object_bytes(int object)
{
    return object >= 0 && fr_object_is_live((uint32_t)object) ? fr_object_at((uint32_t)object)->units * FR_UNIT_BYTES : 0;
}

bool fr_object_covers(int object)
{
    if (!lock_table()) return false;
    bool covers = is_held(object) && fr_object_is_covered_by(fr_object_at((uint32_t)object), fr_shared.slot);
    fr_objects_unlock();
    return covers;
}

void fr_object_resize(int object, uint64_t bytes)
{
    if (!lock_table()) return;
    if (is_held(object) && fr_object_is_covered_by(fr_object_at((uint32_t)object), fr_shared.slot))
        fr_object_at((uint32_t)object)->units = (bytes + FR_UNIT_BYTES - 1) / FR_UNIT_BYTES;
    fr_objects_unlock();
}

/* Adds bytes to an object. While no process is charged for an object, the object has an account of its own, which is written
 * only under the table's lock. */
bool fr_object_charge(int object, struct fr_key key, uint64_t bytes)
{
    int64_t units = (int64_t)((bytes + FR_UNIT_BYTES - 1) / FR_UNIT_BYTES);
    if (object < 0 || object >= (int)fr_shared.object_count) return false;
    struct fr_object *o = fr_object_at((uint32_t)object);
    if (!lock_table()) { /* the bytes stay with this process until it ends: too much is counted, not too little */
        if (units && fr_object_card_is_sound(o)) fr_own_account_add((int)o->card, units, FR_UNITS_MOST);
        return true;
    }
    bool held = fr_object_is_live((uint32_t)object) && o->key[0] == key.a && o->key[1] == key.b;
    bool ours = held && fr_object_is_covered_by(o, fr_shared.slot);
    if (ours && units && fr_own_account_add((int)o->card, units, FR_UNITS_MOST)) o->units += (uint64_t)units;
    if (held && !ours && units) fr_object_add_own((uint32_t)object, units);
    fr_objects_unlock();
    return held;
}
