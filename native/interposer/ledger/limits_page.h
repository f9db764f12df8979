/* The agent's page of limits, mapped. */
#ifndef FRACTILE_LEDGER_LIMITS_PAGE_H
#define FRACTILE_LEDGER_LIMITS_PAGE_H

#include <stdbool.h>

struct fr_quota;

bool fr_limits_map(void);                            /* false, and said, when there is none to be used. The caller holds the process's set-up lock */
void fr_limits_read(int card, struct fr_quota *out); /* of a card that the mapped page has; the last good numbers where it cannot be read */
const char *fr_limits_uuid(int card);
bool fr_isolation_is_off(void);   /* the administrator's switch, as it stands now */

#endif
