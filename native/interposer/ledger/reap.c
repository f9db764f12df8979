/* Gives back what dead processes held. A process that gets a slot's byte lock while the slot is in use knows that the slot's
 * process is dead, and continues in its place: it finishes what was begun, lets go of the dead process's objects, and releases
 * each account by an operation of that same account. If it is killed in the middle, the next process continues in the same way. */
#include "ledger/reap.h"

#include "base/compiler.h"
#include "base/kernel.h"
#include "base/point.h"
#include "ledger/account.h"
#include "ledger/attach.h"
#include "ledger/descriptor.h"
#include "ledger/frees.h"
#include "ledger/objects_table.h"
#include "ledger/shared.h"
#include "ledger/slot_owner.h"

#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- the lock of the table of objects. Its holder may die, so a process that waits for it may have to reap. ---- */

#define PATIENCE_NS 1000000000ull /* for a holder that was stopped in the middle: others must not hang */
#define CHECK_EVERY 16            /* pauses: then check whether the holder is alive */

static bool take_if_free(uint32_t mine)
{
    _Atomic uint32_t *word = &fr_shared.region->object_lock;
    uint32_t seen = atomic_load(word);
    if (seen != 0 && seen <= fr_shared.slot_count) return false;
    return atomic_compare_exchange_strong(word, &seen, mine); /* seen is 0, or damage */
}

bool fr_objects_lock_as(uint32_t slot)
{
    _Atomic uint32_t *word = &fr_shared.region->object_lock;
    if (slot != fr_shared.slot || !fr_process_is_joined())
        if (atomic_load(word) == slot + 1) return true; /* its process died holding the lock */
    uint64_t start = fr_clock_ns(CLOCK_MONOTONIC);
    for (unsigned round = 1; !take_if_free(slot + 1); round++) {
        if (round < 4) syscall(SYS_sched_yield);
        else fr_sleep_us(50);
        uint32_t holder = atomic_load(word);
        /* Where processors are scarce, a few rounds can outlast the time limit: check the holder in any case before giving up. */
        bool late = fr_clock_ns(CLOCK_MONOTONIC) - start > PATIENCE_NS;
        if ((late || round % CHECK_EVERY == 0) && holder != 0 && holder != slot + 1) fr_reap_if_dead(holder - 1);
        if (late && !take_if_free(slot + 1)) return false;
        if (late) break;
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

/* ---- one slot ---- */

static void release_account(uint32_t slot, uint32_t card)
{
    struct fr_account *a = fr_slot_account(slot, card);
    uint64_t units = fr_charged_units(a);
    if (units) fr_account_add(slot, card, -(int64_t)units, 0);
    atomic_store(&a->slack, 0);
    atomic_store(&a->frees, 0);
    atomic_store(&a->contexts, 0);
    FR_POINT();
}

bool fr_reap_slot(uint32_t slot)
{
    struct fr_slot *s = fr_slot(slot);
    atomic_store(&s->state, FR_SLOT_REAPED);
    FR_POINT();
    if (!fr_objects_lock_as(slot)) return false;
    for (uint32_t card = 0; card < fr_shared.card_count; card++) fr_account_recover(slot, card);
    fr_objects_drop(slot);
    for (uint32_t card = 0; card < fr_shared.card_count; card++) release_account(slot, card);
    fr_objects_unlock();
    FR_POINT();
    atomic_store(&s->reaping, 0);
    atomic_store(&s->state, FR_SLOT_FREE);
    FR_POINT();
    atomic_fetch_add(&fr_shared.region->sequence, 1);
    return true;
}

static void reap_if_dead(int fd, uint32_t slot)
{
    if (!fr_byte_lock(fd, slot, F_WRLCK)) return;
    bool over = atomic_load(&fr_slot(slot)->state) == FR_SLOT_FREE || fr_slot_over(fr_slot(slot));
    if (over && atomic_load(&fr_slot(slot)->state) != FR_SLOT_FREE) fr_reap_slot(slot);
    if (over) fr_objects_free_from(slot);
    fr_byte_lock(fd, slot, F_UNLCK);
}

struct left { /* objects without a holder */
    uint32_t count, at[FR_DESCRIPTORS_AT_ONCE];
    struct fr_key key[FR_DESCRIPTORS_AT_ONCE];
    bool open[FR_DESCRIPTORS_AT_ONCE];
};

static void free_closed(struct left *l)
{
    fr_descriptors_open(l->key, l->open, l->count);
    bool looked_at = fr_objects_are_looked_at();
    for (uint32_t i = 0; i < l->count && !looked_at; i++) {
        if (l->open[i] || !fr_objects_lock_as(fr_shared.slot)) continue;
        bool same = fr_object_at(l->at[i])->key[1] == l->key[i].b; /* another object may be in its place by now */
        if (same && fr_object_is_left(l->at[i])) fr_object_release_own(l->at[i]);
        fr_objects_unlock();
    }
    l->count = 0;
}

/* Frees objects that only descriptors kept, once those are closed. This process must have a slot. */
static void settle_objects(void)
{
    struct left l = {.count = 0};
    for (uint32_t n = 0, high = fr_objects_in_use(); n < high; n++) {
        if (!fr_object_is_left(n)) continue;
        l.at[l.count] = n;
        l.key[l.count++] = (struct fr_key){fr_object_at(n)->key[0], fr_object_at(n)->key[1]};
        if (l.count == FR_DESCRIPTORS_AT_ONCE) free_closed(&l);
    }
    if (l.count) free_closed(&l);
}

/* During a search this process's own slot announces it, so that other processes do not report that they are out of memory
 * meanwhile. */
static uint32_t announce(bool joined) { return joined ? fr_frees_begin(&fr_slot(fr_shared.slot)->reaping) : 0; }

static void looked(bool joined, uint32_t epoch)
{
    if (joined) fr_frees_end(&fr_slot(fr_shared.slot)->reaping, epoch);
}

void fr_reap(void)
{
    int before = errno;
    bool joined = fr_process_is_joined();
    uint32_t epoch = announce(joined);
    int fd = fr_region_open();
    for (uint32_t n = 0, high = fd < 0 ? 0 : fr_slots_in_use(); n < high; n++)
        if (!(joined && n == fr_shared.slot) && atomic_load(&fr_slot(n)->state) != FR_SLOT_FREE) reap_if_dead(fd, n);
    if (fd >= 0) fr_close(fd);
    if (joined) settle_objects();
    looked(joined, epoch);
    errno = before;
}

void fr_reap_when_due(uint32_t every_ms)
{
    _Atomic uint32_t *word = &fr_shared.region->reaped_ms;
    uint32_t now = fr_coarse_ms(), last = atomic_load_explicit(word, memory_order_relaxed);
    if (likely(now - last < every_ms)) return;
    if (atomic_compare_exchange_strong(word, &last, now)) fr_reap();
}

void fr_reap_if_dead(uint32_t slot)
{
    int fd = fr_region_open();
    if (fd < 0) return;
    reap_if_dead(fd, slot);
    fr_close(fd);
}
