/* The agent's limits page. A read costs a copy of one card; the next call sees a live change. */
#ifndef FRACTILE_LEDGER_LIMITS_H
#define FRACTILE_LEDGER_LIMITS_H

#include <stdint.h>

struct fr_quota {
    uint64_t memory, context, unaccounted;
    uint64_t may_hold; /* memory minus unaccounted: what all calls that the library sees may take together */
    uint32_t cores, cores_limit, weight, flags;
};
int fr_card_count(void);
const char *fr_card_uuid(int card);
void fr_quota(int card, struct fr_quota *out);

#endif
