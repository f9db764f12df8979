/* The agent's page of limits, mapped. */
#ifndef FRACTILE_LEDGER_LIMITS_PAGE_H
#define FRACTILE_LEDGER_LIMITS_PAGE_H

#include <stdbool.h>

bool fr_limits_map(void);         /* false, and said, when there is none to be used. The caller holds the process's set-up lock */
bool fr_isolation_is_off(void);   /* the administrator's switch, as it stands now */

#endif
