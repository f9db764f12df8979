/* Time, waiting and messages, for programs that must also run under a virtual clock.
 *
 * In a real build these are the monotonic clock, futexes and sockets. Built with CLOCK_VIRTUAL and started with SIMGPU_CLOCK=virtual, time is
 * a number on a page that all participants share ($SIMGPU_DIR/clock). It stands still while any participant computes, and jumps to the
 * earliest deadline when all wait. So ten seconds of a simulated card take only as long as computing them, and other load on the machine does
 * not change the results. */
#ifndef FRACTILE_CLOCK_H
#define FRACTILE_CLOCK_H

#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

uint64_t clock_now(void); /* ns, monotonic */
uint64_t clock_now_quickly(void); /* the same, cheaper: off by up to 0.1 ms, and not always monotonic. See quick.c */

/* Waits while *word == expected, until a thread calls clock_wake(word) or the deadline has come (0: no deadline).
 * May return early: check again. The word may be in memory shared between processes. */
void clock_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline);
void clock_wake(_Atomic uint32_t *word);
void clock_sleep_until(uint64_t when);

/* Like send, recv and poll. The virtual clock does not advance between a message and the wake-up of the thread that polls for it. */
ssize_t clock_send(int fd, const void *message, size_t size, int flags);
ssize_t clock_receive(int fd, void *message, size_t size, int flags);
int clock_poll(struct pollfd *fds, nfds_t count, uint64_t deadline);

/* For a thread that sleeps most of the time: asks the kernel to run it before computing threads once it is woken. This needs no privilege, but
 * Linux 6.12 or later. If it is not available, there is no error. */
void clock_wake_soon(void);

bool clock_is_virtual(void);
void clock_after_fork(void); /* in the child, before it uses anything above */

/* The two implementations of the calls above; clock.c chooses one. */
struct clock_calls {
    uint64_t (*now)(void);
    void (*wait)(_Atomic uint32_t *, uint32_t, uint64_t);
    void (*wake)(_Atomic uint32_t *);
    ssize_t (*send)(int, const void *, size_t, int);
    ssize_t (*receive)(int, void *, size_t, int);
    int (*poll)(struct pollfd *, nfds_t, uint64_t);
};
extern const struct clock_calls clock_real, clock_page;

#endif
