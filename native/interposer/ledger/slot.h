/* This process's slot in the region (see slot.c). */
#ifndef FRACTILE_LEDGER_SLOT_H
#define FRACTILE_LEDGER_SLOT_H

#include <stdbool.h>

bool fr_slot_take(void);
void fr_slot_before_fork(void);
void fr_slot_after_fork(void); /* in the parent */
void fr_slot_in_child(void);

#endif
