/* Waiting for others that are on their way, before anything is out of memory. */
#ifndef FRACTILE_LEDGER_OOM_RETRY_H
#define FRACTILE_LEDGER_OOM_RETRY_H

#include <stdbool.h>
#include <stdint.h>

bool fr_reserve_with_retry(int card, uint64_t units); /* false: it does not fit, and nothing on its way would make it fit */

struct fr_retry { uint64_t start; unsigned round; };
bool fr_retry_wait(struct fr_retry *retry); /* for others on their way, a little longer each time; false: 2 s are over */

#endif
