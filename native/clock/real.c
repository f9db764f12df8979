/* The real clock: the machine's monotonic clock, futexes and sockets. */
#include "clock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000ull

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* FUTEX_WAIT_BITSET takes an absolute time, so a wait that a signal interrupts can simply be repeated. */
static void wait_on(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline)
{
    struct timespec until = {(time_t)(deadline / SECOND), (long)(deadline % SECOND)};
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, deadline ? &until : NULL, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

static int poll_until(struct pollfd *fds, nfds_t count, uint64_t deadline)
{
    if (!deadline) return poll(fds, count, -1);
    uint64_t at = now(), left = deadline > at ? deadline - at : 0;
    struct timespec patience = {(time_t)(left / SECOND), (long)(left % SECOND)};
    return ppoll(fds, count, &patience, NULL);
}

const struct clock_calls clock_real = {now, wait_on, wake, send, recv, poll_until};
