/* The driver packs allocations below 1 MiB into granules of 2 MiB, one set for each context. Here stands how many pieces lie in
 * which granule: a granule is charged when its first piece is booked and refunded when its last is unbooked.
 *
 * A piece is booked after the driver gave it, out of a granule that the call had reserved, and unbooked after the driver took
 * it back. So whatever threads do at the same time, the granules that are booked or reserved contain all that the driver
 * holds, wherever it puts the pieces: the next piece may be booked at a place before the last one there is unbooked. */
#include "memory/granules.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "ledger/objects.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define BUCKETS 4096
#define ARENA (64 * 1024)

struct granule {
    uint64_t base;
    CUcontext context;
    int card, object;
    uint32_t pieces;
    struct granule *next, *next_of; /* in the bucket; in the list of all */
    struct granule **at_of;
};

static struct fr_lock lock;
static uint32_t era;
static FR_LARGE struct granule *buckets[BUCKETS];
static struct granule *all, *unused;

static void enter(void)
{
    fr_lock(&lock);
    uint32_t now = atomic_load(&fr_era);
    if (era == now) return;
    if (all) memset(buckets, 0, sizeof buckets); /* a forked child has none of its parent's memory */
    all = unused = NULL;
    era = now;
}

static void leave(void) { fr_unlock(&lock); }

static struct granule **bucket_of(uint64_t base) { return &buckets[(base / FR_GRANULE) % BUCKETS]; }

/* While one card's context is being destroyed, another card may get its addresses already. */
static struct granule *find(uint64_t base, int card)
{
    struct granule *g = *bucket_of(base);
    while (g && (g->base != base || g->card != card)) g = g->next;
    return g;
}

static struct granule *take_entry(void)
{
    if (!unused) {
        struct granule *fresh = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fresh == MAP_FAILED) return NULL;
        for (size_t i = 0; i < ARENA / sizeof *fresh; i++) fresh[i].next = unused, unused = &fresh[i];
    }
    struct granule *g = unused;
    unused = g->next;
    return g;
}

static struct granule *add(uint64_t base, CUcontext context, int card)
{
    struct granule *g = take_entry();
    if (!g) return NULL;
    *g = (struct granule){.base = base, .context = context, .card = card, .object = FR_NO_OBJECT, .next = *bucket_of(base),
                          .next_of = all, .at_of = &all};
    *bucket_of(base) = g;
    if (all) all->at_of = &g->next_of;
    return all = g;
}

static void drop(struct granule *g)
{
    struct granule **p = bucket_of(g->base);
    while (*p != g) p = &(*p)->next;
    *p = g->next;
    *g->at_of = g->next_of;
    if (g->next_of) g->next_of->at_of = g->at_of;
    g->next = unused;
    unused = g;
}

/* ---- pieces ---- */

static void remove_piece(struct granule *g, uint32_t *emptied, int *object)
{
    if (--g->pieces) return;
    if (g->object != FR_NO_OBJECT) *object = g->object;
    else ++*emptied;
    drop(g);
}

bool fr_granules_add(CUcontext context, int card, CUdeviceptr p, uint64_t size, uint32_t *added)
{
    bool ok = true;
    *added = 0;
    enter();
    for (uint64_t base = p & ~(FR_GRANULE - 1); base < p + size && ok; base += FR_GRANULE) {
        struct granule *g = find(base, card);
        if (!g && (g = add(base, context, card))) ++*added;
        ok = g != NULL;
        if (!ok) break;
        g->context = context; /* at the address of one that is being freed, another context may get one */
        g->pieces++;
    }
    leave();
    return ok;
}

void fr_granules_remove(int card, CUdeviceptr p, uint64_t size, uint32_t *emptied, int *object)
{
    *emptied = 0;
    *object = FR_NO_OBJECT;
    enter();
    for (uint64_t base = p & ~(FR_GRANULE - 1); base < p + size; base += FR_GRANULE) {
        struct granule *g = find(base, card);
        if (g) remove_piece(g, emptied, object);
    }
    leave();
}

/* ---- sharing, and the end of a context ---- */

bool fr_granule_object(int card, CUdeviceptr p, int *object)
{
    enter();
    struct granule *g = find(p & ~(FR_GRANULE - 1), card);
    if (g) *object = g->object;
    leave();
    return g != NULL;
}

bool fr_granule_set_object(int card, CUdeviceptr p, int object)
{
    enter();
    struct granule *g = find(p & ~(FR_GRANULE - 1), card);
    if (g) g->object = object;
    leave();
    return g != NULL;
}

void fr_granules_rename(CUcontext from, CUcontext to)
{
    enter();
    for (struct granule *g = all; g; g = g->next_of)
        if (g->context == from) g->context = to;
    leave();
}

bool fr_granules_drop(CUcontext context, int *object)
{
    enter();
    struct granule *g = all;
    while (g && g->context != context) g = g->next_of;
    if (g) {
        *object = g->object;
        drop(g);
    }
    leave();
    return g != NULL;
}
