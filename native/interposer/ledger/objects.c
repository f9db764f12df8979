/* Memory that several processes of the container hold. An object is counted once: in its maker's account as long as that
 * one holds on (COVERED), then in an account of its own (OWN) until the last holder is gone.
 *
 *      FREE -> MADE -> COVERED -> FREE          the maker was the last
 *                         `-----> OWN -> FREE   others held on, or a descriptor that is open somewhere
 *      FREE -> MADE -> NAME -> FREE             a second key of another object, and gone with it
 *
 * Changes are rare, and made by one process at a time: the lock word names its slot. When a holder of the lock dies, only
 * who reaps that slot may go on, and goes on with the lock; so every change is either finished or undone before anybody
 * else sees the table, and the order of the stores below is all that it takes. */
#include "ledger/objects.h"

#include "base/compiler.h"
#include "base/kernel.h"
#include "base/lock.h"
#include "base/point.h"
#include "ledger/account.h"
#include "ledger/descriptor.h"
#include "ledger/ledger.h"
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

#define PATIENCE_NS 1000000000ull /* a holder that was stopped in the middle; nobody hangs for it */
#define CHECK_EVERY 16            /* pauses: then ask whether the holder is alive */
#define WORDS (FR_MAX_SLOTS / 64)
#define FR_NOBODY FR_MAX_SLOTS

static FR_LARGE uint32_t times_held[FR_MAX_OBJECTS]; /* by this process; under the lock */
static uint32_t times_of_era;

static struct fr_object *object_at(uint32_t n)
{
    return &fr_shared.objects[n];
}

static uint32_t objects_in_use(void)
{
    uint32_t high = atomic_load(&fr_shared.region->object_high);
    return high < fr_shared.object_count ? high : fr_shared.object_count;
}

/* ---- the lock ---- */

static bool take_from_nobody(uint32_t mine)
{
    _Atomic uint32_t *word = &fr_shared.region->object_lock;
    uint32_t seen = atomic_load(word);
    if (seen != 0 && seen <= fr_shared.slot_count) return false;
    return atomic_compare_exchange_strong(word, &seen, mine); /* 0, or damage */
}

bool fr_objects_lock_as(uint32_t slot)
{
    _Atomic uint32_t *word = &fr_shared.region->object_lock;
    if (slot != fr_shared.slot || !fr_process_is_joined())
        if (atomic_load(word) == slot + 1) return true; /* it died with it */
    uint64_t start = fr_clock_ns(CLOCK_MONOTONIC);
    for (unsigned round = 1; !take_from_nobody(slot + 1); round++) {
        if (round < 4) syscall(SYS_sched_yield);
        else fr_sleep_us(50);
        uint32_t holder = atomic_load(word);
        if (round % CHECK_EVERY == 0 && holder != 0 && holder != slot + 1) fr_reap_if_dead(holder - 1);
        if (fr_clock_ns(CLOCK_MONOTONIC) - start > PATIENCE_NS) return false;
    }
    FR_POINT();
    return true;
}

void fr_objects_unlock(void)
{
    FR_POINT();
    atomic_store(&fr_shared.region->object_lock, 0);
}

void fr_objects_free_from(uint32_t slot)
{
    uint32_t its = slot + 1;
    if (atomic_load(&fr_slot(slot)->state) == FR_SLOT_FREE) atomic_compare_exchange_strong(&fr_shared.region->object_lock, &its, 0);
}

static bool lock_table(void)
{
    if (!fr_process_join() || !fr_objects_lock_as(fr_shared.slot)) return false;
    uint32_t era = atomic_load(&fr_era);
    if (times_of_era != era) memset(times_held, 0, sizeof times_held);
    times_of_era = era;
    return true;
}

/* ---- holders ---- */

static void set_holder(struct fr_object *o, uint32_t slot, bool holds)
{
    if (holds) atomic_fetch_or(&o->holders[slot / 64], 1ull << slot % 64);
    else atomic_fetch_and(&o->holders[slot / 64], ~(1ull << slot % 64));
    FR_POINT();
}

