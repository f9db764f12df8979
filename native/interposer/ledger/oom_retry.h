/* Waiting for running calls of other threads and processes before a request is refused as out of memory. */
#ifndef FRACTILE_LEDGER_OOM_RETRY_H
#define FRACTILE_LEDGER_OOM_RETRY_H

#include <stdbool.h>
#include <stdint.h>

struct fr_retry { uint64_t start; unsigned round; }; /* zero: no wait yet. One for all attempts of an allocation */
bool fr_reserve_with_retry(int card, uint64_t units, struct fr_retry *patience); /* false: it does not fit, and no running call would make it fit */
bool fr_retry_wait(struct fr_retry *retry); /* waits for running calls, a little longer each time; false: 2 s are over */

#endif
