/* Turns at memory whose size only the driver knows: a pool's (pool.c), or that of a device's graphs (graph.c). The thread that
 * has the turn makes the driver change the size, and sets the charge to what the driver has before it passes the turn on.
 *
 * The thread that has the turn may find that the driver has given memory back. It then lowers the charge also on behalf of
 * other threads, which find the turn taken. So a free is announced from before the turn is taken until the charge is right: a
 * process that is out of memory waits for it. */
#ifndef FRACTILE_MEMORY_TURN_H
#define FRACTILE_MEMORY_TURN_H

#include "base/lock.h"
#include "ledger/ledger.h"

#include <stdatomic.h>
#include <stdbool.h>

struct fr_turn {
    struct fr_mutex lock;
    struct fr_op back;  /* the free that the thread with the turn announced */
    _Atomic bool stale; /* the memory may have become smaller than the charge */
};

typedef void fr_turn_compare(void *memory); /* sets the charge to what the driver has; called during the turn */

void fr_turn_take(struct fr_turn *t, int card);
void fr_turn_give(struct fr_turn *t, fr_turn_compare *compare, void *memory);
void fr_turn_settle(struct fr_turn *t, int card, fr_turn_compare *compare, void *memory); /* compares, or leaves that to the thread that has the turn;
                                                                                            FR_NO_CARD: the caller has announced a free that ends later */

#endif
