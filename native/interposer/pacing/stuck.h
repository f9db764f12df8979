/* Lets single launches through a gate that stays closed, so that a program cannot wait for itself: see stuck.c. */
#ifndef FRACTILE_PACING_STUCK_H
#define FRACTILE_PACING_STUCK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdint.h>

struct fr_paced_card;

#define FR_STUCK_NEVER_NS (2 * FR_WINDOW_NS)
/* With the gate closed, counted as inside. `ns`: what the launch takes of the room. */
bool fr_stuck_may_launch(struct fr_paced_card *p, uint64_t ns, bool unknown, uint64_t now);
uint64_t fr_stuck_unknown_ns(const struct fr_paced_card *p, bool behind); /* what a launch of unknown length takes; behind: other work */
uint64_t fr_stuck_look(const struct fr_paced_card *p, uint64_t ns); /* when that launch may go, if nothing changes; 0: it may not */

void fr_stuck_took_longer(struct fr_paced_card *p, uint64_t ns); /* ... than predicted: takes of the room, too */

void fr_stuck_begin(struct fr_paced_card *p);   /* by the thread that closes the gate */
void fr_stuck_goes_on(struct fr_paced_card *p); /* by the lease client while it waits: something that it waited for is done */
/* By the lease client, when nothing is in flight any more. No launch goes from now on. True: a launch may have gone just before. */
bool fr_stuck_end(struct fr_paced_card *p);
bool fr_stuck_again(struct fr_paced_card *p);   /* true: a launch had gone, so the wait starts again */

#endif
