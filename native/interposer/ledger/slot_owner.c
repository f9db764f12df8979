/* The process that has a slot, as /proc shows it: its identity, and whether it has really ended. */
#include "ledger/slot_owner.h"

#include "base/kernel.h"

#include "region.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DYING 0x4 /* PF_EXITING of the kernel, in field 9 */

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

/* The inode of the pid namespace, as the link's text gives it ("pid:[4026531836]"): following the link costs several times as
 * much. */
static uint64_t own_namespace(void)
{
    char text[40] = {0};
    long n = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/ns/pid", text, sizeof text - 1);
    return n > 5 ? number(text + 5) : 0;
}

/* The command in parentheses, field 2 of a stat file, may contain any character: it ends with the last parenthesis. */
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

/* Called when the byte lock of the slot is free. The lock goes with the process's memory, at exec or while the process dies, and
 * with that of its children that run no fork handlers (slot.c). But if several threads die, one of them may still have to close
 * the descriptors by which the driver knows the process. A process is over if it is not dying (it is gone, or runs another
 * program now), or if it is a zombie without a thread left.
 * Where the process cannot be seen, the free lock must suffice. */
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

void fr_slot_describe(struct fr_slot *s)
{
    char text[1024];
    read_text("/proc/self/stat", text, sizeof text);
    command_of(text, s->command, sizeof s->command);
    __atomic_store_n(&s->pid, (uint32_t)syscall(SYS_getpid), __ATOMIC_RELAXED);
    __atomic_store_n(&s->start_time, number(field_of(text, 22)), __ATOMIC_RELAXED);
    __atomic_store_n(&s->pid_namespace, own_namespace(), __ATOMIC_RELAXED);
}
