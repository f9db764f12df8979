/* The few system calls that the ledger makes, made directly: without a cancellation point (a thread cancelled in the middle of
 * a step would leave a lock behind), and without another library's open() or close() in between. The caller has to preserve
 * errno. */
#ifndef FRACTILE_KERNEL_H
#define FRACTILE_KERNEL_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

static inline int fr_open(const char *path, int flags)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC | O_NONBLOCK, 0);
}

static inline bool fr_examine(int fd, struct stat *out)
{
    return syscall(SYS_fstat, fd, out) == 0;
}

static inline void fr_close(int fd)
{
    syscall(SYS_close, fd);
}

static inline bool fr_byte_lock(int fd, uint32_t byte, short type)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return syscall(SYS_fcntl, fd, F_OFD_SETLK, &l) == 0;
}

static inline void fr_sleep_us(unsigned us)
{
    struct timespec t = {us / 1000000, (long)(us % 1000000) * 1000};
    syscall(SYS_nanosleep, &t, NULL);
}

static inline uint64_t fr_clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline uint32_t fr_coarse_ms(void) /* off by a few milliseconds, but cheap */
{
    return (uint32_t)(fr_clock_ns(CLOCK_MONOTONIC_COARSE) / 1000000);
}

#endif
