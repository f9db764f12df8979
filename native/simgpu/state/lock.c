/* The lock of the shared state: a plain word that contains the holder's slot. A thread that has waited long asks the kernel whether the
 * holder's byte lock still exists, and takes the word over if it does not. Robust mutexes cannot be used: they name the holder by its thread
 * id, which differs between the pid namespaces of containers. */
#include "clock.h"
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

uint64_t sim_now(void) { return clock_now(); }

/* The mapping keeps the lock's open file just as the descriptor does: a program that closes every descriptor still counts as alive. */
bool sim_slot_alive(struct sim_host *host, uint32_t slot)
{
    if (slot == host->slot || !sim_keep_descriptor(host)) return true;
    struct flock probe = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    if (fcntl(host->fd, F_OFD_GETLK, &probe) != 0) return true;
    return probe.l_type != F_UNLCK;
}

/* A forked child keeps its parent's lock until its own fork handler has run, even if the parent is dead. Where that matters, /proc shows
 * whether the parent is gone, or is a zombie without a thread left. Without a common pid namespace only the lock can tell. */
bool sim_process_gone(const struct sim_process *p)
{
    struct stat ns;
    char path[40], text[1024], state;
    unsigned long long threads, start;
    if (stat("/proc/self/ns/pid", &ns) != 0 || ns.st_ino != p->pid_namespace) return false;
    snprintf(path, sizeof path, "/proc/%u/stat", p->pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    char *at = strrchr(text, ')'); /* the command may contain anything */
    if (!at || sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %llu %*d %llu", &state, &threads, &start) != 3)
        return n <= 0;
    return (p->start_time && start != p->start_time) || ((state == 'Z' || state == 'X') && threads <= 1);
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
        uint64_t before = clock_real.now(); /* the holder of the lock computes, so the virtual clock stands still */
        wait_on(word, seen | WAITERS);
        if (clock_real.now() - before >= PATIENCE_NS && try_take_over(host, seen | WAITERS)) {
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

/* A new process that got the slot of one that died while it held the lock already holds the lock. */
void sim_adopt_lock(struct sim_host *host)
{
    if ((atomic_load(&host->state->lock) & ~WAITERS) == host->slot + 1)
        sim_recover(host);
    else
        sim_lock(host);
}
