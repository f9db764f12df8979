/* The device addresses of a process and the bytes behind them.
 *
 * Device addresses are numbers from a range that the host does not use, so host code that dereferences one crashes, as on a real machine.
 * Address ranges are powers of two in size and are reused, so addresses cannot run out before the card's memory does. */
#include "local.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_ADDRESS 0x200000000000ull
#define CLASSES 48

static struct sim_region **regions;
static size_t count, room;
static uint64_t next_address = FIRST_ADDRESS;
static struct { uint64_t *free; size_t count, room; } classes[CLASSES];

static int class_of(size_t size)
{
    int c = 21; /* 2 MiB */
    while (c < CLASSES - 1 && (1ull << c) < size) c++;
    return c;
}

uint64_t sim_reserve_address(size_t size)
{
    int c = class_of(size);
    if (classes[c].count) return classes[c].free[--classes[c].count];
    uint64_t align = 1ull << (c < 30 ? c : 30);
    uint64_t va = (next_address + align - 1) & ~(align - 1);
    next_address = va + (1ull << c);
    return va;
}

void sim_release_address(uint64_t va, size_t size)
{
    int c = class_of(size);
    if (classes[c].count == classes[c].room) {
        size_t more = classes[c].room ? classes[c].room * 2 : 16;
        uint64_t *grown = realloc(classes[c].free, more * sizeof *grown);
        if (!grown) return; /* only the address is lost */
        classes[c].free = grown;
        classes[c].room = more;
    }
    classes[c].free[classes[c].count++] = va;
}

/* Index of the first region that begins above va. */
static size_t above(uint64_t va)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (regions[middle]->va <= va) low = middle + 1;
        else high = middle;
    }
    return low;
}

struct sim_region *sim_region_add(struct sim_region r)
{
    struct sim_region *new = malloc(sizeof *new);
    if (count == room) {
        size_t more = room ? room * 2 : 64;
        struct sim_region **grown = realloc(regions, more * sizeof *grown);
        if (grown) regions = grown, room = more;
    }
    if (!new || count == room) return free(new), NULL;
    *new = r;
    new->number = ++sim.next_number;
    size_t at = above(r.va);
    memmove(&regions[at + 1], &regions[at], (count - at) * sizeof *regions);
    regions[at] = new;
    count++;
    return new;
}

struct sim_region *sim_region_find(uint64_t va)
{
    size_t at = above(va);
    struct sim_region *r = at ? regions[at - 1] : NULL;
    return r && va - r->va < r->size ? r : NULL;
}

struct sim_region *sim_region_at(uint64_t va)
{
    struct sim_region *r = sim_region_find(va);
    return r && r->va == va ? r : NULL;
}

/* Several regions may have one address: this one, and none of the others. */
void sim_region_remove(struct sim_region *r)
{
    size_t at = above(r->va) - 1;
    while (regions[at] != r) at--;
    memmove(&regions[at], &regions[at + 1], (count - at - 1) * sizeof *regions);
    count--;
    free(r);
}

size_t sim_region_count(void) { return count; }
struct sim_region *sim_region_number(size_t i) { return regions[i]; }

/* ---- bytes ---- */

struct sim_bytes *sim_bytes_new(size_t size)
{
    struct sim_bytes *b = calloc(1, sizeof *b);
    if (b) *b = (struct sim_bytes){.size = size, .refs = 1};
    return b;
}

struct sim_bytes *sim_bytes_shared(uint64_t object, size_t size)
{
    struct sim_bytes *b = sim_bytes_new(size);
    if (b) b->object = object;
    return b;
}

static void *map_object(uint64_t object, size_t size, void *at)
{
    char path[256];
    sim_object_path(&sim.host, object, path, sizeof path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return NULL;
    struct stat st;
    bool ok = fstat(fd, &st) == 0 && ((size_t)st.st_size >= size || ftruncate(fd, (off_t)size) == 0);
    void *p = ok ? mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0) : MAP_FAILED;
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}

/* Moves the bytes into the object's file, where another process can map them. */
bool sim_bytes_publish(struct sim_bytes *b, uint64_t object)
{
    if (b->object || b->size > sim.contents_limit) return true;
    void *shared = map_object(object, b->size, NULL);
    if (!shared) return false;
    if (b->memory) {
        memcpy(shared, b->memory, b->size);
        munmap(b->memory, b->size);
    }
    b->memory = shared;
    b->object = object;
    return true;
}

void sim_bytes_drop(struct sim_bytes *b)
{
    if (!b || --b->refs) return;
    if (b->memory) munmap(b->memory, b->size);
    free(b);
}

/* NULL: the allocation is so large that its contents are not kept. */
void *sim_bytes_touch(struct sim_bytes *b)
{
    if (b->memory || b->size > sim.contents_limit) return b->memory;
    if (b->object) return b->memory = map_object(b->object, b->size, NULL);
    void *p = mmap(NULL, b->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return b->memory = p == MAP_FAILED ? NULL : p;
}

/* The host's pointer to the bytes of an address; for a host address, the address itself. */
void *sim_contents(uint64_t va, size_t size, bool *on_device)
{
    struct sim_region *r = sim_region_find(va);
    *on_device = va >= FIRST_ADDRESS && va < next_address;
    if (!r) return *on_device ? NULL : (void *)(uintptr_t)va;
    if (r->kind == R_HOST || r->kind == R_REGISTERED || r->kind == R_MANAGED) {
        *on_device = r->kind == R_MANAGED;
        return (void *)(uintptr_t)va;
    }
    *on_device = true;
    char *base = r->bytes && va + size <= r->va + r->size ? sim_bytes_touch(r->bytes) : NULL;
    return base ? base + r->offset + (va - r->va) : NULL;
}
