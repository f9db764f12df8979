/* The thread that speaks to the arbiter: see lease_client.c. */
#ifndef FRACTILE_PACING_LEASE_CLIENT_H
#define FRACTILE_PACING_LEASE_CLIENT_H

#include <stdbool.h>

struct fr_paced_card;

void fr_lease_start(int card); /* a thread per card that this process uses and that is paced */
void fr_lease_wake(int card);  /* the gate is ASKED or CLOSED: see to it */
void fr_lease_after_fork(void);
void fr_lease_close(struct fr_paced_card *p); /* the turn is over */
bool fr_arbiter_lives(void); /* as the page of limits says */

#endif
