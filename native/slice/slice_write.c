/* Writes the files. New ones are made under another name and renamed, so that no reader sees an incomplete file. A page in use is changed in
 * place, under its sequence lock. */
#include "slice.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void *slice_map(const char *directory, const char *name, bool write, size_t least, size_t *size, int *fd_out)
{
    char path[4096];
    struct stat st;
    void *p = MAP_FAILED;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, (write ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) slice_complain("%s: No such file or directory; fractile-slice create %s --card UUID=AMOUNT makes the files", path, directory);
    else if (fd < 0 || fstat(fd, &st) != 0) slice_complain("%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode) || (size_t)st.st_size < least) slice_complain("%s is cut short, or not a file of Fractile%s", path, SLICE_AGAIN);
    else if ((p = mmap(NULL, (size_t)st.st_size, PROT_READ | (write ? PROT_WRITE : 0), MAP_SHARED, fd, 0)) == MAP_FAILED)
        slice_complain("%s: %s", path, strerror(errno));
    if (p != MAP_FAILED && size) *size = (size_t)st.st_size;
    if (p != MAP_FAILED && fd_out) *fd_out = fd;
    else if (fd >= 0) close(fd);
    return p == MAP_FAILED ? NULL : p;
}

static int write_file(const char *path, const void *head, size_t head_size, size_t size, mode_t mode)
{
    char aside[4096];
    snprintf(aside, sizeof aside, "%s.new", path);
    int fd = open(aside, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, mode), error = fd < 0 ? errno : 0;
    if (fd >= 0) {
        error = posix_fallocate(fd, 0, (off_t)size);
        if (!error && (fchmod(fd, mode) != 0 || pwrite(fd, head, head_size, 0) != (ssize_t)head_size || fsync(fd) != 0)) error = errno;
        close(fd);
    }
    if (!error && rename(aside, path) != 0) error = errno;
    if (!error) return 0;
    unlink(aside);
    return slice_complain("%s cannot be written: %s", path, strerror(error));
}

static void put_card(struct fr_limits_card *to, const struct slice_card *from)
{
    if (from->given & GIVEN_MEMORY) __atomic_store_n(&to->memory, from->memory, __ATOMIC_RELAXED);
    if (from->given & GIVEN_CONTEXT) __atomic_store_n(&to->context, from->context, __ATOMIC_RELAXED);
    if (from->given & GIVEN_UNACCOUNTED) __atomic_store_n(&to->unaccounted, from->unaccounted, __ATOMIC_RELAXED);
    if (from->given & GIVEN_CORES) __atomic_store_n(&to->cores, from->cores, __ATOMIC_RELAXED);
    if (from->given & GIVEN_CORES_LIMIT) __atomic_store_n(&to->cores_limit, from->cores_limit, __ATOMIC_RELAXED);
    if (from->given & GIVEN_WEIGHT) __atomic_store_n(&to->weight, from->weight, __ATOMIC_RELAXED);
}

static void put_off(struct fr_limits *page, int off)
{
    if (off < 0) return;
    uint32_t others = page->flags & ~FR_FLAG_ISOLATION_OFF;
    __atomic_store_n(&page->flags, others | (off ? FR_FLAG_ISOLATION_OFF : 0), __ATOMIC_RELAXED);
}

/* Warns about values that are allowed but probably not intended. */
static void warn(const struct fr_limits_card *c)
{
    uint64_t left = c->memory > c->unaccounted ? c->memory - c->unaccounted : 0;
    if (!c->memory) slice_complain("warning: card %.95s: with a quota of 0 not even a context fits", c->uuid);
    else if (c->memory < 2u << 20) slice_complain("warning: card %.95s: a quota of %llu bytes is less than the 2 MiB that the driver gives out at a time, so every allocation is refused; was another unit meant, as in 512MiB?", c->uuid, (unsigned long long)c->memory);
    else if (!left) slice_complain("warning: card %.95s: unaccounted takes all of the quota, so every allocation is refused", c->uuid);
    else if (c->context > left) slice_complain("warning: card %.95s: a context takes more than the quota, so none can be created", c->uuid);
    if (c->weight > 1 && (c->cores || (!c->cores_limit && !c->flags)))
        slice_complain("warning: card %.95s: weight=%u has no effect: it counts only where cores is 0 and cores-limit is set", c->uuid, c->weight);
    if (c->cores_limit && c->cores > c->cores_limit) slice_complain("warning: card %.95s: cores=%u is above cores-limit=%u: the container gets at most %u %%", c->uuid, c->cores, c->cores_limit, c->cores_limit);
}

static int make_region(const struct slice_request *r, uint64_t generation)
{
    char path[4096];
    size_t slot = sizeof(struct fr_slot) + r->card_count * sizeof(struct fr_account);
    struct fr_region region = {
        .magic = FR_REGION_MAGIC, .version = FR_LAYOUT_VERSION, .header_size = sizeof region, .generation = generation,
        .card_count = r->card_count, .slot_count = r->slots, .object_count = r->objects, .account_size = sizeof(struct fr_account),
        .size = sizeof region + r->card_count * sizeof(struct fr_region_card) + r->slots * slot + r->objects * sizeof(struct fr_object),
    };
    snprintf(path, sizeof path, "%s/shared/region", r->directory);
    return write_file(path, &region, sizeof region, region.size, 0666);
}

static int make_limits(const struct slice_request *r, uint64_t generation)
{
    char path[4096];
    struct fr_limits page = {.magic = FR_LIMITS_MAGIC, .version = FR_LAYOUT_VERSION, .size = sizeof page, .end = FR_END_MAGIC,
                             .card_count = r->card_count, .region_generation = generation};
    for (uint32_t i = 0; i < r->card_count; i++) {
        memcpy(page.cards[i].uuid, r->cards[i].uuid, sizeof r->cards[i].uuid);
        page.cards[i].weight = 1;
        put_card(&page.cards[i], &r->cards[i]);
        warn(&page.cards[i]);
        if (strncmp(page.cards[i].uuid, "GPU-", 4) != 0 && strncmp(page.cards[i].uuid, "MIG-", 4) != 0)
            slice_complain("warning: card %.95s: a UUID begins with GPU- or MIG-; nvidia-smi -L prints those of this machine", page.cards[i].uuid);
    }
    put_off(&page, r->off);
    snprintf(path, sizeof path, "%s/limits", r->directory);
    return write_file(path, &page, sizeof page, sizeof page, 0644);
}

static int make_directories(const char *directory)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/shared", directory);
    for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash) *slash = 0;
        if (mkdir(path, 0755) != 0 && errno != EEXIST) return slice_complain("%s cannot be created: %s", path, strerror(errno));
        if (!slash) return 0;
        *slash = '/';
    }
}

