/* The limits page: written by the node agent, mapped read-only, checked once, then read under its sequence lock by every caller
 * that needs a number. A writer that died in the middle of a change leaves the sequence odd; until the writer is back, this
 * process uses the last good numbers. */
#include "ledger/limits_page.h"

#include "base/compiler.h"
#include "base/kernel.h"
#include "base/lock.h"
#include "base/message.h"
#include "base/text.h"
#include "ledger/limits.h"
#include "ledger/shared.h"

#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRIES 200

static struct fr_limits *mapped; /* complete and checked, or NULL */
static struct fr_lock good_lock;
static FR_LARGE struct { /* the last numbers that were read consistently */
    char uuid[96];
    struct fr_quota quota;
    _Atomic uint32_t sequence; /* plus 1; 0: no quota yet */
} good[FR_MAX_CARDS];
static _Atomic uint32_t stuck; /* the odd sequence that did not end */

static bool failed(const char *path, const char *what)
{
    fr_say(FR_SAY_LIMITS, "%s %s" FR_NOTHING_IS_HELD, path, what);
    return false;
}

/* The container's directory: where the agent mounts it. Otherwise FRACTILE_DIR, but only in programs without more rights than
 * their user. */
static bool find_directory(void)
{
    const char *set = "/etc/fractile";
    if (syscall(SYS_faccessat, AT_FDCWD, "/etc/fractile/.", F_OK) != 0 && errno != EACCES) set = secure_getenv("FRACTILE_DIR");
    if (!set || !*set) return failed("/etc/fractile", "is not there, and FRACTILE_DIR is not set");
    if (*set != '/' || strlen(set) > sizeof fr_shared.directory - 32) return failed(set, "(FRACTILE_DIR) is not an absolute path, or is too long");
    strcpy(fr_shared.directory, set);
    return true;
}

static void copy_card(const struct fr_limits_card *c, struct fr_quota *out)
{
    out->memory = __atomic_load_n(&c->memory, __ATOMIC_RELAXED);
    out->context = __atomic_load_n(&c->context, __ATOMIC_RELAXED);
    out->unaccounted = __atomic_load_n(&c->unaccounted, __ATOMIC_RELAXED);
    out->may_hold = out->memory > out->unaccounted ? out->memory - out->unaccounted : 0;
    out->cores = __atomic_load_n(&c->cores, __ATOMIC_RELAXED);
    out->cores_limit = __atomic_load_n(&c->cores_limit, __ATOMIC_RELAXED);
    out->weight = __atomic_load_n(&c->weight, __ATOMIC_RELAXED);
    out->flags = __atomic_load_n(&c->flags, __ATOMIC_RELAXED);
}

static void remember(int card, const struct fr_quota *quota, uint32_t sequence)
{
    if (likely(atomic_load_explicit(&good[card].sequence, memory_order_relaxed) == sequence + 1)) return;
    fr_lock(&good_lock);
    good[card].quota = *quota;
    atomic_store_explicit(&good[card].sequence, sequence + 1, memory_order_relaxed);
    fr_unlock(&good_lock);
}

/* Reads one card as it was at one moment; false: the writer does not finish. */
static bool read_card(const struct fr_limits *page, int card, struct fr_quota *out)
{
    for (unsigned i = 0; i < TRIES; i++) {
        uint32_t before = atomic_load_explicit(&page->sequence, memory_order_acquire);
        if (!(before & 1)) {
            copy_card(&page->cards[card], out);
            atomic_thread_fence(memory_order_acquire);
            if (likely(atomic_load_explicit(&page->sequence, memory_order_relaxed) == before)) {
                remember(card, out, before);
                return true;
            }
        } else if (before == atomic_load_explicit(&stuck, memory_order_relaxed)) {
            return false;
        } else if (i == TRIES - 1) {
            atomic_store_explicit(&stuck, before, memory_order_relaxed);
        }
        if (i > TRIES / 4) fr_sleep_us(20);
    }
    return false;
}

