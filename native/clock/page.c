/* The virtual clock: a page that all participants share.
 *
 *      thread:  OUT --first use--> RUNNING <--wait / wake, deadline--> WAITING
 *                                     '-- found asleep elsewhere (a join, a pipe) --> PARKED --next use--> RUNNING
 *
 * `running` counts the threads that compute. The last thread that begins to wait advances the clock. A thread that wakes others counts them as
 * running before it returns, so the clock cannot run ahead of a wake-up. A thread that sends a message does the same for the threads of the
 * receiving process that poll.
 *
 * Participants die (tests kill them) and block where the clock does not see it. If nothing has changed for some real milliseconds, a waiting
 * thread checks the threads that count as running: dead threads are removed, sleeping threads are parked. A thread that sleeps for microseconds
 * at a time, until another thread lets go of something, computes: it is parked only if it has slept without a break for a millisecond, or was
 * found asleep for a second. */
#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef CLOCK_VIRTUAL

#define THREADS 4096
#define MAGIC 0x314b434f4c4356ull
#define STALL_NS 3000000l /* real time before a waiting thread looks for the cause */
#define STALLS_STUCK 700  /* stalls before a message is printed: about two seconds */
#define ASLEEP_NS 1000000ull /* real time without a break after which a sleeping thread is parked */
#define NAPPING_NS 1000000000ull /* the same for a thread that runs now and then, and was found asleep again and again */
#define LOOKS_NS 100000000ull /* ... with less than this between two times */
#define NEVER UINT64_MAX

enum { OUT, RUNNING, WAITING, POLLING, PARKED };

struct thread {
    _Atomic uint32_t state; /* a futex: its thread sleeps on it */
    int pid, tid;
    uint32_t key; /* offset, in its page, of the word that it waits for */
    _Atomic uint32_t at_lock; /* it waits for the page's lock: asleep there, it still counts as computing */
    uint64_t deadline;
    /* When it was last found asleep, in real time; how often it had run then, and since when; since when it is found asleep again and again. */
    uint64_t looked, runs, same_since, asleep_since;
    bool naps; /* parked although it runs now and then */
};

struct page {
    uint64_t magic;
    _Atomic uint64_t now;
    pthread_mutex_t mutex; /* robust: its holder may be killed */
    int32_t running;
    uint32_t high; /* only threads[0..high) were ever used */
    _Atomic uint32_t moves; /* changes whenever anything happens */
    uint32_t stuck_said;
    struct thread threads[THREADS];
};

static struct page *page;
static __thread struct thread *self;
static __thread int bell = -1; /* a named pipe, so that other threads can end this thread's poll */
static _Atomic uint32_t *same_process; /* zero in a forked child */
static pthread_key_t at_exit;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static void path_of(char *out, size_t size, const char *what, long number)
{
    const char *directory = getenv("SIMGPU_DIR");
    int n = snprintf(out, size, "%s/%s", directory ? directory : "/tmp/simgpu", what);
    if (number >= 0 && n > 0 && (size_t)n < size) snprintf(out + n, size - (size_t)n, ".%ld", number);
}

/* ---- the page ---- */

static void recount(void)
{
    page->running = 0;
    for (uint32_t i = 0; i < page->high; i++) page->running += atomic_load(&page->threads[i].state) == RUNNING;
}

static void lock(void)
{
    if (self) atomic_store(&self->at_lock, 1);
    if (pthread_mutex_lock(&page->mutex) == EOWNERDEAD) {
        pthread_mutex_consistent(&page->mutex);
        recount();
    }
    if (self) atomic_store(&self->at_lock, 0);
}

static void unlock(void) { pthread_mutex_unlock(&page->mutex); }

static void make(struct page *p)
{
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&p->mutex, &how);
    atomic_store(&p->now, 1000000000ull); /* not zero: zero means "no deadline" */
    p->magic = MAGIC;
}

static void leave(void *of);

static void open_page(void)
{
    char path[256];
    path_of(path, sizeof path, "clock", -1);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || flock(fd, LOCK_EX) != 0 || ftruncate(fd, sizeof *page) != 0) {
        fprintf(stderr, "the virtual clock needs %s: %s\n", path, strerror(errno));
        abort();
    }
    struct page *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) abort();
    if (p->magic != MAGIC) make(p);
    same_process = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (same_process == MAP_FAILED || madvise(same_process, 4096, MADV_WIPEONFORK) != 0) abort();
    flock(fd, LOCK_UN);
    close(fd);
    pthread_key_create(&at_exit, leave);
    page = p;
}

