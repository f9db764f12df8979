/* Kills the process at a chosen point, for the tests of recovery. */
#include "state.h"

#ifdef SIM_CRASH_POINTS
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

void sim_point(void)
{
    static _Atomic long count;
    static long at = -1;
    if (at < 0) {
        const char *set = getenv("SIMGPU_CRASH_AT");
        at = set ? atol(set) : 0;
    }
    if (at && atomic_fetch_add(&count, 1) + 1 == at) kill(getpid(), SIGKILL);
}
#endif
