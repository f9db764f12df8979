/* Calls after which pools may be smaller (see pool_shrink.c). */
#ifndef FRACTILE_MEMORY_POOL_SHRINK_H
#define FRACTILE_MEMORY_POOL_SHRINK_H

#include "ledger/ledger.h"

#include "region.h"

#include <stdint.h>

struct fr_shrinking {
    uint64_t cards;
    struct fr_op op[FR_MAX_CARDS];
    int wait; /* its place among the calls that wait; -1: none */
};
enum fr_how_long { FR_BRIEF, FR_WAITS }; /* a process short of memory waits for a brief call, but for one that waits only if memory may come back */
void fr_pools_shrinking(struct fr_shrinking *s, enum fr_how_long how_long);
void fr_shrinking_announce(struct fr_shrinking *s, int card); /* something else of that card comes back in the call, too; once for each card */
void fr_pools_shrunk(struct fr_shrinking *s);

void fr_pools_trim(int card); /* pools of this process give unused memory back to the driver, even below their threshold */

#endif
