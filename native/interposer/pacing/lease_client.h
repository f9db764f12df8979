/* The lease client: the thread that communicates with the arbiter. See lease_client.c. */
#ifndef FRACTILE_PACING_LEASE_CLIENT_H
#define FRACTILE_PACING_LEASE_CLIENT_H

#include <stdbool.h>

struct fr_paced_card;

void fr_lease_start(int card); /* starts one thread per paced card that this process uses */
void fr_lease_wake(int card);  /* makes the thread look at the gate, which is ASKED or CLOSED */
void fr_lease_after_fork(void);
void fr_lease_close(struct fr_paced_card *p); /* the turn is over */
bool fr_arbiter_lives(void); /* according to the limits page */

#endif
