/* What this process knows for sure of the inside of its pools.
 *
 * Near the quota the 32 MiB by which a pool may grow do not fit any more, though most requests need no growth: they fit
 * into a piece that was freed before. Such a request may go without a reservation when that is certain:
 *
 *      chunk:   the address of an allocation that alone made the pool grow is where the new chunk begins
 *      hole:    the chunk's unused rest, or a piece freed in a stream and so at once usable in that stream again
 *
 * A chunk with a piece in use stays; one without may go back to the driver at any synchronisation. A piece that is freed may
 * be joined with what lies free beside it, and is then all of it usable only where and when the freed piece is: so its
 * neighbours take over its order, nothing of a chunk counts while a free in it is on its way, and a free waits for a call
 * that counts on a hole. Whatever is doubtful is forgotten: what is not known costs time, what is known wrongly would
 * cost the quota. */
#include "kernel.h"
#include "pool.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#define UNIT 512
#define HOLES 24
#define MIXED (UINT64_MAX - 1) /* order of a hole that may have become part of pieces of several streams */
#define TURNS 4000 /* that a free waits for a call that counts on a hole: 0.2 s at most */
#define BLOCK 64 /* chunks that are taken from the system at a time */

struct hole {
    uint64_t at, size, order, when; /* order: the stream it was freed in; 0: nothing uses it any more ... */
    uint64_t idle;                  /* ... which is known since then */
};

struct chunk {
    struct fr_pool *pool;
    uint64_t base, size, serial, cuts;
    uint32_t live, holes, frees; /* frees: on their way */
    struct hole hole[HOLES];
    struct chunk *next; /* unused ones */
};

static struct chunk **chunks; /* by address */
static size_t count, room;
static struct chunk *unused;
static uint64_t serials, tick; /* tick: of frees and of what is learned of them */

void fr_pieces_drop(void)
{
    chunks = NULL;
    unused = NULL;
    count = room = 0;
}

static void *from_system(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static struct chunk *new_chunk(void)
{
    if (!unused) {
        struct chunk *more = from_system(BLOCK * sizeof *more);
        for (int i = 0; more && i < BLOCK; i++) {
            more[i].next = unused;
            unused = &more[i];
        }
    }
    struct chunk *c = unused;
    if (c) unused = c->next;
    return c;
}

static bool make_room(void)
{
    if (count < room) return true;
    size_t more = room ? room * 2 : 512;
    struct chunk **grown = from_system(more * sizeof *grown);
    if (!grown) return false;
    if (chunks) {
        memcpy(grown, chunks, count * sizeof *grown);
        munmap(chunks, room * sizeof *chunks);
    }
    chunks = grown;
    room = more;
    return true;
}

static size_t above(uint64_t at)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (chunks[middle]->base <= at) low = middle + 1;
        else high = middle;
    }
    return low;
}

static struct chunk *covering(uint64_t at)
{
    size_t i = above(at);
    struct chunk *c = i ? chunks[i - 1] : NULL;
    return c && at - c->base < c->size ? c : NULL;
}

static void forget(size_t i)
{
    chunks[i]->next = unused;
    unused = chunks[i];
    count--;
    memmove(&chunks[i], &chunks[i + 1], (count - i) * sizeof *chunks);
}

void fr_chunk_forget(struct fr_pool *p, bool empty_only)
{
    for (size_t i = count; i-- > 0;)
        if (chunks[i]->pool == p && (!empty_only || !chunks[i]->live)) forget(i);
}

/* Where a new chunk lies there is no old one any more. */
void fr_chunk_add(struct fr_pool *p, uint64_t base, uint64_t size)
{
    for (size_t i = count; i-- > 0;)
        if (chunks[i]->base < base + size && base < chunks[i]->base + chunks[i]->size) forget(i);
    struct chunk *c = make_room() ? new_chunk() : NULL;
    if (!c) return;
    *c = (struct chunk){.pool = p, .base = base, .size = size, .serial = ++serials, .holes = 1, .hole = {{.at = base, .size = size}}};
    size_t at = above(base);
    memmove(&chunks[at + 1], &chunks[at], (count - at) * sizeof *chunks);
    chunks[at] = c;
    count++;
}

bool fr_chunk_waits(int card)
{
    for (size_t i = 0; i < count; i++)
        if (chunks[i]->pool->card == card && !chunks[i]->live) return true;
    return false;
}

/* ---- holes ---- */

static void put_hole(struct chunk *c, struct hole h)
{
    if (!h.size) return;
    if (c->holes < HOLES) {
        c->hole[c->holes++] = h;
        return;
    }
    struct hole *least = &c->hole[0];
    for (uint32_t i = 1; i < HOLES; i++)
        if (c->hole[i].size < least->size) least = &c->hole[i];
    if (least->size < h.size) *least = h;
}

static uint64_t rounded(size_t size)
{
    return ((uint64_t)size + UNIT - 1) / UNIT * UNIT;
}

/* The driver gave [at, at + size) to somebody: no hole has any of it. */
void fr_piece_given(uint64_t at, size_t size)
{
    struct chunk *c = covering(at);
    uint64_t end = at + rounded(size);
    if (!c) return;
    c->live++;
    c->cuts++;
    for (uint32_t i = c->holes; i-- > 0;) {
        struct hole h = c->hole[i];
        if (h.at >= end || at >= h.at + h.size) continue;
        c->hole[i] = c->hole[--c->holes];
        if (h.at < at) put_hole(c, (struct hole){h.at, at - h.at, h.order, h.when, h.idle});
        if (h.at + h.size > end) put_hole(c, (struct hole){end, h.at + h.size - end, h.order, h.when, h.idle});
    }
}

