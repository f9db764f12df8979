/* Giving back what the dead held. */
#ifndef FRACTILE_LEDGER_REAP_H
#define FRACTILE_LEDGER_REAP_H

#include <stdbool.h>
#include <stdint.h>

void fr_reap(void);
void fr_reap_when_due(uint32_t every_ms); /* one for the whole container, whoever comes by */
bool fr_reap_slot(uint32_t slot); /* whose byte the caller has locked; false: not now, somebody holds on to the objects */
void fr_reap_if_dead(uint32_t slot);

/* The lock of the table of objects. False: somebody holds on to it. A reaper locks as the slot that it reaps. */
bool fr_objects_lock_as(uint32_t slot);
void fr_objects_unlock(void);
void fr_objects_free_from(uint32_t slot); /* no longer in use: takes the lock from it if it stands there still */

#endif
