/* The driver packs allocations below 1 MiB into granules of 2 MiB, one set for each context: a granule is charged when its
 * first piece lands and refunded with its last. Here stands which units of 512 bytes of which granule are taken, and how
 * often: a piece is booked after the driver gave it, and unbooked after the driver took it back, so the next piece may be
 * booked at the same place before the last one is unbooked.
 *
 * An allocation reserves a whole granule before the call. When the quota has none left, it may still fit into a hole. That
 * must be sure before the call, whatever other threads do meanwhile, and without a lock across the call:
 *   - it claims room: a hole counts only when all small allocations on their way in this context fit into it together, wherever
 *     in it the others lie: what was freed after one of them landed is a hole here with that one somewhere in the middle;
 *   - while any is on its way, a granule that turns out not to be needed (an allocation with a reservation landed in the
 *     hole, or a last piece was freed) is not given back but kept as the group's spare, for whoever was pushed out;
 *   - a granule whose pieces are all being freed may be gone already: its charge can be taken over at once ("owed"). Which
 *     of several went first nobody knows, so the first that is known to be gone pays. */
#include "granules.h"

#include <string.h>
#include <sys/mman.h>

#define UNIT 512
#define UNITS (FR_GRANULE / UNIT)
#define BUCKETS 4096
#define GROUPS 64
#define ARENA (512 * 1024)

struct granule {
    uint64_t base;
    uint8_t taken[UNITS];
    CUcontext context;
    int card, object;
    uint32_t pieces, freeing, units;
    bool owed; /* its charge was taken over by another granule */
    struct granule *next, *next_of; /* in the bucket; in the list of all */
    struct granule **at_of;
};

struct group {
    CUcontext context;
    uint32_t on_way, units, spare;
    uint32_t claims, largest; /* those of them without a reservation, and how many units any of these asked for */
    struct fr_op free; /* announces the spare: it may go back soon */
};

static struct fr_lock lock;
static uint32_t era, debts; /* how many are owed */
static FR_LARGE struct granule *buckets[BUCKETS];
static struct granule *all, *unused;
static FR_LARGE struct group groups[GROUPS];

static void enter(void)
{
    fr_lock(&lock);
    uint32_t now = atomic_load(&fr_era);
    if (era == now) return;
    if (all) memset(buckets, 0, sizeof buckets); /* a forked child has none of its parent's memory */
    memset(groups, 0, sizeof groups);
    all = unused = NULL;
    debts = 0;
    era = now;
}

static void leave(void) { fr_unlock(&lock); }

static struct granule **bucket_of(uint64_t base) { return &buckets[(base / FR_GRANULE) % BUCKETS]; }

