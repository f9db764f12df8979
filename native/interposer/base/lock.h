/* Locks within this process. A forked child finds them free. */
#ifndef FRACTILE_BASE_LOCK_H
#define FRACTILE_BASE_LOCK_H

#include "base/compiler.h"
#include "base/era.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* For the library's own tables: held for a handful of instructions, never across a driver call. A waiting thread spins. */
struct fr_lock { _Atomic uint32_t word; };
void fr_lock_slowly(struct fr_lock *lock, uint32_t mine);
static inline void fr_lock(struct fr_lock *lock)
{
    uint32_t mine = fr_era_now() + 1, seen = atomic_load_explicit(&lock->word, memory_order_relaxed);
    bool free_now = seen != mine && mine; /* an era whose number here would be 0 is left to fr_lock_slowly */
    if (likely(free_now && atomic_compare_exchange_strong_explicit(&lock->word, &seen, mine, memory_order_acquire, memory_order_relaxed))) return;
    fr_lock_slowly(lock, mine);
}
static inline void fr_unlock(struct fr_lock *lock) { atomic_store_explicit(&lock->word, 0, memory_order_release); }

/* Held across one driver call. A waiting thread sleeps. */
struct fr_mutex { _Atomic uint32_t word; };
void fr_mutex_lock(struct fr_mutex *mutex);
bool fr_mutex_try(struct fr_mutex *mutex);
void fr_mutex_unlock(struct fr_mutex *mutex);

/* For state that a forked child must not inherit, where no lock is held: set_right runs once in each process, before any thread
 * there continues. */
struct fr_once {
    struct fr_lock lock;
    _Atomic uint32_t era;
};
void fr_once_slowly(struct fr_once *once, void (*set_right)(void));
static inline void fr_once(struct fr_once *once, void (*set_right)(void))
{
    if (unlikely(atomic_load_explicit(&once->era, memory_order_acquire) != fr_era_now())) fr_once_slowly(once, set_right);
}

#endif
