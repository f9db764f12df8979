/* Giving back what the dead held. Who gets a slot's byte lock while the slot is in use knows that its process is dead, and
 * continues as that process: it finishes what was begun, lets go of its objects, and releases each account by an
 * operation of that very account. Killed in the middle, it leaves what the next one continues in the same way. */
#include "ledger/reap.h"

#include "base/compiler.h"
#include "base/kernel.h"
#include "base/point.h"
#include "ledger/account.h"
#include "ledger/attach.h"
#include "ledger/objects_table.h"
#include "ledger/process.h"
#include "ledger/shared.h"
#include "ledger/slot.h"

#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

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

/* While it looks, its own slot says so: others do not call themselves out of memory meanwhile. */
static void announce(bool joined, uint32_t change)
{
    if (joined) atomic_fetch_add(&fr_slot(fr_shared.slot)->reaping, change);
}

void fr_reap(void)
{
    int before = errno;
    bool joined = fr_process_is_joined();
    announce(joined, 1);
    int fd = fr_region_open();
    for (uint32_t n = 0, high = fd < 0 ? 0 : fr_slots_in_use(); n < high; n++)
        if (!(joined && n == fr_shared.slot) && atomic_load(&fr_slot(n)->state) != FR_SLOT_FREE) reap_if_dead(fd, n);
    if (fd >= 0) fr_close(fd);
    if (joined) fr_objects_settle();
    announce(joined, (uint32_t)-1);
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
