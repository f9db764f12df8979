/* What this process holds on a card, as the driver reports it (see own_figure.c). */
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

/* held: as the driver reports; charged: for this process in the ledger, at the same time and with nothing given back meanwhile.
 * before: the card before this process's first context was made on it, or NULL. False: the figure is not available. */
bool fr_own_figure(int card, const struct fr_neighbours *before, uint64_t *held, uint64_t *charged);

#endif
