/* Marks on exported descriptors. The driver keeps exported memory alive as long as any process has the descriptor open, and an
 * importer must learn which object the memory belongs to. But all descriptors of a real driver may be one device file, and
 * nothing can be written into them.
 *
 * So the open file itself carries the object's number: a read lock of one byte, at that offset, that belongs to the open file
 * description (fcntl, F_OFD_SETLK). The lock travels with the descriptor through sockets and fork, and the kernel drops it when
 * the last copy is closed. /proc/self/fdinfo shows an importer the locks of the open file that it received; /proc/locks shows
 * every process which locks are left. Numbers are random and 62 bits long, so no other lock on the machine is mistaken for one
 * of these.
 *
 * A program can move a mark to another descriptor. So handles.c compares what the driver has imported with the object, and
 * pool_share.c names the pieces of a pool by the pool's number. Moved to memory of the same size on the same card, a mark is
 * believed.
 *
 * A descriptor that was opened again, through /proc/self/fd, is another open file: it carries no number, and a process that
 * imports its memory is charged as for memory of unknown origin (memory/foreign.c).
 *
 * Where /proc/locks cannot be read, every descriptor is taken to be closed. Memory that only a descriptor keeps is then not
 * counted, which the node agent's audit covers. */
#include "ledger/descriptor.h"

#include "base/kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FIRST (1ull << 62)
#define LINE 256
#define LOOKS 12

static uint64_t random_number(void)
{
    uint64_t n = 0;
    if (syscall(SYS_getrandom, &n, sizeof n, GRND_NONBLOCK) == (long)sizeof n) return n;
    static _Atomic uint64_t count;
    n = fr_clock_ns(CLOCK_MONOTONIC) ^ (uint64_t)syscall(SYS_getpid) << 40 ^ atomic_fetch_add(&count, 1) << 20;
    return n * 0x9e3779b97f4a7c15ull;
}

struct fr_key fr_descriptor_key(void)
{
    return (struct fr_key){FR_KEY_DESCRIPTOR, FIRST | (random_number() >> 2)};
}

int fr_descriptor_copy(int fd)
{
    int before = errno, copy = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3);
    errno = before;
    return copy;
}

bool fr_descriptor_mark(int fd, struct fr_key key)
{
    int before = errno;
    struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t)key.b, .l_len = 1};
    bool ok = key.a == FR_KEY_DESCRIPTOR && syscall(SYS_fcntl, fd, F_OFD_SETLK, &l) == 0;
    errno = before;
    return ok;
}

/* ---- the kernel's lists of locks ---- */

struct lines {
    int fd;
    unsigned pages; /* that were read or at least begun */
    size_t at, end;
    char text[4096];
};

static bool next_line(struct lines *in, char out[LINE])
{
    size_t n = 0;
    for (;;) {
        if (in->at == in->end) {
            long got = syscall(SYS_read, in->fd, in->text, sizeof in->text);
            if (got <= 0) return false;
            in->pages += 1 + ((size_t)got > sizeof in->text - LINE); /* nearly full: more may have followed */
            in->at = 0;
            in->end = (size_t)got;
        }
        char c = in->text[in->at++];
        if (c == '\n') break;
        if (n < LINE - 1) out[n++] = c;
    }
    out[n] = 0;
    return true;
}

static bool parse(const char *digits, uint64_t *out)
{
    uint64_t n = 0;
    const char *p = digits;
    for (; *p >= '0' && *p <= '9' && n < FIRST; p++) n = n * 10 + (uint64_t)(*p - '0');
    *out = n;
    return p > digits && *p == 0;
}

/* "... OFDLCK ADVISORY  READ -1 fe:00:1234 FROM TO", where FROM and TO are the same number, in the range of object numbers. */
static bool number_of(char *line, uint64_t *out)
{
    uint64_t to;
    if (!strstr(line, "OFDLCK") || !strstr(line, "READ")) return false;
    char *last = strrchr(line, ' ');
    if (!last || !parse(last + 1, &to)) return false;
    *last = 0;
    char *from = strrchr(line, ' ');
    return from && parse(from + 1, out) && *out == to && to >= FIRST;
}

bool fr_descriptor_read(int fd, struct fr_key *key)
{
    int before = errno;
    char path[40] = "/proc/self/fdinfo/", digits[12], line[LINE];
    int n = 0, at = (int)strlen(path);
    if (fd < 0) return false;
    for (int v = fd; v || !n; v /= 10) digits[n++] = (char)('0' + v % 10);
    while (n) path[at++] = digits[--n];
    path[at] = 0;
    key->a = FR_KEY_DESCRIPTOR;
    struct lines in = {.fd = fr_open(path, O_RDONLY)};
    bool found = false;
    while (in.fd >= 0 && !found && next_line(&in, line)) found = number_of(line, &key->b);
    if (in.fd >= 0) fr_close(in.fd);
    errno = before;
    return found;
}

/* Searches the kernel's list once. True: the kernel returned the whole list at once, so a lock that was not seen does not
 * exist. */
static bool look(const struct fr_key *keys, bool *open, uint32_t count)
{
    char line[LINE];
    uint64_t number;
    struct lines in = {.fd = fr_open("/proc/locks", O_RDONLY)};
    while (in.fd >= 0 && next_line(&in, line)) {
        if (!number_of(line, &number)) continue;
        for (uint32_t i = 0; i < count; i++) open[i] |= keys[i].a == FR_KEY_DESCRIPTOR && keys[i].b == number;
    }
    if (in.fd >= 0) fr_close(in.fd);
    return in.pages <= 1;
}

/* Sets open[i] for every key whose marked descriptor is open. The kernel returns the list one page at a time, by position: if a
 * lock near the front goes between two pages, another lock is skipped. On a machine where locks come and go all the time, one
 * look in eight missed an existing lock. So a descriptor counts as closed only after many looks have missed it, or one look
 * that got the whole list at once. The first look nearly always sees an open one. */
void fr_descriptors_open(const struct fr_key *keys, bool *open, uint32_t count)
{
    int before = errno;
    bool unseen = false;
    for (uint32_t i = 0; i < count; i++) {
        open[i] = false;
        unseen |= keys[i].a == FR_KEY_DESCRIPTOR;
    }
    for (int n = 0; n < LOOKS && unseen; n++) {
        if (look(keys, open, count)) break;
        unseen = false;
        for (uint32_t i = 0; i < count; i++) unseen |= keys[i].a == FR_KEY_DESCRIPTOR && !open[i];
    }
    errno = before;
}

bool fr_descriptor_open(struct fr_key key)
{
    bool open;
    fr_descriptors_open(&key, &open, 1);
    return open;
}
