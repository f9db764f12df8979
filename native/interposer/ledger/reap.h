/* Gives back what dead processes held. */
#ifndef FRACTILE_LEDGER_REAP_H
#define FRACTILE_LEDGER_REAP_H

#include <stdbool.h>
#include <stdint.h>

void fr_reap(void);
void fr_reap_when_due(uint32_t every_ms); /* one interval for the whole container; the first caller after it reaps */
bool fr_reap_slot(uint32_t slot); /* the caller has locked its byte; false: not now, another process keeps the objects' lock */
void fr_reap_if_dead(uint32_t slot);

/* The lock of the table of objects. False: another process does not release it. A reaper takes it as the slot that it reaps. */
bool fr_objects_lock_as(uint32_t slot);
void fr_objects_unlock(void);
void fr_objects_free_from(uint32_t slot); /* the slot is no longer in use: releases the lock if the slot still has it */

#endif