/* ---- joining and leaving ---- */

/* A process may contain this code twice (in simgpu and in the library under test): a thread takes part only once. */
static struct thread *find(int tid)
{
    for (uint32_t i = 0; i < page->high; i++)
        if (atomic_load(&page->threads[i].state) != OUT && page->threads[i].tid == tid && page->threads[i].pid == getpid()) return &page->threads[i];
    return NULL;
}

static struct thread *take_place(int tid)
{
    for (uint32_t i = 0; i < THREADS; i++) {
        struct thread *t = &page->threads[i];
        if (atomic_load(&t->state) != OUT) continue;
        *t = (struct thread){.pid = getpid(), .tid = tid}; /* OUT */
        if (i >= page->high) page->high = i + 1;
        atomic_store(&t->state, RUNNING);
        page->running++;
        return t;
    }
    abort();
}

static void join(void)
{
    int tid = (int)syscall(SYS_gettid);
    pthread_mutex_lock(&opening);
    if (!page) open_page();
    pthread_mutex_unlock(&opening);
    atomic_store(same_process, 1);
    lock();
    if (!(self = find(tid))) self = take_place(tid);
    unlock();
    pthread_setspecific(at_exit, self);
}

static inline void present(void)
{
    if (same_process && !atomic_load_explicit(same_process, memory_order_relaxed)) clock_after_fork();
    if (!self) join();
    if (atomic_load_explicit(&self->state, memory_order_relaxed) == RUNNING) return;
    lock(); /* it was parked while it slept elsewhere */
    if (atomic_exchange(&self->state, RUNNING) != RUNNING) page->running++;
    unlock();
}

/* ---- moving ---- */

static void ring(struct thread *t)
{
    char path[256];
    uint32_t was = atomic_exchange(&t->state, RUNNING);
    page->running++;
    if (t == self) return; /* its own deadline was the next */
    if (was == WAITING) syscall(SYS_futex, &t->state, FUTEX_WAKE, 1, NULL, NULL, 0);
    if (was != POLLING) return;
    path_of(path, sizeof path, "clock-bell", t - page->threads);
    int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, "", 1) < 0) {}
    close(fd);
}

static bool asleep(const struct thread *t)
{
    uint32_t state = atomic_load(&t->state);
    return state == WAITING || state == POLLING;
}

static char condition(const struct thread *t);
static uint64_t runs(const struct thread *t);

/* A thread that was parked because it slept elsewhere (for a lock of the program, for example), and no longer sleeps, computes. On a busy
 * machine it may take long until it reports that itself. It is about to do so if it sleeps for the lock that the caller holds. */
static void count_the_awakened(void)
{
    for (uint32_t i = 0; i < page->high; i++) {
        struct thread *t = &page->threads[i];
        if (atomic_load(&t->state) != PARKED) continue;
        char now = condition(t);
        uint32_t parked = PARKED;
        bool asleep = (now == 'S' || now == 'T') && !atomic_load(&t->at_lock) && (t->naps || runs(t) == t->runs);
        if (now == 'X' || now == 'Z' || asleep) continue;
        if (atomic_compare_exchange_strong(&t->state, &parked, RUNNING)) page->running++;
    }
}

/* With the lock: if no thread computes and nothing is on its way, time jumps to the next deadline. */
static void advance(void)
{
    if (page->running == 0) count_the_awakened();
    if (page->running > 0) return;
    uint64_t next = NEVER;
    for (uint32_t i = 0; i < page->high; i++)
        if (asleep(&page->threads[i]) && page->threads[i].deadline < next) next = page->threads[i].deadline;
    if (next == NEVER) return;
    if (next > atomic_load(&page->now)) atomic_store(&page->now, next);
    for (uint32_t i = 0; i < page->high; i++)
        if (asleep(&page->threads[i]) && page->threads[i].deadline <= next) ring(&page->threads[i]);
}

static void settle(struct thread *t, uint32_t state)
{
    if (atomic_exchange(&t->state, state) == RUNNING) page->running--;
    atomic_fetch_add(&page->moves, 1);
}

