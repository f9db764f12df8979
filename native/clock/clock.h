/* Time, waiting and messages, for programs that must also run under a virtual clock.
 *
 * In a real build these are the monotonic clock, futexes and sockets. Built with CLOCK_VIRTUAL and started with
 * SIMGPU_CLOCK=virtual, time is a number on a page that all participants share ($SIMGPU_DIR/clock): it stands while any of
 * them computes, and jumps to the earliest deadline when all wait. Ten seconds of a simulated card then last as long as the
 * work of computing them, and no other load of the machine can be seen in them. */
#ifndef FRACTILE_CLOCK_H
#define FRACTILE_CLOCK_H

#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

uint64_t clock_now(void); /* ns, monotonic */
uint64_t clock_now_quickly(void); /* the same, cheaper: up to 0.1 ms wrong, and not always later than what it said before. See quick.c */

/* Waits while *word == expected, until somebody calls clock_wake(word) or the deadline has come (0: there is none).
 * May return early: ask again. The word may lie in memory shared between processes. */
void clock_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline);
void clock_wake(_Atomic uint32_t *word);
void clock_sleep_until(uint64_t when);

/* As send, recv and poll: the clock does not pass between a message and whoever polls for it. */
ssize_t clock_send(int fd, const void *message, size_t size, int flags);
ssize_t clock_receive(int fd, void *message, size_t size, int flags);
int clock_poll(struct pollfd *fds, nfds_t count, uint64_t deadline);

/* This thread sleeps most of the time: the kernel is asked to run it before others that compute, once it is woken. Needs no right, and Linux
 * 6.12 or later; says nothing where that cannot be had. */
void clock_wake_soon(void);

bool clock_is_virtual(void);
void clock_after_fork(void); /* in the child, before it uses anything above */

/* The two makings of the above; clock.c chooses. */
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
