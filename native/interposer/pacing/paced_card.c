/* The cards whose time is shared out, as this process sees them, and which of them it uses together. */
#include "pacing/paced_card.h"

#include "base/compiler.h"
#include "ledger/limits.h"
#include "ledger/shared.h"

#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FR_LARGE struct fr_paced_card fr_paced_cards[FR_MAX_CARDS];

struct fr_account *fr_paced_card_account(const struct fr_paced_card *card)
{
    return fr_process_is_joined() ? fr_slot_account(fr_shared.slot, (uint32_t)(card - fr_paced_cards)) : NULL;
}

/* Cards that are used together are held together. */
#define TOGETHER_NS 100000000ull
uint64_t fr_paced_cards_gang(uint64_t now)
{
    uint64_t cards = 0;
    for (int i = 0; i < fr_card_count() && i < (int)FR_MAX_CARDS; i++) {
        struct fr_paced_card *p = &fr_paced_cards[i];
        bool lately = atomic_load(&p->last_launch) + TOGETHER_NS > now && atomic_load(&p->last_launch);
        if (lately || atomic_load(&p->waiting)) cards |= 1ull << i;
    }
    return cards;
}
