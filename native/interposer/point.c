/* Death at a chosen instruction, for the tests of recovery: only in the build with crash points. */
#include "fractile.h"

#ifdef FR_CRASH_POINTS
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

_Atomic long fr_points_left = -1; /* until death; 0: for ever */

void fr_point(void)
{
    long left = atomic_load_explicit(&fr_points_left, memory_order_relaxed);
    if (left < 0) {
        const char *set = getenv("FRACTILE_CRASH_AT");
        atomic_store(&fr_points_left, left = set ? atol(set) : 0);
    }
    if (left > 0 && atomic_fetch_sub(&fr_points_left, 1) == 1) syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
}
#endif
