/* A real driver runs the calls of several threads side by side; here one mutex orders them, and on few processors a thread
 * seldom loses its turn between two of them. So a policy takes its turn away: just before a call's work and just after it,
 * where a library that reads and writes around the call is open to the others. Which calls, the seed says. */
#include "clock.h"
#include "local.h"

#include <sched.h>
#include <time.h>

#define DELAYS 8 /* one of so many turns that are given away lasts longer */

static _Atomic uint32_t threads;

void sim_disturb(void)
{
    static __thread uint32_t thread, points;
    const struct sim_policy *p = &sim.policy;
    if (!p->yield_percent) return;
    if (!thread) thread = atomic_fetch_add(&threads, 1) + 1;
    uint64_t n = sim_policy_hash(p->seed + ((uint64_t)thread << 40), points++);
    if (n % 100 >= p->yield_percent) return;
    n = n / 100;
    if (p->delay_ns && n % DELAYS == 0 && !clock_is_virtual())
        nanosleep(&(struct timespec){0, (long)(n / DELAYS % p->delay_ns)}, NULL);
    else sched_yield();
}