int slice_create(const struct slice_request *r)
{
    uint64_t generation = 0;
    if (strlen(r->directory) > 4000) return slice_complain("the name of the directory is too long");
    for (uint32_t i = 0; i < r->card_count; i++)
        if (!(r->cards[i].given & GIVEN_MEMORY)) return slice_complain("card %s: how much memory?", r->cards[i].uuid);
    while (generation == 0)
        if (syscall(SYS_getrandom, &generation, sizeof generation, 0) != (long)sizeof generation) generation = (uint64_t)time(NULL) << 20 | (uint64_t)getpid();
    if (make_directories(r->directory)) return 1;
    return make_region(r, generation) || make_limits(r, generation);
}

static struct fr_limits_card *card_named(struct fr_limits *page, const char *uuid)
{
    for (uint32_t i = 0; i < page->card_count && i < FR_MAX_CARDS; i++)
        if (!strncmp(page->cards[i].uuid, uuid, sizeof page->cards[i].uuid)) return &page->cards[i];
    return NULL;
}

int slice_set(const struct slice_request *r)
{
    int fd;
    struct fr_limits *page = slice_map(r->directory, "limits", true, sizeof *page, NULL, &fd);
    if (!page) return 1;
    if (page->magic != FR_LIMITS_MAGIC || page->version != FR_LAYOUT_VERSION) return slice_complain("%s/limits is damaged, or of another version%s", r->directory, SLICE_AGAIN);
    for (uint32_t i = 0; i < r->card_count; i++)
        if (!card_named(page, r->cards[i].uuid)) return slice_complain("%s has no card %s; fractile-slice show %s lists its cards", r->directory, r->cards[i].uuid, r->directory);
    flock(fd, LOCK_EX); /* one writer at a time */
    uint32_t sequence = atomic_load(&page->sequence) | 1;
    atomic_store(&page->sequence, sequence);
    atomic_thread_fence(memory_order_seq_cst);
    for (uint32_t i = 0; i < r->card_count; i++) put_card(card_named(page, r->cards[i].uuid), &r->cards[i]);
    put_off(page, r->off);
    atomic_store(&page->sequence, sequence + 1);
    flock(fd, LOCK_UN);
    for (uint32_t i = 0; i < r->card_count; i++) warn(card_named(page, r->cards[i].uuid));
    munmap(page, sizeof *page);
    close(fd);
    return 0;
}