static void leave(void *of)
{
    struct thread *t = of;
    lock();
    if (t->tid == (int)syscall(SYS_gettid)) settle(t, OUT);
    advance();
    unlock();
    self = NULL;
    if (bell >= 0) close(bell);
    bell = -1;
}

void clock_after_fork(void)
{
    self = NULL;
    if (bell >= 0) close(bell);
    bell = -1;
}

/* ---- when nothing moves ---- */

/* The thread's state from /proc: 'R', 'S' ...; 'X' if the thread does not exist. */
static char condition(const struct thread *t)
{
    char path[64], text[512], *end;
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", t->pid, t->tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 'X';
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return (end = strrchr(text, ')')) && end[1] ? end[2] : 'X';
}

/* How often the thread was given a processor; 0 if the kernel does not say. */
static uint64_t runs(const struct thread *t)
{
    char path[64], text[128];
    unsigned long long count = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/schedstat", t->pid, t->tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return sscanf(text, "%*u %*u %llu", &count) == 1 ? count : 0;
}

/* With the lock, for a thread that is asleep now. */
static bool sleeps_on(struct thread *t)
{
    uint64_t now = clock_real.now(), count = runs(t);
    if (!t->asleep_since || now - t->looked > LOOKS_NS) t->asleep_since = now;
    if (!t->same_since || count != t->runs) t->same_since = now;
    t->looked = now;
    t->runs = count;
    t->naps = now - t->asleep_since > NAPPING_NS;
    return t->naps || now - t->same_since >= ASLEEP_NS;
}

/* A sleeping thread may be waiting for a lock that a computing thread holds; on a busy machine that takes long. */
static bool any_thread_computes(void)
{
    for (uint32_t i = 0; i < page->high; i++) {
        const struct thread *t = &page->threads[i];
        char now = t != self && atomic_load(&t->state) == RUNNING ? condition(t) : 'X';
        if (now == 'R' || now == 'D') return true;
    }
    return false;
}

static void look_after(struct thread *t)
{
    uint32_t state = atomic_load(&t->state);
    if (t == self || state == OUT) return;
    char now = condition(t);
    if (now == 'X' || now == 'Z') return settle(t, OUT);
    if (state != RUNNING) return;
    bool asleep = (now == 'S' || now == 'T') && !atomic_load(&t->at_lock);
    if (!asleep) t->same_since = 0;
    else if (sleeps_on(t)) settle(t, PARKED);
}

static void say_stuck(void)
{
    fprintf(stderr, "virtual clock: deadlock: all threads wait and none has a deadline; waiting:");
    for (uint32_t i = 0; i < page->high; i++)
        if (atomic_load(&page->threads[i].state) != OUT)
            fprintf(stderr, " %d/%d(%u)", page->threads[i].pid, page->threads[i].tid, atomic_load(&page->threads[i].state));
    fputc('\n', stderr);
}

static void look(uint32_t *stalls, uint32_t *seen)
{
    uint32_t moves = atomic_load(&page->moves);
    *stalls = moves == *seen ? *stalls + 1 : 0;
    *seen = moves;
    lock();
    if (*stalls && !any_thread_computes()) {
        for (uint32_t i = 0; i < page->high; i++) look_after(&page->threads[i]);
        if (*stalls == STALLS_STUCK && !page->stuck_said++) say_stuck();
        advance();
    }
    unlock();
}

/* ---- the calls ---- */

static uint64_t now(void)
{
    present();
    return atomic_load(&page->now);
}

static uint32_t key_of(const void *word) { return (uint32_t)((uintptr_t)word & 4095); }

static void begin_wait(uint32_t state, uint32_t key, uint64_t deadline)
{
    self->key = key;
    self->deadline = deadline ? deadline : NEVER;
    settle(self, state);
    advance();
}

static void sleep_until_rung(void)
{
    uint32_t stalls = 0, seen = atomic_load(&page->moves);
    struct timespec patience = {0, STALL_NS};
    while (atomic_load(&self->state) == WAITING)
        if (syscall(SYS_futex, &self->state, FUTEX_WAIT, WAITING, &patience, NULL, 0) != 0 && errno == ETIMEDOUT) look(&stalls, &seen);
}

static void wait_on(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline)
{
    present();
    if (deadline && deadline <= atomic_load(&page->now)) return;
    lock();
    bool go = atomic_load(word) == expected;
    if (go) begin_wait(WAITING, key_of(word), deadline);
    unlock();
    if (go) sleep_until_rung();
}

