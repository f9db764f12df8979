/* This process's paced cards: is the lease client still running, and which cards does the process use together. */
#include "pacing/paced_card.h"

#include "base/compiler.h"
#include "ledger/limits.h"
#include "ledger/shared.h"
#include "memory/api_pool.h"
#include "resolve/real.h"

#include "clock.h"
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

void fr_lease_client_is_alive(struct fr_paced_card *card) { atomic_store_explicit(&card->alive_at, clock_now(), memory_order_relaxed); }

/* Work in flight may be waiting for the program. Then the lease client waits for that work in the driver, for as long as it takes. Events live as
 * long as their context and are reused. At worst a dead client is once taken to be alive. */
bool fr_lease_client_lives(struct fr_paced_card *card, uint64_t now)
{
    CUevent event = atomic_load(&card->waits_for);
    uint64_t since = atomic_load_explicit(&card->alive_at, memory_order_relaxed);
    if (now < since + FR_SILENT_NS) return true;
    if (event == FR_WAITS_FOR_ALL) return now < since + FR_IN_DRIVER_NS;
    return event && REAL(cuEventQuery)(event) == CUDA_ERROR_NOT_READY;
}

/* Cards that a process uses together get their turns together. */
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
