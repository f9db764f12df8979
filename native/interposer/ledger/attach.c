/* The region file: opened, compared with what this library knows, mapped, and closed again. The mapping lasts for the life of
 * the process and is inherited by its children, so the open file through which it was made never carries a lock: a process that
 * takes a slot (slot.c) opens the file once more for that. */
#include "ledger/attach.h"

#include "base/kernel.h"
#include "base/message.h"
#include "ledger/shared.h"

#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct fr_shared fr_shared;

static bool failed(const char *path, const char *what)
{
    fr_say(FR_SAY_REGION, "%s %s" FR_NOTHING_IS_HELD, path, what);
    return false;
}

static void region_path(char *out)
{
    strcat(strcpy(out, fr_shared.directory), "/shared/region");
}

static const char *why_not_open(int error)
{
    switch (error) {
    case ENOENT: return "is not there";
    case EACCES: return "may not be opened by this user";
    case EROFS: return "is on a file system that is mounted read-only";
    case EMFILE: return "cannot be opened: no descriptor is left";
    default: return "cannot be opened";
    }
}

static uint64_t size_for(const struct fr_region *r)
{
    uint64_t slot = sizeof(struct fr_slot) + r->card_count * sizeof(struct fr_account);
    return sizeof *r + r->card_count * sizeof(struct fr_region_card) + r->slot_count * slot + r->object_count * sizeof(struct fr_object);
}

/* Why this region cannot be used; NULL: it can. */
static const char *fault_of(const struct fr_region *r, const struct stat *st)
{
    if (r->magic != FR_REGION_MAGIC) return "is no region";
    if (r->version < FR_LAYOUT_VERSION) return "is of an older version than this library";
    if (r->version > FR_LAYOUT_VERSION) return "is of a newer version than this library";
    if (r->header_size != sizeof *r || r->account_size != sizeof(struct fr_account)) return "is laid out differently";
    if (r->slot_count == 0 || r->slot_count > FR_MAX_SLOTS || r->object_count > FR_MAX_OBJECTS || r->card_count > FR_MAX_CARDS)
        return "is damaged (its counts are impossible)";
    if (r->size != (uint64_t)st->st_size || size_for(r) != r->size) return "is damaged (its size does not fit its counts)";
    if (r->card_count != fr_shared.card_count) return "has another number of cards than the limits";
    if (r->generation != fr_shared.limits->region_generation) return "does not belong to the limits beside it";
    return NULL;
}

static void adopt(struct fr_region *r, const struct stat *st)
{
    fr_shared.cards = (struct fr_region_card *)(r + 1);
    fr_shared.slots = (char *)(fr_shared.cards + r->card_count);
    fr_shared.slot_size = sizeof(struct fr_slot) + r->card_count * sizeof(struct fr_account);
    fr_shared.slot_count = r->slot_count;
    fr_shared.object_count = r->object_count;
    fr_shared.objects = (struct fr_object *)(fr_shared.slots + r->slot_count * fr_shared.slot_size);
    fr_shared.device = st->st_dev;
    fr_shared.inode = st->st_ino;
    __atomic_store_n(&fr_shared.region, r, __ATOMIC_RELEASE);
}

static const char *map_file(int fd, const struct stat *st)
{
    if (!S_ISREG(st->st_mode) || st->st_size < (off_t)sizeof(struct fr_region)) return "is cut short";
    if ((uint64_t)st->st_blocks * 512 < (uint64_t)st->st_size) return "is not wholly on the disk (was the disk full?)";
    struct fr_region *r = mmap(NULL, (size_t)st->st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (r == MAP_FAILED) return "cannot be mapped";
    const char *fault = fault_of(r, st);
    if (fault) munmap(r, (size_t)st->st_size);
    else adopt(r, st);
    return fault;
}

static const char *use(int fd)
{
    struct stat st;
    if (!fr_examine(fd, &st)) return "cannot be examined";
    if (!fr_shared.region) return map_file(fd, &st);
    return st.st_dev == fr_shared.device && st.st_ino == fr_shared.inode ? NULL : "was replaced by another file";
}

int fr_region_open(void)
{
    char path[sizeof fr_shared.directory + 32];
    region_path(path);
    int fd = fr_open(path, O_RDWR);
    if (fd < 0) failed(path, why_not_open(errno));
    return fd;
}

bool fr_region_use(int fd)
{
    char path[sizeof fr_shared.directory + 32];
    const char *fault = use(fd);
    if (!fault) return true;
    region_path(path);
    return failed(path, fault);
}

bool fr_region_map(void)
{
    if (fr_shared.region) return true;
    int fd = fr_region_open();
    bool used = fd >= 0 && fr_region_use(fd);
    if (fd >= 0) fr_close(fd);
    return used;
}
