/* The agent's limits page, mapped. */
#ifndef FRACTILE_LEDGER_LIMITS_PAGE_H
#define FRACTILE_LEDGER_LIMITS_PAGE_H

#include "ledger/shared.h"

#include "region.h"

#include <stdbool.h>
#include <stdint.h>

struct fr_quota;

bool fr_limits_map(void);                            /* false, with a message, if no page is usable. The caller holds the process's set-up lock */
void fr_limits_read(int card, struct fr_quota *out); /* card: one of the mapped page; the last good numbers if it cannot be read */
uint64_t fr_limits_may_hold(int card);               /* the same, only the number that an allocation needs */
const char *fr_limits_uuid(int card);

/* The administrator's switch, in its current state. */
static inline bool fr_isolation_is_off(void)
{
    const struct fr_limits *page = __atomic_load_n(&fr_shared.limits, __ATOMIC_ACQUIRE);
    return page && __atomic_load_n(&page->flags, __ATOMIC_RELAXED) & FR_FLAG_ISOLATION_OFF;
}

#endif
