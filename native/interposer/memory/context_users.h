/* Calls that allocate or free in a context while another thread may end it. See context_users.c. */
#ifndef FRACTILE_MEMORY_CONTEXT_USERS_H
#define FRACTILE_MEMORY_CONTEXT_USERS_H

#include <stdbool.h>
#include <stdint.h>

struct fr_user { /* a call on its way */
    int card;
    uint32_t side, ends; /* ends of contexts on the card that had begun before it */
};
void fr_user_begin(struct fr_user *u, int card); /* before the driver's call; FR_NO_CARD is harmless */
void fr_user_end(struct fr_user *u);             /* what it did stands in the records */
void fr_users_wait(int card);                    /* for all that have begun; one thread at a time */

/* Between begin and end, around questions to the driver about what the call has made. False: that may be gone already, and its
 * handle may not be used. */
bool fr_user_asks(const struct fr_user *u);
void fr_user_asked(const struct fr_user *u);
void fr_context_end_begins(int card); /* around the driver's call that ends a context */
void fr_context_end_is_over(int card);

#endif
