/* Makes races between threads more frequent. A real driver runs the calls of several threads side by side. Here one mutex orders them, and on
 * few processors a thread is rarely preempted between two calls. So a policy makes the thread yield just before a call's work and just after
 * it, where a library that reads and writes around the call may race with other threads. The seed chooses the calls. */
#include "clock.h"
#include "local.h"

#include <sched.h>
#include <time.h>

#define DELAYS 8 /* one in this many yields lasts longer */

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
