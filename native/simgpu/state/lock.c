/* The lock of the shared state. A plain word with the holder's slot in it: a waiter that waits long asks the kernel
 * whether the holder's byte lock still stands, and takes the word over when it does not. Robust mutexes would not do:
 * they name the holder by its thread id, which differs between the pid namespaces of containers. */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAITERS 0x80000000u
#define SPINS 200
#define PATIENCE_NS 2000000

uint64_t sim_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* State letter and start time of a process of our own pid namespace; false when there is none. */
static bool process_stat(uint32_t pid, char *state, uint64_t *start)
{
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    char *p = strrchr(text, ')'); /* the command may contain anything */
    unsigned long long value;
    if (!p || sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", state,
                     &value) != 2)
        return false;
    *start = value;
    return true;
}

/* A program may close every descriptor and with it our byte lock; within one pid namespace /proc still knows it. */
static bool alive_by_pid(const struct sim_process *p)
{
    struct stat ns;
    char letter;
    uint64_t start;
    if (stat("/proc/self/ns/pid", &ns) != 0 || ns.st_ino != p->pid_namespace) return false;
    return process_stat(p->pid, &letter, &start) && start == p->start_time && letter != 'Z' && letter != 'X';
}

bool sim_slot_alive(struct sim_host *host, uint32_t slot)
{
    if (slot == host->slot || !sim_keep_descriptor(host)) return true;
    struct flock probe = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    if (fcntl(host->fd, F_OFD_GETLK, &probe) != 0) return true;
    return probe.l_type != F_UNLCK || alive_by_pid(&host->state->processes[slot]);
}

static void wait_on(_Atomic uint32_t *word, uint32_t value)
{
    struct timespec patience = {0, PATIENCE_NS};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &patience, NULL, 0);
}

static bool try_take_over(struct sim_host *host, uint32_t seen)
{
    uint32_t holder = (seen & ~WAITERS) - 1;
    if (holder >= SIM_PROCESSES || sim_slot_alive(host, holder)) return false;
    return atomic_compare_exchange_strong(&host->state->lock, &seen, (host->slot + 1) | WAITERS);
}

static void lock_slowly(struct sim_host *host)
{
    _Atomic uint32_t *word = &host->state->lock;
    for (;;) {
        uint32_t seen = atomic_load(word);
        if (seen == 0) {
            if (atomic_compare_exchange_strong(word, &seen, (host->slot + 1) | WAITERS)) return;
            continue;
        }
        if (!(seen & WAITERS) && !atomic_compare_exchange_strong(word, &seen, seen | WAITERS)) continue;
        uint64_t before = sim_now();
        wait_on(word, seen | WAITERS);
        if (sim_now() - before >= PATIENCE_NS && try_take_over(host, seen | WAITERS)) {
            sim_recover(host);
            return;
        }
    }
}

void sim_lock(struct sim_host *host)
{
    for (int i = 0; i < SPINS; i++) {
        uint32_t nobody = 0;
        if (atomic_load_explicit(&host->state->lock, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_weak(&host->state->lock, &nobody, host->slot + 1))
            return;
    }
    lock_slowly(host);
}

void sim_unlock(struct sim_host *host)
{
    uint32_t was = atomic_exchange(&host->state->lock, 0);
    if (was & WAITERS) syscall(SYS_futex, &host->state->lock, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* A new process that got the slot of one that died with the lock in its hand holds the lock already. */
void sim_adopt_lock(struct sim_host *host)
{
    if ((atomic_load(&host->state->lock) & ~WAITERS) == host->slot + 1)
        sim_recover(host);
    else
        sim_lock(host);
}