void fr_limits_read(int card, struct fr_quota *out)
{
    if (read_card(fr_shared.limits, card, out)) return;
    fr_lock(&good_lock);
    *out = good[card].quota;
    fr_unlock(&good_lock);
}

static __attribute__((noinline)) uint64_t may_hold_slowly(int card)
{
    struct fr_quota quota;
    fr_limits_read(card, &quota);
    return quota.may_hold;
}

uint64_t fr_limits_may_hold(int card)
{
    const struct fr_limits *page = fr_shared.limits;
    const struct fr_limits_card *c = &page->cards[card];
    uint32_t before = atomic_load_explicit(&page->sequence, memory_order_acquire);
    uint64_t memory = __atomic_load_n(&c->memory, __ATOMIC_RELAXED), unaccounted = __atomic_load_n(&c->unaccounted, __ATOMIC_RELAXED);
    atomic_thread_fence(memory_order_acquire);
    bool whole = atomic_load_explicit(&page->sequence, memory_order_relaxed) == before && !(before & 1);
    if (unlikely(!whole || atomic_load_explicit(&good[card].sequence, memory_order_relaxed) != before + 1)) return may_hold_slowly(card);
    return memory > unaccounted ? memory - unaccounted : 0;
}

const char *fr_limits_uuid(int card) { return good[card].uuid; }

/* Why the page cannot be used; NULL: it can. */
static const char *fault_of(const struct fr_limits *page)
{
    struct fr_quota quota;
    if (page->magic != FR_LIMITS_MAGIC) return "is no page of limits";
    if (page->version < FR_LAYOUT_VERSION) return "is of an older version than this library";
    if (page->version > FR_LAYOUT_VERSION) return "is of a newer version than this library";
    if (page->size != sizeof *page || page->end != FR_END_MAGIC) return "is damaged (its size or end is wrong)";
    if (page->card_count > FR_MAX_CARDS) return "is damaged (it names too many cards)";
    for (uint32_t i = 0; i < page->card_count; i++) {
        const char *uuid = page->cards[i].uuid;
        size_t length = fr_bounded_length(uuid, sizeof good[0].uuid);
        if (length == 0 || length == sizeof good[0].uuid) return "is damaged (a card has no name)";
        if (!read_card(page, (int)i, &quota)) return "is being written and does not get finished";
    }
    return NULL;
}

static const char *map_file(const char *path, const struct fr_limits **out)
{
    struct stat st;
    int fd = fr_open(path, O_RDONLY);
    if (fd < 0) return errno == ENOENT ? "is not there" : errno == EMFILE ? "cannot be opened: no descriptor is left" : "cannot be opened";
    bool whole = fr_examine(fd, &st) && S_ISREG(st.st_mode) && st.st_size >= (off_t)sizeof **out;
    void *p = whole ? mmap(NULL, sizeof **out, PROT_READ, MAP_SHARED, fd, 0) : NULL;
    fr_close(fd);
    if (!whole) return "is cut short, or of an older version";
    if (p == MAP_FAILED) return "cannot be mapped";
    *out = p;
    return NULL;
}

bool fr_limits_map(void)
{
    char path[sizeof fr_shared.directory + 16];
    const struct fr_limits *page = NULL;
    if (mapped) return true;
    if (!find_directory()) return false;
    strcat(strcpy(path, fr_shared.directory), "/limits");
    const char *fault = map_file(path, &page);
    if (!fault) fault = fault_of(page);
    if (fault) {
        if (page) munmap((void *)page, sizeof *page);
        return failed(path, fault);
    }
    for (uint32_t i = 0; i < page->card_count; i++) memcpy(good[i].uuid, page->cards[i].uuid, sizeof good[i].uuid);
    fr_shared.card_count = page->card_count;
    mapped = (struct fr_limits *)page;
    __atomic_store_n(&fr_shared.limits, mapped, __ATOMIC_RELEASE);
    return true;
}
