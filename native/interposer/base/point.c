/* Kills the process at a chosen instruction, for the tests of recovery: only in the build with crash points. */
#include "base/point.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef FR_CRASH_POINTS

_Atomic long fr_points_left = -1;             /* points until death; 0: never; -1: not yet read from the environment */
const struct fr_site *_Atomic *fr_died_at;    /* where to record the point of death */
const struct fr_site *fr_only_at;             /* if set, only this point counts */

void fr_point(const struct fr_site *site)
{
    if (fr_only_at && fr_only_at != site) return;
    long left = atomic_load_explicit(&fr_points_left, memory_order_relaxed);
    if (left < 0) {
        const char *set = getenv("FRACTILE_CRASH_AT");
        atomic_store(&fr_points_left, left = set ? atol(set) : 0);
    }
    if (left <= 0 || atomic_fetch_sub(&fr_points_left, 1) != 1) return;
    if (fr_died_at) atomic_store(fr_died_at, site);
    syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
}
#endif
