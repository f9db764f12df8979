/* Sets a process up at its first use of the ledger and not before: the library is loaded into every program of the container,
 * and most never use a card. A forked child is a new process; it notices that by a page that the kernel wipes for it. */
#include "ledger/process.h"

#include "base/compiler.h"
#include "base/era.h"
#include "base/kernel.h"
#include "base/lock.h"
#include "ledger/attach.h"
#include "ledger/limits_page.h"
#include "ledger/shared.h"
#include "ledger/slot.h"

#include "region.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define RETRY_MS 100 /* a failure may be repaired: descriptors freed, a slot left, a page written */

_Static_assert(sizeof(struct fr_process_page) <= FR_OWN_BYTES, "it lies in the page of base/era.h");

/* pthread_atfork calls this function; pthread_atfork itself is not a symbol of libc.so. */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso) __attribute__((weak));

static void in_child(void) /* for old kernels, and for state that a child must not keep */
{
    fr_own_page_in_child();
    fr_slot_in_child();
}

static void begin(struct fr_process_page *p)
{
    static _Atomic bool listens; /* a forked child inherits the registration */
    for (uint32_t idle = 0; !atomic_compare_exchange_weak(&p->busy, &idle, 1); idle = 0) fr_sleep_us(20);
    if (__register_atfork && !atomic_exchange(&listens, true)) __register_atfork(fr_slot_before_fork, fr_slot_after_fork, in_child, NULL);
}

static bool too_early(_Atomic uint32_t *again_ms)
{
    uint32_t at = atomic_load_explicit(again_ms, memory_order_relaxed);
    return at && (int32_t)(fr_coarse_ms() - at) < 0;
}

static void not_before(_Atomic uint32_t *again_ms)
{
    atomic_store_explicit(again_ms, (fr_coarse_ms() + RETRY_MS) | 1, memory_order_relaxed);
}

static bool looked(struct fr_process_page *p, bool done)
{
    if (done) atomic_store_explicit(&p->looked, 1, memory_order_release);
    else not_before(&p->look_again_ms);
    return done;
}

static bool limits(struct fr_process_page *p)
{
    if (atomic_load(&p->looked)) return true;
    return !too_early(&p->look_again_ms) && (fr_limits_map() || looked(p, false));
}

static bool look(struct fr_process_page *p)
{
    return atomic_load(&p->looked) || (limits(p) && looked(p, fr_region_map()));
}

/* If the process joins without having looked, the region is mapped in the same step. */
static bool join(struct fr_process_page *p)
{
    if (atomic_load(&p->joined)) return true;
    if (!limits(p) || too_early(&p->join_again_ms)) return false;
    atomic_store(&fr_shared.joined, &p->joined);
    bool taken = fr_slot_take();
    looked(p, fr_shared.region != NULL);
    if (taken) atomic_store_explicit(&p->joined, 1, memory_order_release);
    else not_before(&p->join_again_ms);
    return atomic_load(&p->joined);
}

static bool slowly(struct fr_process_page *p, bool (*step)(struct fr_process_page *))
{
    int before = errno;
    if (!p) return false;
    begin(p);
    bool done = step(p);
    atomic_store(&p->busy, 0);
    errno = before;
    return done;
}

struct fr_region *fr_process_attach_slowly(struct fr_process_page *p) { return slowly(p, look) ? fr_shared.region : NULL; }
bool fr_process_join_slowly(struct fr_process_page *p) { return slowly(p, join); }
