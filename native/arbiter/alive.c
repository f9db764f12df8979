/* States in each limits page whether an arbiter runs that serves it. When connect() fails, the library believes that there is no arbiter only
 * if the page says so too: the program can fake the kernel's answer (by a filter of its own), but it cannot write the page.
 *
 * The word `arbiter` of the page holds the id of a thread of the arbiter that only sleeps. When that thread dies, for any reason, the kernel
 * clears the id: the words are on the thread's robust list (set_robust_list(2)), as if they were locks that it holds.
 *
 *      mapping of a slice    [ link of the list, private | limits page, shared ]    the kernel finds a word from its link by distance
 */
#include "node.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(SCHEDULE_TENANTS <= ROBUST_LIST_LIMIT, "the kernel follows the list no further");

static struct robust_list_head list = {.list = {&list.list}};
static _Atomic uint32_t sleeper; /* the thread's id; 0: no thread */

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }
static struct robust_list *link_of(const struct fr_limits *limits) { return (struct robust_list *)((uintptr_t)limits - page_size()); }

static void *sleep_on(void *begun)
{
    bool listed = syscall(SYS_set_robust_list, &list, sizeof list) == 0; /* this thread holds no lock of the C library */
    atomic_store(&sleeper, listed ? (uint32_t)syscall(SYS_gettid) : 0);
    pthread_barrier_wait(begun);
    while (listed) pause();
    return NULL;
}

void alive_begin(void)
{
    pthread_t thread;
    pthread_barrier_t begun;
    sigset_t all, before;
    list.futex_offset = (long)(page_size() + offsetof(struct fr_limits, arbiter));
    pthread_barrier_init(&begun, NULL, 2);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    if (pthread_create(&thread, NULL, sleep_on, &begun) == 0) pthread_detach(thread), pthread_barrier_wait(&begun);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!sleeper) fprintf(stderr, "fractile-arbiter: no thread for the pages of limits: programs that forbid themselves to connect are not paced\n");
}

const struct fr_limits *alive_map(int fd, bool writable)
{
    size_t before = page_size(), size = sizeof(struct fr_limits);
    char *at = mmap(NULL, before + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return NULL;
    if (mmap(at + before, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED) return (void *)(at + before);
    munmap(at, before + size);
    return NULL;
}

void alive_unmap(const struct fr_limits *limits) { munmap(link_of(limits), page_size() + sizeof *limits); }

void alive_say(const struct fr_limits *limits)
{
    if (!sleeper) return;
    struct robust_list *link = link_of(limits);
    link->next = list.list.next;
    atomic_signal_fence(memory_order_seq_cst); /* the list must be valid at any moment: the arbiter may be killed */
    list.list.next = link;
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store(&((struct fr_limits *)limits)->arbiter, sleeper);
}

void alive_unsay(const struct fr_limits *limits)
{
    struct robust_list *link = link_of(limits), *at = &list.list;
    while (at->next != link && at->next != &list.list) at = at->next;
    if (at->next != link) return;
    atomic_store(&((struct fr_limits *)limits)->arbiter, 0);
    at->next = link->next;
}
