/* This process's slot in the region. The process keeps the OFD lock of the slot's byte for life without keeping a descriptor:
 * one page stays mapped through the open file that has the lock. So the lock goes when the process's memory goes, not when a
 * program closes descriptors that it did not open.
 *
 * A child of fork() unmaps that page in its fork handler, or helpers that never use a card would keep a dead parent's charge. A
 * child that runs no fork handlers (a plain system call made it) may hold the driver's descriptors, and with them the memory.
 * It keeps the page, and the charge with it. The region is mapped through another open file, as children do keep that one. */
#include "ledger/slot.h"

#include "base/kernel.h"
#include "base/message.h"
#include "base/point.h"
#include "ledger/attach.h"
#include "ledger/reap.h"
#include "ledger/shared.h"
#include "ledger/slot_owner.h"

#include "region.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096
#define PATIENCE 20000 /* times 100 us: by then a thread that lost the processor in the middle has it again */

/* A child must not keep the descriptor or the page: the lock would live on in the child. So no thread forks while another one takes a slot, and no thread takes a slot during a fork. A signal handler may fork in the
 * middle of its own thread: then it does not wait, and the child closes the descriptor and unmaps the page. */
static _Atomic int in_the_middle; /* the thread that takes a slot; negative: the one that forks; 0: none */
static _Atomic int joining = -1;
static void *_Atomic kept; /* the page */

static int this_thread(void) { return (int)syscall(SYS_gettid); }

static void enter(int as)
{
    int none = 0;
    for (int i = 0; i < PATIENCE && !atomic_compare_exchange_strong(&in_the_middle, &none, as); i++, none = 0) fr_sleep_us(100);
}

static void leave(int as) { atomic_compare_exchange_strong(&in_the_middle, &as, 0); }

void fr_slot_before_fork(void)
{
    if (atomic_load(&in_the_middle) != this_thread()) enter(-this_thread());
}

void fr_slot_after_fork(void)
{
    leave(-this_thread());
}

static void drop_page(void)
{
    void *page = atomic_exchange(&kept, NULL);
    if (page) munmap(page, PAGE);
}

void fr_slot_in_child(void)
{
    int fd = atomic_exchange(&joining, -1);
    if (fd >= 0) fr_close(fd);
    drop_page();
    atomic_store(&in_the_middle, 0);
}

static void clear_statistics(uint32_t slot)
{
    for (uint32_t card = 0; card < fr_shared.card_count; card++) {
        struct fr_account *a = fr_slot_account(slot, card);
        atomic_store(&a->gpu_ns, 0);
        atomic_store(&a->launches, 0);
        atomic_store(&a->waited_ns, 0);
        atomic_store(&a->throttled_ns, 0);
    }
}

static void raise_high(uint32_t high)
{
    uint32_t seen = atomic_load(&fr_shared.region->slot_high);
    while (seen < high && !atomic_compare_exchange_weak(&fr_shared.region->slot_high, &seen, high)) {}
}

/* This process has locked the slot's byte. */
static bool move_in(uint32_t slot)
{
    struct fr_slot *s = fr_slot(slot);
    raise_high(slot + 1);
    FR_POINT();
    if (atomic_load(&s->state) != FR_SLOT_FREE && !(fr_slot_over(s) && fr_reap_slot(slot))) return false; /* of a process that died */
    atomic_store(&s->state, FR_SLOT_TAKEN);
    FR_POINT();
    fr_slot_describe(s);
    clear_statistics(slot);
    atomic_store(&s->reaping, 0);
    atomic_fetch_add(&s->generation, 1);
    FR_POINT();
    atomic_store(&s->state, FR_SLOT_LIVE);
    FR_POINT();
    atomic_fetch_add(&fr_shared.region->sequence, 1);
    return true;
}

/* Tries first the slots that look free, then those whose process may be dead. */
static bool find_place(int fd, bool also_used)
{
    for (uint32_t n = 0; n < fr_shared.slot_count; n++) {
        if (!also_used && atomic_load_explicit(&fr_slot(n)->state, memory_order_relaxed) != FR_SLOT_FREE) continue;
        if (!fr_byte_lock(fd, n, F_WRLCK)) continue; /* in use, or about to be */
        if (move_in(n)) {
            fr_shared.slot = n;
            return true;
        }
        fr_byte_lock(fd, n, F_UNLCK);
    }
    return false;
}

/* The page is known before the file is mapped there: a signal handler may fork in between. */
static bool keep_lock(int fd)
{
    void *page = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return false;
    atomic_store(&kept, page);
    if (mmap(page, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED) return true;
    drop_page();
    return false;
}

static bool take(int fd)
{
    if (!keep_lock(fd)) {
        fr_say(FR_SAY_REGION, "%s/shared/region cannot be mapped: this process may hold no GPU memory", fr_shared.directory);
        return false;
    }
    if (find_place(fd, false) || find_place(fd, true)) return true;
    drop_page();
    fr_say(FR_SAY_FULL, "all %u places for processes of this container are taken: this process may hold no GPU memory", fr_shared.slot_count);
    return false;
}

/* Also maps the region, in a process that has not looked at it yet. */
bool fr_slot_take(void)
{
    enter(this_thread());
    int fd = fr_region_map() ? fr_region_open() : -1;
    atomic_store(&joining, fd);
    bool taken = fd >= 0 && fr_region_use(fd) && take(fd);
    atomic_store(&joining, -1);
    if (fd >= 0) fr_close(fd);
    leave(this_thread());
    return taken;
}
