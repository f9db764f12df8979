/* This process's slot in the region. */
#ifndef FRACTILE_LEDGER_SLOT_H
#define FRACTILE_LEDGER_SLOT_H

#include <stdbool.h>

struct fr_slot;

bool fr_slot_take(void);
void fr_slot_before_fork(void);
void fr_slot_after_fork(void); /* in the parent */
void fr_slot_in_child(void);
bool fr_slot_over(const struct fr_slot *s); /* its byte is free: has its process really ended? */

#endif