static struct granule *find(uint64_t base)
{
    struct granule *g = *bucket_of(base);
    while (g && g->base != base) g = g->next;
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

static bool set_owed(struct granule *g, bool owed)
{
    bool was = g->owed;
    debts += owed - was;
    g->owed = owed;
    return was;
}

static void drop(struct granule *g)
{
    set_owed(g, false);
    struct granule **p = bucket_of(g->base);
    while (*p != g) p = &(*p)->next;
    *p = g->next;
    *g->at_of = g->next_of;
    if (g->next_of) g->next_of->at_of = g->at_of;
    g->next = unused;
    unused = g;
}

/* ---- units ---- */

static void mark(struct granule *g, uint32_t from, uint32_t end, bool on)
{
    for (uint32_t i = from; i < end; i++) {
        if (g->taken[i] == UINT8_MAX) continue; /* so many that nobody knows any more: taken for good */
        g->units -= g->taken[i] != 0;
        g->taken[i] = (uint8_t)(on ? g->taken[i] + 1 : g->taken[i] - (g->taken[i] != 0));
        g->units += g->taken[i] != 0;
    }
}

/* The part of [p, p + size) that lies in this granule. */
static void mark_part(struct granule *g, CUdeviceptr p, uint64_t size, bool on)
{
    uint64_t from = p > g->base ? p - g->base : 0, to = p + size - g->base;
    mark(g, (uint32_t)(from / UNIT), (uint32_t)((to < FR_GRANULE ? to + UNIT - 1 : FR_GRANULE) / UNIT), on);
}

static bool has_hole(const struct granule *g, uint64_t wanted)
{
    if (UNITS - g->units < wanted) return false;
    for (const uint8_t *at = g->taken, *end = g->taken + UNITS; at < end;) {
        const uint8_t *hole = memchr(at, 0, (size_t)(end - at));
        if (!hole) return false;
        for (at = hole; at < end && !*at && at - hole < (ptrdiff_t)wanted; at++) {}
        if (at - hole == (ptrdiff_t)wanted) return true;
    }
    return false;
}

static bool hole_in(CUcontext context, uint64_t wanted)
{
    for (struct granule *g = all; g; g = g->next_of)
        if (g->context == context && g->pieces > g->freeing && has_hole(g, wanted)) return true;
    return false;
}

/* ---- groups: the small allocations of a context that are on their way ---- */

static struct group *group_of(CUcontext context)
{
    for (int i = 0; i < GROUPS; i++)
        if (groups[i].on_way && groups[i].context == context) return &groups[i];
    return NULL;
}

static struct group *join(CUcontext context)
{
    struct group *g = group_of(context);
    for (int i = 0; i < GROUPS && !g; i++)
        if (!groups[i].on_way) *(g = &groups[i]) = (struct group){.context = context, .free = {.card = FR_NO_CARD}};
    return g;
}

static uint32_t units_of(uint64_t size) { return (uint32_t)((size + UNIT - 1) / UNIT); }

/* The hole in which n others of this many units leave room for one of `largest` in the worst case: when all gaps between
 * them are one unit too small for it, but one. */
static uint64_t room(const struct group *g, uint32_t units)
{
    uint32_t largest = g->largest > units ? g->largest : units;
    return g->units + units + (uint64_t)g->on_way * (largest - 1);
}

static void set_out(struct group *g, struct fr_small *s)
{
    s->in_group = true;
    s->claims = !s->own;
    g->on_way++;
    g->units += s->units;
    g->claims += s->claims;
    if (s->claims && g->largest < s->units) g->largest = s->units;
}

bool fr_small_enter(struct fr_small *s, CUcontext context, int card, uint64_t size, uint32_t own)
{
    *s = (struct fr_small){.context = context, .card = card, .units = units_of(size), .own = own};
    enter();
    struct group *g = join(context);
    bool sure = own || (g && hole_in(context, room(g, s->units)));
    if (sure && g) set_out(g, s);
    else if (!sure) s->crowded = g && g->on_way && hole_in(context, s->units);
    leave();
    return sure;
}

/* A granule of this context whose last pieces are being freed: perhaps the driver dropped it already. */
static bool take_over(CUcontext context)
{
    for (struct granule *g = all; g; g = g->next_of)
        if (g->context == context && g->freeing == g->pieces && !g->owed && g->object == FR_NO_OBJECT) return set_owed(g, true), true;
    return false;
}

/* Granules without a charge: unknown ones, and those that were thought to be gone. */
static uint32_t new_granules(CUdeviceptr p, uint64_t size)
{
    uint32_t count = 0;
    for (uint64_t base = p & ~(FR_GRANULE - 1); base < p + size; base += FR_GRANULE) {
        const struct granule *g = find(base);
        count += !g || g->owed;
    }
    return count;
}

static bool book(const struct fr_small *s, CUdeviceptr p, uint64_t size)
{
    for (uint64_t base = p & ~(FR_GRANULE - 1); base < p + size; base += FR_GRANULE) {
        struct granule *g = find(base);
        if (!g && !(g = add(base, s->context, s->card))) return false;
        mark_part(g, p, size, true);
        g->context = s->context; /* at the address of one that is being freed, another context may get one */
        set_owed(g, false);
        g->pieces++;
    }
    return true;
}

static void keep_spare(struct group *g, int card, uint32_t count)
{
    if (count && g->free.card == FR_NO_CARD) fr_free_begin(&g->free, card);
    g->spare += count;
}

/* Of `needed` granules, `taken` were taken over; the others come from its own, then from the spare ones. */
static void settle(const struct fr_small *s, uint32_t needed, uint32_t taken, struct fr_small_end *end)
{
    struct group *g = s->in_group ? group_of(s->context) : NULL;
    uint32_t from_own = needed - taken < s->own ? needed - taken : s->own;
    end->kept = from_own;
    if (!g) return;
    g->spare -= needed - taken - from_own;
    g->units -= s->units;
    g->claims -= s->claims;
    if (!g->claims) g->largest = 0;
    if (--g->on_way) {
        end->kept = s->own; /* somebody may still need what is left over */
        keep_spare(g, s->card, s->own - from_own);
        return;
    }
    end->back = g->spare;
    end->spare = g->free;
}

struct fr_small_end fr_small_leave(struct fr_small *s, CUdeviceptr p, uint64_t size)
{
    struct fr_small_end end = {.spare = {.card = FR_NO_CARD}};
    enter();
    struct group *g = s->in_group ? group_of(s->context) : NULL;
    uint32_t needed = p ? new_granules(p, size) : 0, taken = 0, there = s->own + (g ? g->spare : 0);
    while (needed > there + taken && take_over(s->context)) taken++;
    end.missing = needed > there + taken ? needed - there - taken : 0;
    end.booked = end.missing || !p || book(s, p, size);
    if (!end.missing) settle(s, end.booked ? needed : 0, end.booked ? taken : 0, &end);
    leave();
    return end;
}

void fr_small_freeing(CUdeviceptr p, uint64_t size)
{
    enter();
    for (uint64_t base = p & ~(FR_GRANULE - 1); base < p + size; base += FR_GRANULE) {
        struct granule *g = find(base);
        if (g) g->freeing++;
    }
    leave();
}

/* The driver refused to free it. Whoever took the charge over owes it now. */
void fr_small_stays(CUdeviceptr p, uint64_t size, uint32_t *owed)
{
    *owed = 0;
    enter();
    for (uint64_t base = p & ~(FR_GRANULE - 1); base < p + size; base += FR_GRANULE) {
        struct granule *g = find(base);
        if (!g) continue;
        g->freeing--;
        *owed += set_owed(g, false);
    }
    leave();
}

/* This one is gone: is its charge one that was taken over? */
static bool pays(const struct granule *gone)
{
    if (gone->owed) return true;
    for (struct granule *g = debts ? all : NULL; g; g = g->next_of)
        if (g->context == gone->context && g->owed) return set_owed(g, false);
    return false;
}

void fr_small_freed(CUcontext context, CUdeviceptr p, uint64_t size, uint32_t *back, int *object)
{
    *back = 0;
    *object = FR_NO_OBJECT;
    enter();
    struct group *group = group_of(context);
    for (uint64_t base = p & ~(FR_GRANULE - 1); base < p + size; base += FR_GRANULE) {
        struct granule *g = find(base);
        if (!g) continue;
        mark_part(g, p, size, false);
        g->freeing--;
        if (--g->pieces) continue;
        if (g->object != FR_NO_OBJECT) *object = g->object;
        else if (pays(g)) {}
        else if (group) keep_spare(group, g->card, 1);
        else ++*back;
        drop(g);
    }
    leave();
}

/* ---- sharing, and the end of a context ---- */

bool fr_small_object(CUdeviceptr p, int *card, int *object)
{
    enter();
    struct granule *g = find(p & ~(FR_GRANULE - 1));
    if (g) *card = g->card, *object = g->object;
    leave();
    return g != NULL;
}

bool fr_small_set_object(CUdeviceptr p, int object)
{
    enter();
    struct granule *g = find(p & ~(FR_GRANULE - 1));
    if (g) g->object = object;
    leave();
    return g != NULL;
}

void fr_small_rename(CUcontext from, CUcontext to)
{
    enter();
    for (struct granule *g = all; g; g = g->next_of)
        if (g->context == from) g->context = to;
    leave();
}

bool fr_small_drop(CUcontext context, int *object)
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