static bool held_by_others(struct fr_object *o, uint32_t slot)
{
    for (uint32_t i = 0; i < WORDS; i++) {
        uint64_t mine = slot / 64 == i ? 1ull << slot % 64 : 0;
        if (atomic_load(&o->holders[i]) & ~mine) return true;
    }
    return false;
}

/* A descriptor on its way to somebody keeps the driver's memory alive too. To look for one takes long and is done without the
 * lock: a closed one stays closed, and what was open and is not any more is found out by the next who settles. */
static bool descriptor_open(const struct fr_object *o)
{
    return fr_descriptor_open((struct fr_key){o->key[0], o->key[1]});
}

static void set_state(struct fr_object *o, enum fr_object_state state)
{
    atomic_store(&o->state, state);
    FR_POINT();
}

/* Its names first: killed in between, what is left is an object that the next one frees, and no name of nothing. */
static void free_object(uint32_t n)
{
    for (uint32_t i = 0, high = objects_in_use(); i < high; i++)
        if (atomic_load(&object_at(i)->state) == FR_OBJECT_NAME && object_at(i)->units == n) set_state(object_at(i), FR_OBJECT_FREE);
    set_state(object_at(n), FR_OBJECT_FREE);
}

/* The last holder is gone. */
static void release_own(uint32_t n)
{
    struct fr_object *o = object_at(n);
    fr_account_recover(FR_OBJECT_ACCOUNT + n, o->card);
    uint64_t units = fr_charged_units(&o->own);
    if (units) fr_account_add(FR_OBJECT_ACCOUNT + n, o->card, -(int64_t)units, 0);
    free_object(n);
}

static bool card_is_sound(const struct fr_object *o)
{
    return o->card < fr_shared.card_count;
}

/* ---- made, found, let go ---- */

static bool is_object(uint32_t n)
{
    if (n >= fr_shared.object_count || !card_is_sound(object_at(n))) return false;
    uint32_t state = atomic_load(&object_at(n)->state);
    return state == FR_OBJECT_COVERED || state == FR_OBJECT_OWN;
}

static int find(struct fr_key key)
{
    for (uint32_t n = 0, high = objects_in_use(); n < high; n++) {
        struct fr_object *o = object_at(n);
        if (atomic_load(&o->state) < FR_OBJECT_COVERED || o->key[0] != key.a || o->key[1] != key.b) continue;
        uint32_t named = atomic_load(&o->state) == FR_OBJECT_NAME ? (uint32_t)o->units : n;
        if (is_object(named)) return (int)named;
    }
    return FR_NO_OBJECT;
}

static int find_free(void)
{
    for (uint32_t n = 0; n < fr_shared.object_count; n++) {
        if (atomic_load(&object_at(n)->state) >= FR_OBJECT_COVERED) continue; /* MADE: its maker died over it */
        if (n >= atomic_load(&fr_shared.region->object_high)) atomic_store(&fr_shared.region->object_high, n + 1);
        return (int)n;
    }
    return FR_NO_OBJECT;
}

static struct fr_object *begin(uint32_t n, uint32_t card, struct fr_key key)
{
    struct fr_object *o = object_at(n);
    set_state(o, FR_OBJECT_MADE);
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
    for (uint32_t i = 0; i < WORDS; i++) atomic_store(&o->holders[i], 0);
    atomic_store(&o->own.charged, atomic_load(&o->own.intent) & FR_SEQUENCE_MASK);
    FR_POINT();
    set_holder(o, fr_shared.slot, true);
    set_state(o, FR_OBJECT_COVERED);
}

static int hold(int object)
{
    if (object >= 0 && times_held[object]++ == 0) set_holder(object_at((uint32_t)object), fr_shared.slot, true);
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
    int known = find(key), n = known == FR_NO_OBJECT && is_object((uint32_t)object) ? find_free() : FR_NO_OBJECT;
    if (n >= 0) {
        struct fr_object *o = begin((uint32_t)n, object_at((uint32_t)object)->card, key);
        o->units = (uint64_t)object;
        set_state(o, FR_OBJECT_NAME);
    }
    fr_objects_unlock();
    return n >= 0 || known == object;
}