static void wake(_Atomic uint32_t *word)
{
    present();
    lock();
    for (uint32_t i = 0; i < page->high; i++)
        if (atomic_load(&page->threads[i].state) == WAITING && page->threads[i].key == key_of(word)) ring(&page->threads[i]);
    atomic_fetch_add(&page->moves, 1);
    unlock();
}

/* The process at the other end; -1 if it could be any, as with a socket pair that was shared by a fork. */
static int peer_of(int fd)
{
    struct ucred who = {0};
    socklen_t size = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.pid != getpid() ? who.pid : -1;
}

static ssize_t send_and_ring(int fd, const void *message, size_t size, int flags)
{
    present();
    ssize_t sent = send(fd, message, size, flags);
    int error = errno, peer = peer_of(fd);
    lock();
    for (uint32_t i = 0; i < page->high; i++) {
        struct thread *t = &page->threads[i];
        if (atomic_load(&t->state) == POLLING && (peer < 0 || t->pid == peer)) ring(t);
    }
    atomic_fetch_add(&page->moves, 1);
    unlock();
    errno = error;
    return sent;
}

/* A receive that would block waits like a poll. */
static ssize_t receive_waiting(int fd, void *message, size_t size, int flags)
{
    present();
    for (;;) {
        ssize_t n = recv(fd, message, size, flags | MSG_DONTWAIT);
        int error = errno;
        bool would_block = n < 0 && (error == EAGAIN || error == EWOULDBLOCK);
        errno = error;
        if (!would_block || (flags & MSG_DONTWAIT) || (fcntl(fd, F_GETFL) & O_NONBLOCK)) return n;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (clock_page.poll(&p, 1, 0) < 0) return -1;
    }
}

/* On a machine under load, a pipe that had just been made did not exist when it was opened, in 1 of 14,000 cases (Linux 6.18, tmpfs; no program
 * removes it). Then it is made once more. */
static bool have_bell(void)
{
    char path[256];
    int made = 0;
    if (bell >= 0) return true;
    path_of(path, sizeof path, "clock-bell", self - page->threads);
    for (int tries = 0; bell < 0 && tries < 1000; tries++) {
        if (tries) nanosleep(&(struct timespec){0, 1000000}, NULL);
        made = mkfifo(path, 0666) != 0 ? errno : 0;
        bell = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
        if (bell < 0 && errno != ENOENT) break;
    }
    if (bell < 0) fprintf(stderr, "virtual clock: %s: %s (making it: %s)\n", path, strerror(errno), strerror(made));
    return bell >= 0;
}

static void wake_up(void)
{
    char bytes[16];
    lock();
    if (atomic_exchange(&self->state, RUNNING) != RUNNING) page->running++;
    atomic_fetch_add(&page->moves, 1);
    unlock();
    while (read(bell, bytes, sizeof bytes) > 0) {}
}

/* Waits until something is ready or another thread rang. False: a signal came. */
static bool wait_polling(struct pollfd *fds, nfds_t count, uint64_t deadline)
{
    struct pollfd all[65];
    uint32_t stalls = 0, seen;
    memcpy(all, fds, count * sizeof *fds);
    all[count] = (struct pollfd){.fd = bell, .events = POLLIN};
    lock();
    bool go = poll(fds, count, 0) == 0; /* a sender sends before it takes the lock to ring */
    if (go) begin_wait(POLLING, 0, deadline);
    seen = atomic_load(&page->moves);
    unlock();
    if (!go) return true;
    int ready = 0;
    while (atomic_load(&self->state) == POLLING && (ready = poll(all, count + 1, (int)(STALL_NS / 1000000))) == 0) look(&stalls, &seen);
    bool signal = ready < 0 && errno == EINTR;
    wake_up();
    return !signal;
}

static int poll_waiting(struct pollfd *fds, nfds_t count, uint64_t deadline)
{
    present();
    if (count > 64 || !have_bell()) return errno = EINVAL, -1;
    for (;;) {
        int ready = poll(fds, count, 0);
        if (ready || (deadline && deadline <= atomic_load(&page->now))) return ready;
        if (!wait_polling(fds, count, deadline)) return errno = EINTR, -1;
    }
}

const struct clock_calls clock_page = {now, wait_on, wake, send_and_ring, receive_waiting, poll_waiting};
#endif
