/* The process that has a slot: see slot_owner.c. */
#ifndef FRACTILE_LEDGER_SLOT_OWNER_H
#define FRACTILE_LEDGER_SLOT_OWNER_H

#include <stdbool.h>

struct fr_slot;

bool fr_slot_over(const struct fr_slot *s);  /* its byte is free: has its process really ended? */
void fr_slot_describe(struct fr_slot *s);    /* writes this process into it */

#endif
