/* Detects a fork by one page that the kernel wipes in the child. When the page is found wiped, a number (the era) is counted
 * up. */
#include "base/era.h"

#include "base/kernel.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
enum { COUNTING = 1 };

_Static_assert(sizeof(struct fr_own_page) <= 4096, "one page");

_Atomic uint32_t fr_era;
struct fr_own_page *_Atomic fr_own_page;
static _Atomic bool wiped_by_us;

static struct fr_own_page *new_page(void)
{
    struct fr_own_page *none = NULL, *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    atomic_store(&p->counted, 0); /* reading the page before writing it costs two faults */
    if (madvise(p, sizeof *p, MADV_WIPEONFORK) != 0) atomic_store(&wiped_by_us, true);
    if (atomic_compare_exchange_strong(&fr_own_page, &none, p)) return p;
    munmap(p, sizeof *p);
    return none;
}

/* Counts this process once. No thread returns before the number is the new one. */
static void count(struct fr_own_page *p)
{
    for (uint32_t seen = 0; !atomic_compare_exchange_weak(&p->counted, &seen, COUNTING); seen = 0) {
        if (seen == FR_COUNTED) return;
        if (seen) fr_sleep_us(20);
    }
    atomic_fetch_add(&fr_era, 1);
    atomic_store_explicit(&p->counted, FR_COUNTED, memory_order_release);
}

struct fr_own_page *fr_own_page_slowly(void)
{
    int before = errno;
    struct fr_own_page *p = atomic_load_explicit(&fr_own_page, memory_order_acquire);
    if (!p) p = new_page();
    if (p) count(p);
    errno = before;
    return p;
}

void fr_own_page_in_child(void)
{
    struct fr_own_page *p = atomic_load(&fr_own_page);
    if (p && atomic_load(&wiped_by_us)) memset(p, 0, sizeof *p);
}
