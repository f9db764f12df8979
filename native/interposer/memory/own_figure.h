/* What the driver says that this process holds on a card: see own_figure.c. */
#ifndef FRACTILE_OWN_FIGURE_H
#define FRACTILE_OWN_FIGURE_H

#include <stdbool.h>
#include <stdint.h>

#define FR_LISTED 256 /* processes on a card; with more there is no figure */

struct fr_neighbours {
    bool known;
    unsigned count, pids[FR_LISTED];
};
void fr_neighbours_note(int card, struct fr_neighbours *out);

/* held: by the driver's word; charged: for this process in the ledger, at the same time and with nothing given back meanwhile.
 * before: the card before this process's first context was made on it, or NULL. False: there is no such figure. */
bool fr_own_figure(int card, const struct fr_neighbours *before, uint64_t *held, uint64_t *charged);

#endif
