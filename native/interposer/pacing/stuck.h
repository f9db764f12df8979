/* Launches through a gate that stays closed: see stuck.c. */
#ifndef FRACTILE_PACING_STUCK_H
#define FRACTILE_PACING_STUCK_H

#include <stdbool.h>
#include <stdint.h>

struct fr_paced_card;

bool fr_stuck_may_launch(struct fr_paced_card *p, uint64_t now); /* with the gate closed, counted as inside */
uint64_t fr_stuck_look(const struct fr_paced_card *p);           /* not before, if nothing changes */

/* By who closes the gate; by the lease client while it waits: something that it waited for is done; when nothing is in flight any more. */
void fr_stuck_begin(struct fr_paced_card *p);
void fr_stuck_goes_on(struct fr_paced_card *p);
bool fr_stuck_end(struct fr_paced_card *p); /* true: from now on nobody goes, but who is inside may have just gone */
bool fr_stuck_again(struct fr_paced_card *p); /* true: somebody had gone, and it is stuck again */

#endif
