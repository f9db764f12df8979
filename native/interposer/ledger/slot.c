/* A place in the region for this process. It keeps the OFD lock of the place's byte for life without keeping a descriptor:
 * one page stays mapped through the open file that has the lock, so the lock goes when the process's memory goes, not
 * when a program closes descriptors that it does not know. Children do not inherit that page. */
#include "ledger/slot.h"

#include "base/kernel.h"
#include "base/message.h"
#include "base/point.h"
#include "ledger/attach.h"
#include "ledger/reap.h"
#include "ledger/shared.h"

#include "region.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DYING 0x4 /* PF_EXITING of the kernel, in field 9 */

#define PATIENCE 20000 /* times 100 us: a thread that lost the processor in the middle has it again by then */

/* A child must not get the descriptor, nor the page before it is kept from children: the lock would live on in it. So nobody
 * forks while another thread takes a place, and the other way round. A signal handler may fork in the middle of its own
 * thread: then nothing is waited for, and the child closes the descriptor. */
static _Atomic int in_the_middle; /* the thread that takes a place; less than 0: the one that forks; 0: none */
static _Atomic int joining = -1;

static int this_thread(void) { return (int)syscall(SYS_gettid); }

static void enter(int as)
{
    int none = 0;
    for (int i = 0; i < PATIENCE && !atomic_compare_exchange_strong(&in_the_middle, &none, as); i++, none = 0) fr_sleep_us(100);
}

static void leave(int as) { atomic_compare_exchange_strong(&in_the_middle, &as, 0); }

void fr_slot_before_fork(void)
{
    if (atomic_load(&in_the_middle) != this_thread()) enter(-this_thread());
}

void fr_slot_after_fork(void)
{
    leave(-this_thread());
}

void fr_slot_in_child(void)
{
    int fd = atomic_exchange(&joining, -1);
    if (fd >= 0) fr_close(fd);
    atomic_store(&in_the_middle, 0);
}

