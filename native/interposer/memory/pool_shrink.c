/* Compares the charge of all pools of this process with the driver's figures, around a call after which pools may be smaller. */
#include "memory/pool_shrink.h"

#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "memory/api_pool.h"
#include "memory/kept_blocks.h"
#include "memory/pool.h"
#include "memory/pool_waits.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void fr_shrinking_announce(struct fr_shrinking *s, int card)
{
    s->cards |= 1ull << card;
    fr_free_begin(&s->op[card], card);
}

void fr_pools_shrinking(struct fr_shrinking *s, enum fr_how_long how_long)
{
    s->cards = 0;
    if (how_long == FR_WAITS && unlikely(atomic_load_explicit(&fr_kept_block_count, memory_order_relaxed))) fr_kept_blocks_free();
    s->wait = how_long == FR_WAITS ? fr_pool_wait_begin() : -1; /* before the pools are checked, so that no free comes in between */
    if (how_long == FR_BRIEF) {
        for (uint64_t left = fr_pools_charged(); left; left &= left - 1) fr_shrinking_announce(s, __builtin_ctzll(left));
        return;
    }
    for (struct fr_pool *p = fr_pool_next(NULL, FR_NO_CARD); p; p = fr_pool_next(p, FR_NO_CARD)) {
        bool may_come = __atomic_load_n(&p->charged, __ATOMIC_RELAXED) && !(s->cards >> p->card & 1) && fr_pool_could_shrink(p);
        if (may_come) fr_shrinking_announce(s, p->card);
    }
}

static void settle(const struct fr_shrinking *s, struct fr_pool *p)
{
    if (s->cards >> p->card & 1) fr_pool_settle_within(p);
    else fr_pool_settle(p);
}

void fr_pools_shrunk(struct fr_shrinking *s)
{
    for (struct fr_pool *p = fr_pool_next(NULL, FR_NO_CARD); p; p = fr_pool_next(p, FR_NO_CARD)) settle(s, p);
    if (s->wait >= 0) fr_pool_wait_end(s->wait);
    for (uint64_t left = s->cards; left; left &= left - 1) fr_free_end(&s->op[__builtin_ctzll(left)], 0);
}

void fr_pools_trim(int card)
{
    struct fr_shrinking s;
    fr_pools_shrinking(&s, FR_BRIEF);
    for (struct fr_pool *p = fr_pool_next(NULL, card); p; p = fr_pool_next(p, card)) REAL(cuMemPoolTrimTo)(p->handle, 0);
    fr_pools_shrunk(&s);
}
