/* The driver packs allocations below 1 MiB into granules of 2 MiB, one set for each context. This file counts how many pieces
 * lie in each granule: a granule is charged when its first piece is booked and refunded when its last one is unbooked.
 *
 * A piece is booked after the driver has returned it, out of a granule that the call had reserved, and unbooked after the
 * driver has taken it back. So whatever threads do at the same time, booked and reserved granules together contain all that the
 * driver holds, wherever it puts the pieces: the next piece may be booked at a place before the last one there is unbooked.
 *
 * Two granules may have one address; their numbers distinguish them. One case is a granule of a context that is being
 * destroyed. The other is a granule that is shared with other processes, while all of its pieces are being freed: the other
 * processes keep that memory and its charge, so a piece that comes now is booked in a granule of its own. */
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
    uint32_t number, pieces, leaving; /* pieces that are being freed */
    bool past;                        /* new pieces at its address are booked in another granule */
    struct granule *next, *next_of; /* in the bucket; in the list of all granules */
    struct granule **at_of;
};

static struct fr_lock lock;
static uint32_t era;
static FR_LARGE struct granule *buckets[BUCKETS];
static struct granule *all, *unused;
static uint32_t numbers;

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

/* While one card's context is being destroyed, another card may already get its addresses. */
static struct granule *find(uint64_t base, int card, uint32_t number)
{
    struct granule *g = *bucket_of(base);
    while (g && (g->number != number || g->base != base || g->card != card)) g = g->next;
    return g;
}

/* The granule for a new piece at this address; NULL: none yet. */
static struct granule *find_present(uint64_t base, int card)
{
    struct granule *g = *bucket_of(base);
    while (g && (g->past || g->base != base || g->card != card)) g = g->next;
    if (!g || g->object == FR_NO_OBJECT || g->leaving < g->pieces) return g;
    g->past = true;
    return NULL;
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
    if (!++numbers) numbers = 1;
    *g = (struct granule){.base = base, .context = context, .card = card, .object = FR_NO_OBJECT, .number = numbers, .next = *bucket_of(base),
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

/* The address of the piece's first or second granule; 0: it has no second one. */
static uint64_t base_of(const struct fr_piece *piece, unsigned i)
{
    uint64_t base = (piece->p & ~(FR_GRANULE - 1)) + i * FR_GRANULE;
    return base < piece->p + piece->size ? base : 0;
}

static struct granule *granule_of(const struct fr_piece *piece, unsigned i)
{
    return piece->in[i] ? find(base_of(piece, i), piece->card, piece->in[i]) : NULL;
}

static void remove_piece(struct granule *g, uint32_t *emptied, int *object)
{
    if (--g->pieces) return;
    if (g->object != FR_NO_OBJECT) *object = g->object;
    else ++*emptied;
    drop(g);
}

bool fr_granules_add(CUcontext context, struct fr_piece *piece, uint32_t *added)
{
    *added = 0;
    piece->in[0] = piece->in[1] = 0;
    enter();
    for (unsigned i = 0; i < 2 && base_of(piece, i); i++) {
        uint64_t base = base_of(piece, i);
        struct granule *g = find_present(base, piece->card);
        if (!g && (g = add(base, context, piece->card))) ++*added;
        if (!g) break;
        g->context = context; /* at the address of a piece that is being freed, another context may get a piece */
        g->pieces++;
        piece->in[i] = g->number;
    }
    leave();
    uint32_t emptied;
    int object;
    bool ok = piece->in[0] && (piece->in[1] || !base_of(piece, 1));
    if (!ok) fr_granules_remove(piece, false, &emptied, &object);
    return ok;
}

static uint32_t change_leaving(const struct fr_piece *piece, uint32_t change)
{
    uint32_t going = 0;
    enter();
    for (unsigned i = 0; i < 2; i++) {
        struct granule *g = granule_of(piece, i);
        if (g) g->leaving += change, going += g->leaving == g->pieces && g->object == FR_NO_OBJECT;
    }
    leave();
    return going;
}

uint32_t fr_granules_leaving(const struct fr_piece *piece) { return change_leaving(piece, 1); }
void fr_granules_stay(const struct fr_piece *piece) { change_leaving(piece, (uint32_t)-1); }

void fr_granules_remove(const struct fr_piece *piece, bool was_leaving, uint32_t *emptied, int *object)
{
    *emptied = 0;
    *object = FR_NO_OBJECT;
    enter();
    for (unsigned i = 0; i < 2; i++) {
        struct granule *g = granule_of(piece, i);
        if (g) g->leaving -= was_leaving, remove_piece(g, emptied, object);
    }
    leave();
}

/* ---- sharing, and the end of a context ---- */

bool fr_granule_object(const struct fr_piece *piece, int *object)
{
    enter();
    struct granule *g = granule_of(piece, 0);
    if (g) *object = g->object;
    leave();
    return g != NULL;
}

bool fr_granule_set_object(const struct fr_piece *piece, int object)
{
    enter();
    struct granule *g = granule_of(piece, 0);
    if (g) g->object = object;
    leave();
    return g != NULL;
}

void fr_granules_rename(CUcontext from, CUcontext to, bool ends)
{
    enter();
    for (struct granule *g = all; g; g = g->next_of)
        if (g->context == from) g->context = to, g->past = ends;
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