int fr_object_join(struct fr_key key)
{
    if (!lock_table()) return FR_NO_OBJECT;
    int object = hold(find(key));
    fr_objects_unlock();
    return object;
}

static bool is_covered_by(struct fr_object *o, uint32_t slot)
{
    return atomic_load(&o->state) == FR_OBJECT_COVERED && o->origin == slot;
}

static uint64_t let_go(uint32_t n, bool open)
{
    struct fr_object *o = object_at(n);
    uint32_t slot = fr_shared.slot;
    bool ours = is_covered_by(o, slot), others = open || held_by_others(o, slot);
    if (ours && others) fr_move_to_object(n);
    set_holder(o, slot, false);
    if (others) return 0;
    if (atomic_load(&o->state) == FR_OBJECT_OWN) release_own(n);
    if (ours) free_object(n);
    return ours ? o->units * FR_UNIT_BYTES : 0;
}

static bool is_held(int object)
{
    return object >= 0 && object < (int)fr_shared.object_count && times_held[object] > 0 && card_is_sound(object_at((uint32_t)object));
}

uint64_t fr_object_leave(int object)
{
    uint64_t bytes = 0;
    bool open = object >= 0 && object < (int)fr_shared.object_count && descriptor_open(object_at((uint32_t)object));
    if (!lock_table()) return 0;
    if (is_held(object) && --times_held[object] == 0) bytes = let_go((uint32_t)object, open);
    fr_objects_unlock();
    return bytes;
}

int fr_object_card(int object)
{
    return object >= 0 && is_object((uint32_t)object) ? (int)object_at((uint32_t)object)->card : FR_NO_CARD;
}

bool fr_object_covers(int object)
{
    if (!lock_table()) return false;
    bool covers = is_held(object) && is_covered_by(object_at((uint32_t)object), fr_shared.slot);
    fr_objects_unlock();
    return covers;
}

void fr_object_resize(int object, uint64_t bytes)
{
    if (!lock_table()) return;
    if (is_held(object) && is_covered_by(object_at((uint32_t)object), fr_shared.slot))
        object_at((uint32_t)object)->units = (bytes + FR_UNIT_BYTES - 1) / FR_UNIT_BYTES;
    fr_objects_unlock();
}

/* What a descriptor may keep is left to who settles, which every reaper does. */
static bool may_be_kept(struct fr_object *o, uint32_t slot)
{
    return o->key[0] == FR_KEY_DESCRIPTOR || held_by_others(o, slot);
}

void fr_objects_drop(uint32_t slot)
{
    for (uint32_t n = 0, high = objects_in_use(); n < high; n++) {
        struct fr_object *o = object_at(n);
        uint32_t state = atomic_load(&o->state);
        if (state == FR_OBJECT_FREE || state == FR_OBJECT_NAME) continue;
        if (state == FR_OBJECT_MADE || !card_is_sound(o)) {
            set_state(o, FR_OBJECT_FREE);
            continue;
        }
        if (is_covered_by(o, slot)) {
            if (may_be_kept(o, slot)) fr_account_move(slot, n);
            else free_object(n);
        }
        set_holder(o, slot, false);
        if (atomic_load(&o->state) == FR_OBJECT_OWN && !may_be_kept(o, slot)) release_own(n);
    }
}

/* ---- what only descriptors kept ---- */

static bool is_held_by_nobody(uint32_t n)
{
    return atomic_load(&object_at(n)->state) == FR_OBJECT_OWN && card_is_sound(object_at(n)) && !held_by_others(object_at(n), FR_NOBODY);
}

void fr_objects_settle(void)
{
    for (uint32_t n = 0, high = objects_in_use(); n < high; n++) {
        struct fr_object *o = object_at(n);
        uint64_t key = o->key[1];
        if (!is_held_by_nobody(n) || descriptor_open(o) || !lock_table()) continue;
        if (is_held_by_nobody(n) && o->key[1] == key) release_own(n); /* nobody joined it meanwhile, and it is still the same */
        fr_objects_unlock();
    }
}