static size_t read_text(const char *path, char *out, size_t size)
{
    int fd = fr_open(path, O_RDONLY);
    long n = fd < 0 ? 0 : syscall(SYS_read, fd, out, size - 1);
    if (fd >= 0) fr_close(fd);
    out[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

static uint64_t number(const char *p)
{
    uint64_t value = 0;
    for (; *p >= '0' && *p <= '9'; p++) value = value * 10 + (uint64_t)(*p - '0');
    return value;
}

/* The inode of the pid namespace, as its link says it ("pid:[4026531836]"): to follow the link costs several times as much. */
static uint64_t own_namespace(void)
{
    char text[40] = {0};
    long n = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/ns/pid", text, sizeof text - 1);
    return n > 5 ? number(text + 5) : 0;
}

/* The command in brackets, field 2 of a stat file, may hold anything: it ends with the last bracket. */
static const char *command_end(const char *text)
{
    const char *end = NULL;
    for (; *text; text++)
        if (*text == ')') end = text;
    return end;
}

static void command_of(const char *text, char *out, size_t size)
{
    const char *end = command_end(text);
    size_t n = 0;
    while (end && text < end && *text != '(') text++;
    for (text++; end && text < end && n < size - 1; text++) out[n++] = *text;
    while (n < size) out[n++] = 0;
}

static const char *field_of(const char *text, int wanted) /* from 3 on */
{
    const char *p = command_end(text);
    if (!p) return "";
    for (int field = 2; *p && field < wanted; p++) field += *p == ' ';
    return p;
}

static char *append(char *at, const char *text)
{
    while (*text) *at++ = *text++;
    *at = 0;
    return at;
}

/* Its byte lock is free: the lock goes with the process's memory, at exec or while it dies. But of several threads that die, one
 * may still have to close the descriptors by which the driver knows the process. Over is what is not dying (it is gone, or
 * another program now), or a zombie of which no thread is left. Where we cannot see the process the lock has to do. */
bool fr_slot_over(const struct fr_slot *s)
{
    char path[40], digits[12], text[1024];
    uint32_t pid = __atomic_load_n(&s->pid, __ATOMIC_RELAXED);
    uint64_t space = __atomic_load_n(&s->pid_namespace, __ATOMIC_RELAXED), start = __atomic_load_n(&s->start_time, __ATOMIC_RELAXED);
    if (!space || !start) return true;
    char *digit = digits + sizeof digits - 1;
    *digit = 0;
    for (; pid; pid /= 10) *--digit = (char)('0' + pid % 10);
    append(append(append(path, "/proc/"), digit), "/stat");
    if (!read_text(path, text, sizeof text) || number(field_of(text, 22)) != start || own_namespace() != space) return true;
    char state = *field_of(text, 3);
    bool dying = number(field_of(text, 9)) & DYING;
    return !dying || ((state == 'Z' || state == 'X') && number(field_of(text, 20)) <= 1);
}

static void describe(struct fr_slot *s)
{
    char text[1024];
    read_text("/proc/self/stat", text, sizeof text);
    command_of(text, s->command, sizeof s->command);
    __atomic_store_n(&s->pid, (uint32_t)syscall(SYS_getpid), __ATOMIC_RELAXED);
    __atomic_store_n(&s->start_time, number(field_of(text, 22)), __ATOMIC_RELAXED);
    __atomic_store_n(&s->pid_namespace, own_namespace(), __ATOMIC_RELAXED);
}

static void clear_statistics(uint32_t slot)
{
    for (uint32_t card = 0; card < fr_shared.card_count; card++) {
        struct fr_account *a = fr_slot_account(slot, card);
        atomic_store(&a->gpu_ns, 0);
        atomic_store(&a->launches, 0);
        atomic_store(&a->waited_ns, 0);
        atomic_store(&a->throttled_ns, 0);
    }
}

static void raise_high(uint32_t high)
{
    uint32_t seen = atomic_load(&fr_shared.region->slot_high);
    while (seen < high && !atomic_compare_exchange_weak(&fr_shared.region->slot_high, &seen, high)) {}
}

/* The byte is locked by us. */
static bool move_in(uint32_t slot)
{
    struct fr_slot *s = fr_slot(slot);
    raise_high(slot + 1);
    FR_POINT();
    if (atomic_load(&s->state) != FR_SLOT_FREE && !(fr_slot_over(s) && fr_reap_slot(slot))) return false; /* of somebody who died */
    atomic_store(&s->state, FR_SLOT_TAKEN);
    FR_POINT();
    describe(s);
    clear_statistics(slot);
    atomic_store(&s->reaping, 0);
    atomic_fetch_add(&s->generation, 1);
    FR_POINT();
    atomic_store(&s->state, FR_SLOT_LIVE);
    FR_POINT();
    atomic_fetch_add(&fr_shared.region->sequence, 1);
    return true;
}

/* First among the places that look free, then among those whose process may be dead. */
static bool find_place(int fd, bool also_used)
{
    for (uint32_t n = 0; n < fr_shared.slot_count; n++) {
        if (!also_used && atomic_load_explicit(&fr_slot(n)->state, memory_order_relaxed) != FR_SLOT_FREE) continue;
        if (!fr_byte_lock(fd, n, F_WRLCK)) continue; /* somebody's, or about to be */
        if (move_in(n)) {
            fr_shared.slot = n;
            return true;
        }
        fr_byte_lock(fd, n, F_UNLCK);
    }
    return false;
}

static void *keep_lock(int fd)
{
    void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) return NULL;
    if (madvise(page, 4096, MADV_DONTFORK) == 0) return page;
    munmap(page, 4096);
    return NULL;
}

static bool take(int fd)
{
    void *kept = keep_lock(fd);
    if (!kept) {
        fr_say(FR_SAY_REGION, "%s/shared/region cannot be mapped: this process may hold no GPU memory", fr_shared.directory);
        return false;
    }
    if (find_place(fd, false) || find_place(fd, true)) return true;
    munmap(kept, 4096);
    fr_say(FR_SAY_FULL, "all %u places for processes of this container are taken: this process may hold no GPU memory", fr_shared.slot_count);
    return false;
}

/* Maps the region, too, in a process that has not looked at it yet. */
bool fr_slot_take(void)
{
    enter(this_thread());
    int fd = fr_region_open();
    atomic_store(&joining, fd);
    bool taken = fd >= 0 && fr_region_use(fd) && take(fd);
    atomic_store(&joining, -1);
    if (fd >= 0) fr_close(fd);
    leave(this_thread());
    return taken;
}
