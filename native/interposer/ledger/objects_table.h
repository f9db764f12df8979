/* What becomes of the objects of a dead slot. The caller has locked its byte. */
#ifndef FRACTILE_LEDGER_OBJECTS_TABLE_H
#define FRACTILE_LEDGER_OBJECTS_TABLE_H

#include <stdbool.h>
#include <stdint.h>

bool fr_objects_lock_as(uint32_t slot);
void fr_objects_unlock(void);
void fr_objects_free_from(uint32_t slot); /* no longer in use: takes the lock from it if it stands there still */
void fr_objects_drop(uint32_t slot);
void fr_objects_settle(void); /* frees what only descriptors kept, when they are closed; of a process with a slot */

#endif
