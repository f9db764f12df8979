/* Waiting for others that are on their way, before anything is out of memory. */
#ifndef FRACTILE_LEDGER_OOM_RETRY_H
#define FRACTILE_LEDGER_OOM_RETRY_H

#include <stdbool.h>
#include <stdint.h>

struct fr_retry { uint64_t start; unsigned round; }; /* zero: nothing was waited yet. One for all that an allocation tries */
bool fr_reserve_with_retry(int card, uint64_t units, struct fr_retry *patience); /* false: it does not fit, and nothing on its way would make it fit */
bool fr_retry_wait(struct fr_retry *retry); /* for others on their way, a little longer each time; false: 2 s are over */

#endif
