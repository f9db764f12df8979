/* Calls that allocate or free in a context while another thread may end it.
 *
 * A primary context may be reset while other threads work in it. What one of these threads got from the driver just before the
 * reset went with the context, but its record is written after all others were moved away (context.c), so its charge would
 * never be given back. Therefore a thread that has ended a primary context waits for the calls under way, and then takes the
 * records that they have written. No thread makes the context again meanwhile, since that needs the same turn (primary.c).
 *
 * Calls are counted on one of two sides. A thread that waits directs new calls to the other side, so that it does not wait for
 * those. If a call hangs in the driver, the wait ends after A_WHILE_MS; what that call records then stays charged until the
 * process ends. */
#include "memory/context_users.h"

#include "base/compiler.h"
#include "base/kernel.h"
#include "base/lock.h"
#include "ledger/ledger.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CARDS 64
#define NAP_US 50
#define A_WHILE_MS 4000 /* hundreds of threads on two processors take more than a second for a call */

struct users {
    _Atomic uint32_t side, count[2];
    uint8_t apart[52]; /* gives each card a cache line of its own */
};
static FR_LARGE struct users users[CARDS];
static struct fr_once begun;

static void clear_counts(void) /* a forked child has none of its parent's threads */
{
    for (int i = 0; i < CARDS; i++) atomic_store(&users[i].count[0], 0), atomic_store(&users[i].count[1], 0);
}

void fr_user_begin(struct fr_user *u, int card)
{
    u->card = card >= 0 && card < CARDS ? card : FR_NO_CARD;
    if (u->card == FR_NO_CARD) return;
    fr_once(&begun, clear_counts);
    for (;;) {
        u->side = atomic_load(&users[card].side) & 1;
        atomic_fetch_add(&users[card].count[u->side], 1);
        if (likely((atomic_load(&users[card].side) & 1) == u->side)) return;
        atomic_fetch_sub(&users[card].count[u->side], 1);
    }
}

void fr_user_end(struct fr_user *u)
{
    if (u->card == FR_NO_CARD) return;
    atomic_fetch_sub_explicit(&users[u->card].count[u->side], 1, memory_order_release);
    u->card = FR_NO_CARD;
}

void fr_users_wait(int card)
{
    if (card < 0 || card >= CARDS) return;
    uint32_t until = fr_coarse_ms() + A_WHILE_MS;
    fr_once(&begun, clear_counts);
    uint32_t side = atomic_fetch_add(&users[card].side, 1) & 1;
    while (atomic_load_explicit(&users[card].count[side], memory_order_acquire) && (int32_t)(until - fr_coarse_ms()) > 0) fr_sleep_us(NAP_US);
}
