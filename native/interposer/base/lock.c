/* Locks between the threads of one process: a spinning one for a handful of instructions, and a sleeping one. The word of the
 * spinning lock holds the era of the process that took it, plus one. A lock that a thread of the parent held at a fork is thus
 * void in the child, whose era is different. */
#include "base/lock.h"

#include "base/compiler.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

void fr_lock_slowly(struct fr_lock *lock, uint32_t mine)
{
    if (!mine) mine = 1;
    for (unsigned turn = 1;; turn++) {
        uint32_t seen = atomic_load_explicit(&lock->word, memory_order_relaxed);
        if (seen != mine && atomic_compare_exchange_weak_explicit(&lock->word, &seen, mine, memory_order_acquire, memory_order_relaxed))
            return;
        relax();
        if (turn % 64 == 0) sched_yield(); /* the holder may be waiting for this processor */
    }
}

void fr_once_slowly(struct fr_once *once, void (*set_right)(void))
{
    uint32_t era = fr_era_now();
    fr_lock(&once->lock);
    if (atomic_load(&once->era) != era) {
        set_right();
        atomic_store_explicit(&once->era, era, memory_order_release);
    }
    fr_unlock(&once->lock);
}

/* ---- the sleeping lock. Its word is twice the era plus two, and one more while a thread may wait. ---- */

static uint32_t mutex_of_this_process(void)
{
    uint32_t mine = (fr_era_now() + 1) << 1;
    return mine ? mine : 2;
}

bool fr_mutex_try(struct fr_mutex *mutex)
{
    uint32_t mine = mutex_of_this_process(), seen = atomic_load_explicit(&mutex->word, memory_order_relaxed);
    if ((seen | 1) == (mine | 1)) return false;
    return atomic_compare_exchange_strong_explicit(&mutex->word, &seen, mine, memory_order_acquire, memory_order_relaxed);
}

void fr_mutex_lock(struct fr_mutex *mutex)
{
    if (likely(fr_mutex_try(mutex))) return;
    int before = errno;
    uint32_t mine = mutex_of_this_process();
    for (;;) {
        uint32_t seen = atomic_load_explicit(&mutex->word, memory_order_relaxed);
        bool free_now = (seen | 1) != (mine | 1);
        /* A thread on this path cannot tell whether others sleep, so it marks the lock as waited for when it takes it. */
        if (seen != (mine | 1) && !atomic_compare_exchange_strong_explicit(&mutex->word, &seen, mine | 1, memory_order_acquire, memory_order_relaxed)) continue;
        if (free_now) break;
        syscall(SYS_futex, &mutex->word, FUTEX_WAIT_PRIVATE, mine | 1, NULL, NULL, 0);
    }
    errno = before;
}

static __attribute__((noinline)) void wake_one(struct fr_mutex *mutex)
{
    int before = errno;
    syscall(SYS_futex, &mutex->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    errno = before;
}

void fr_mutex_unlock(struct fr_mutex *mutex)
{
    uint32_t was = atomic_exchange_explicit(&mutex->word, 0, memory_order_release);
    if (unlikely(was & 1)) wake_one(mutex);
}
