/* Calls that allocate or free in a context while another thread may end it (see context_users.c). */
#ifndef FRACTILE_MEMORY_CONTEXT_USERS_H
#define FRACTILE_MEMORY_CONTEXT_USERS_H

#include <stdint.h>

struct fr_user { /* a call under way */
    int card;
    uint32_t side;
};
void fr_user_begin(struct fr_user *u, int card); /* before the driver's call; FR_NO_CARD is harmless */
void fr_user_end(struct fr_user *u);             /* its results are in the records */
void fr_users_wait(int card);                    /* for all that have begun; one thread at a time */

#endif
