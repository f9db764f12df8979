/* Locks of this process. A forked child finds them free. */
#ifndef FRACTILE_BASE_LOCK_H
#define FRACTILE_BASE_LOCK_H

#include "base/era.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* For the library's own tables: held for a handful of instructions, never across a driver call. */
struct fr_lock { _Atomic uint32_t word; };
void fr_lock(struct fr_lock *lock);
void fr_unlock(struct fr_lock *lock);

/* Held across one driver call. Who waits for it sleeps. */
struct fr_mutex { _Atomic uint32_t word; };
void fr_mutex_lock(struct fr_mutex *mutex);
bool fr_mutex_try(struct fr_mutex *mutex);
void fr_mutex_unlock(struct fr_mutex *mutex);

#endif
