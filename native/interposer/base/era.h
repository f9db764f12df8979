/* The era says which process this is. A forked child is another process: what its parent remembered is void in it, and so are
 * the locks that threads of the parent held. */
#ifndef FRACTILE_BASE_ERA_H
#define FRACTILE_BASE_ERA_H

#include "base/compiler.h"

#include <stdatomic.h>
#include <stdint.h>

#define FR_OWN_BYTES 4032 /* the part that the page's users have */

/* The kernel wipes the page for a child, so in a child `counted` is 0 until fr_era has counted that child. */
struct fr_own_page {
    _Alignas(64) _Atomic uint32_t counted;
    _Alignas(64) unsigned char own[FR_OWN_BYTES];
};

extern _Atomic uint32_t fr_era; /* changes in a forked child at the first fr_era_now there */
extern struct fr_own_page *_Atomic fr_own_page;

#define FR_COUNTED 2
struct fr_own_page *fr_own_page_slowly(void); /* NULL: no memory */
void fr_own_page_in_child(void);              /* for kernels before 4.14, which do not wipe the page */

static inline struct fr_own_page *fr_own_page_now(void)
{
    struct fr_own_page *p = atomic_load_explicit(&fr_own_page, memory_order_acquire);
    return likely(p && atomic_load_explicit(&p->counted, memory_order_acquire) == FR_COUNTED) ? p : fr_own_page_slowly();
}

/* The era of this process. It does not change while the process lives: a lock that was taken under one number would be free
 * under the next. */
static inline uint32_t fr_era_now(void)
{
    fr_own_page_now();
    return atomic_load_explicit(&fr_era, memory_order_relaxed);
}

#endif