bool fr_piece_fits(const struct fr_pool *p, size_t size, uint64_t order, bool empty_too)
{
    uint64_t wanted = rounded(size);
    for (size_t i = 0; i < count; i++) {
        const struct chunk *c = chunks[i];
        if (c->pool != p || c->frees || (!c->live && !empty_too)) continue;
        for (uint32_t k = 0; k < c->holes; k++)
            if (c->hole[k].size >= wanted && (!c->hole[k].order || c->hole[k].order == order)) return true;
    }
    return false;
}

uint64_t fr_pieces_now(void) { return tick; }

/* What was freed in this stream (0: in any) until then is nobody's now: its work is done. */
void fr_pieces_ordered(uint64_t order, uint64_t until)
{
    for (size_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < chunks[i]->holes; k++) {
            struct hole *h = &chunks[i]->hole[k];
            if (!h->order || (order && h->order != order) || h->when > until) continue;
            h->order = 0;
            h->idle = tick + 1;
        }
    tick++;
}

static bool touches(const struct hole *n, uint64_t at, uint64_t size)
{
    return n->at + n->size == at || at + size == n->at;
}

static bool has_neighbour(const struct chunk *c, uint64_t at, uint64_t size)
{
    for (uint32_t i = 0; i < c->holes; i++)
        if (touches(&c->hole[i], at, size)) return true;
    return false;
}

/* Did the driver join the two at a free that began then? What became idle later it did not see as idle. */
static bool joined(const struct hole *a, const struct hole *b, uint64_t began)
{
    if (a->order != b->order || a->order == MIXED || !touches(a, b->at, b->size)) return false;
    return a->order || (a->idle <= began && b->idle <= began);
}

static bool join_any(struct chunk *c, uint64_t began)
{
    for (uint32_t i = 0; i < c->holes; i++)
        for (uint32_t k = i + 1; k < c->holes; k++) {
            struct hole *a = &c->hole[i], *b = &c->hole[k];
            if (!joined(a, b, began)) continue;
            *a = (struct hole){a->at < b->at ? a->at : b->at, a->size + b->size, a->order, a->when > b->when ? a->when : b->when,
                               a->idle > b->idle ? a->idle : b->idle};
            *b = c->hole[--c->holes];
            return true;
        }
    return false;
}

/* What lies free beside [at, at + size), and beside that, may be one piece with it now. */
static void spread(struct chunk *c, uint64_t at, uint64_t size, uint64_t order)
{
    for (bool more = true; more;) {
        more = false;
        for (uint32_t i = 0; i < c->holes; i++) {
            struct hole *h = &c->hole[i];
            if (!touches(h, at, size)) continue;
            h->order = !h->order || h->order == order ? order : MIXED;
            h->when = tick;
            if (h->at < at) at = h->at, size += h->size;
            else size += h->size;
            more = true;
        }
    }
}

/* The driver joins free neighbours of a chunk when a piece of it is freed: those of one stream, and those that nothing
 * uses any more. */
static void add_hole(struct chunk *c, struct hole h, uint64_t began)
{
    put_hole(c, h);
    while (join_any(c, began)) {}
}

/* ---- a free: the piece ceases to hold its chunk before the driver is told, and is a hole afterwards ---- */

/* The chunk of the piece, with the lock; waits while an allocation counts on a hole of the pool. */
static struct chunk *chunk_to_free_in(uint64_t at)
{
    for (int turn = 0;; turn++) {
        fr_pools_enter();
        struct chunk *c = covering(at);
        if (!c || !c->pool->claim || turn == TURNS) return c;
        fr_unlock(&fr_pools_lock);
        if (turn < 100) sched_yield();
        else fr_sleep_us(50);
    }
}

bool fr_piece_free_begin(struct fr_piece *f, CUdeviceptr at)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    if (!atomic_load_explicit(&fr_pools_any, memory_order_relaxed)) return false;
    fr_pools_enter();
    bool known = covering(at) != NULL;
    fr_unlock(&fr_pools_lock);
    if (!known || REAL(cuMemGetAddressRange_v2)(&base, &size, at) || base != at) return false;
    struct chunk *c = chunk_to_free_in(at);
    bool taken = c && c->live;
    if (taken) {
        c->live--;
        c->frees++;
        *f = (struct fr_piece){at, rounded(size), c->serial, c->cuts, tick, c->pool->tight || has_neighbour(c, at, rounded(size))};
    }
    fr_unlock(&fr_pools_lock);
    return taken;
}

/* When something of the chunk was given away meanwhile, it may have been this piece. */
void fr_piece_free_end(struct fr_piece *f, CUresult r, uint64_t order)
{
    fr_pools_enter();
    struct chunk *c = covering(f->at);
    if (c && c->serial == f->serial) {
        c->frees--;
        tick++;
        if (!r && order) spread(c, f->at, f->size, order);
        if (r) c->live++;
        else if (c->cuts == f->cuts) add_hole(c, (struct hole){f->at, f->size, order, tick, 0}, f->began);
    }
    fr_unlock(&fr_pools_lock);
}
