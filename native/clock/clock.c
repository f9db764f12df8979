/* Chooses between the real and the virtual clock, once per process, and passes the calls on to it. */
#include "clock.h"

#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_NS 100000ull /* the shortest slice that the kernel grants; a thread with a shorter slice has an earlier deadline */

#ifdef CLOCK_VIRTUAL
static _Atomic(const struct clock_calls *) chosen;

static const struct clock_calls *calls(void)
{
    const struct clock_calls *c = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (c) return c;
    const char *which = getenv("SIMGPU_CLOCK");
    c = which && !strcmp(which, "virtual") ? &clock_page : &clock_real;
    atomic_store(&chosen, c);
    return c;
}

bool clock_is_virtual(void) { return calls() == &clock_page; }
#else
static const struct clock_calls *calls(void) { return &clock_real; }
bool clock_is_virtual(void) { return false; }
void clock_after_fork(void) {}
#endif

uint64_t clock_now(void) { return calls()->now(); }
void clock_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline) { calls()->wait(word, expected, deadline); }
void clock_wake(_Atomic uint32_t *word) { calls()->wake(word); }
ssize_t clock_send(int fd, const void *m, size_t n, int flags) { return calls()->send(fd, m, n, flags); }
ssize_t clock_receive(int fd, void *m, size_t n, int flags) { return calls()->receive(fd, m, n, flags); }
int clock_poll(struct pollfd *fds, nfds_t n, uint64_t deadline) { return calls()->poll(fds, n, deadline); }

void clock_sleep_until(uint64_t when)
{
    _Atomic uint32_t nobody = 0;
    while (clock_now() < when) clock_wait(&nobody, 0, when);
}

struct attributes { /* struct sched_attr, which older headers lack */
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice_ns, deadline, period;
};

void clock_wake_soon(void)
{
    struct attributes a = {.size = sizeof a};
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0 || a.policy != SCHED_OTHER) return;
    a.size = sizeof a;
    a.slice_ns = SLICE_NS;
    syscall(SYS_sched_setattr, 0, &a, 0);
}
