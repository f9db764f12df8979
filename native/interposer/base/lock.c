/* A lock of one process for a handful of instructions. The word holds the era of the process that took it, plus one: what
 * a thread of the parent held when the process was forked is void in the child, whose era is another. */
#include "fractile.h"

#include <sched.h>

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

void fr_lock(struct fr_lock *lock)
{
    uint32_t mine = atomic_load_explicit(&fr_era, memory_order_relaxed) + 1;
    if (!mine) mine = 1;
    for (unsigned turn = 1;; turn++) {
        uint32_t seen = atomic_load_explicit(&lock->word, memory_order_relaxed);
        if (seen != mine && atomic_compare_exchange_weak_explicit(&lock->word, &seen, mine, memory_order_acquire, memory_order_relaxed))
            return;
        relax();
        if (turn % 64 == 0) sched_yield(); /* the holder may be waiting for this processor */
    }
}

void fr_unlock(struct fr_lock *lock)
{
    atomic_store_explicit(&lock->word, 0, memory_order_release);
}
