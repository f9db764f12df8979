/* What keeps a physical allocation of the driver alive: references of its handles (cuMemCreate, an import,
 * cuMemRetainAllocationHandle), mappings, binds to a multicast object, tiles of a sparse array. The allocation stays charged
 * until the last of these holds is gone, and not a moment less.
 *
 * Calls that use a handle's number run one at a time. The driver reuses a number as soon as it has let go of it, and programs
 * use numbers that others have released: between the driver's call and the table's change the same number would stand for one
 * allocation in the driver and for another one, or none, in the table.
 *
 * Mappings end without that lock, because cuMemUnmap may wait for kernels; an address may be given to another thread at the
 * moment when the driver has let go of it. So what is about to end is marked with the call's ticket before the call. A call
 * under way holds the allocation too: if two calls drop the last two holds, the one that ends last gives back the bytes. */
#include "memory/holding.h"

#include "base/lock.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/records.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA (64 * 1024)

static struct fr_lock lock;
static struct fr_mutex numbers;
static uint32_t era, tickets;
static struct fr_memory *unused;
static struct fr_mapping *bonds;
static size_t count, room;

void fr_memory_lock(void)
{
    fr_lock(&lock);
    uint32_t now = atomic_load(&fr_era);
    if (era == now) return;
    unused = NULL; /* a forked child has none of its parent's memory */
    bonds = NULL;
    count = room = 0;
    era = now;
}

void fr_memory_unlock(void) { fr_unlock(&lock); }

static struct fr_memory *take_entry(void)
{
    if (!unused) {
        struct fr_memory *fresh = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fresh == MAP_FAILED) return NULL;
        for (size_t i = 0; i < ARENA / sizeof *fresh; i++) fresh[i].next = unused, unused = &fresh[i];
    }
    struct fr_memory *m = unused;
    unused = m->next;
    return m;
}

static void put_entry(struct fr_memory *m)
{
    m->next = unused;
    unused = m;
}

void fr_numbers_enter(void) { fr_mutex_lock(&numbers); }
void fr_numbers_leave(void) { fr_mutex_unlock(&numbers); }

/* ---- bonds ---- */

static int order(const struct fr_mapping *b, uint64_t owner, int device, uint64_t place)
{
    if (b->owner != owner) return b->owner < owner ? -1 : 1;
    if (b->device != device) return b->device < device ? -1 : 1;
    return b->place < place ? -1 : b->place > place;
}

/* Index of the first bond at or after this place. */
static size_t first(uint64_t owner, int device, uint64_t place)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (order(&bonds[middle], owner, device, place) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool grow(void)
{
    size_t more = room ? room * 2 : ARENA / sizeof *bonds;
    void *grown = room ? mremap(bonds, room * sizeof *bonds, more * sizeof *bonds, MREMAP_MAYMOVE)
                       : mmap(NULL, more * sizeof *bonds, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (grown == MAP_FAILED) return false;
    bonds = grown;
    room = more;
    return true;
}

static bool insert(const struct fr_mapping *bond)
{
    if (count == room && !grow()) return false;
    size_t at = first(bond->owner, bond->device, bond->place);
    memmove(&bonds[at + 1], &bonds[at], (count - at) * sizeof *bonds);
    bonds[at] = *bond;
    count++;
    bond->memory->holds++;
    return true;
}

bool fr_mapping_add(struct fr_mapping bond)
{
    fr_memory_lock();
    bool ok = insert(&bond);
    fr_memory_unlock();
    return ok;
}

static void remove_bond(size_t at)
{
    memmove(&bonds[at], &bonds[at + 1], (count - at - 1) * sizeof *bonds);
    count--;
}

/* ---- giving back ---- */

void fr_release_begin(struct fr_release *g)
{
    g->dead = NULL;
    g->count = 0;
    g->ticket = 0;
}

static int part_of(struct fr_release *g, int card)
{
    for (int i = 0; i < g->count; i++)
        if (g->part[i].card == card) return i;
    if (g->count == FR_RELEASE_CARDS) return 0;
    g->part[g->count].card = card;
    g->part[g->count].bytes = 0;
    fr_free_begin(&g->part[g->count].op, card);
    return g->count++;
}

/* Announces what the release may give back, including what a multicast object holds. Calls under way end one hold each. */
static void announce(struct fr_release *g, const struct fr_memory *m)
{
    uint64_t owner = (uint64_t)(uintptr_t)m;
    int part = part_of(g, m->card);
    if (m->holds <= m->calls && m->object == FR_NO_OBJECT) fr_free_most(&g->part[part].op, m->bytes);
    for (size_t i = first(owner, -1, 0); i < count && bonds[i].owner == owner; i++) part_of(g, bonds[i].memory->card);
}

static void bury(struct fr_release *g, struct fr_memory *m)
{
    if (m->holds || m->calls) return;
    m->next = g->dead;
    g->dead = m;
    uint64_t owner = (uint64_t)(uintptr_t)m;
    for (size_t i; i = first(owner, -1, 0), i < count && bonds[i].owner == owner;) {
        struct fr_memory *held = bonds[i].memory;
        remove_bond(i);
        held->holds--;
        bury(g, held);
    }
}

void fr_release_end(struct fr_release *g)
{
    while (g->dead) {
        struct fr_memory *m = g->dead;
        g->dead = m->next;
        int part = part_of(g, m->card);
        g->part[part].bytes += m->object == FR_NO_OBJECT ? m->bytes : fr_object_leave(m->object);
        fr_memory_lock();
        put_entry(m);
        fr_memory_unlock();
    }
    for (int i = 0; i < g->count; i++) fr_free_end(&g->part[i].op, g->part[i].bytes);
}

/* ---- allocations ---- */

struct fr_memory *fr_memory_new(int card, uint64_t bytes, int object)
{
    fr_memory_lock();
    struct fr_memory *m = take_entry();
    if (m) *m = (struct fr_memory){.card = card, .bytes = bytes, .object = object, .calls = 1};
    fr_memory_unlock();
    return m;
}

static struct fr_memory *by_number(CUmemGenericAllocationHandle number, struct fr_record *r)
{
    return fr_record_find(FR_HANDLE, number, r) ? (struct fr_memory *)(uintptr_t)r->a : NULL;
}

struct fr_memory *fr_memory_pin(CUmemGenericAllocationHandle number)
{
    struct fr_record r;
    fr_memory_lock();
    struct fr_memory *m = by_number(number, &r);
    if (m) m->calls++;
    fr_memory_unlock();
    return m;
}

struct fr_memory *fr_memory_pin_at(CUdeviceptr address)
{
    struct fr_memory *m = NULL;
    bool ending = true;
    fr_memory_lock();
    for (size_t i = first(0, 0, address + 1); i-- > 0 && ending;) {
        if (bonds[i].owner || address - bonds[i].place >= bonds[i].size) break;
        ending = bonds[i].ticket; /* the driver may still have it; a bond that has taken its place may stand beside it */
        if (!m || !ending) m = bonds[i].memory;
    }
    if (m) m->calls++;
    fr_memory_unlock();
    return m;
}

void fr_memory_unpin(struct fr_memory *m)
{
    struct fr_release g;
    if (!m) return;
    fr_release_begin(&g);
    fr_memory_lock();
    m->calls--;
    bury(&g, m);
    fr_memory_unlock();
    fr_release_end(&g);
}

/* ---- handles ---- */

bool fr_handle_add(CUmemGenericAllocationHandle number, struct fr_memory **m)
{
    struct fr_record r;
    fr_memory_lock();
    struct fr_memory *known = by_number(number, &r);
    if (!known) r = (struct fr_record){.class = FR_HANDLE, .card = (*m)->card, .object = FR_NO_OBJECT, .key = number, .a = (uint64_t)(uintptr_t)*m};
    r.b++;
    bool ok = fr_record_put(r);
    if (!known) (*m)->number = number;
    if (ok && known && known != *m) {
        known->calls++;
        known->holds++;
    } else if (ok) {
        (*m)->holds++;
    }
    fr_memory_unlock();
    if (ok && known && known != *m) {
        fr_memory_unpin(*m);
        *m = known;
    }
    return ok;
}

struct fr_memory *fr_handle_remove(struct fr_release *g, CUmemGenericAllocationHandle number)
{
    struct fr_record r;
    fr_memory_lock();
    struct fr_memory *m = by_number(number, &r);
    if (m) {
        r.b--;
        if (r.b) fr_record_put(r);
        else fr_record_take(FR_HANDLE, number, &r);
        m->calls++;
        announce(g, m);
    }
    fr_memory_unlock();
    return m;
}

void fr_handle_removed(struct fr_release *g, CUmemGenericAllocationHandle number, struct fr_memory *m, bool done)
{
    struct fr_memory *same = m;
    if (!m) return;
    fr_memory_lock();
    m->holds--;
    fr_memory_unlock();
    if (!done) fr_handle_add(number, &same); /* the driver refused: everything is as it was */
    fr_memory_lock();
    same->calls--;
    bury(g, same);
    fr_memory_unlock();
}

/* ---- the end of bonds ---- */

static bool in_range(size_t i, uint64_t owner, int device, uint64_t place, uint64_t size)
{
    return i < count && bonds[i].owner == owner && bonds[i].device == device && bonds[i].place - place <= size;
}

static void take_ticket(struct fr_release *g)
{
    while (!g->ticket) g->ticket = ++tickets;
}

static void mark(struct fr_release *g, struct fr_mapping *b)
{
    b->ticket = g->ticket;
    b->memory->calls++;
    announce(g, b->memory);
}

void fr_mappings_remove(struct fr_release *g, uint64_t owner, int device, uint64_t place, uint64_t size)
{
    fr_memory_lock();
    take_ticket(g);
    for (size_t i = first(owner, device, place); in_range(i, owner, device, place, size); i++)
        if (!bonds[i].ticket && bonds[i].size <= size - (bonds[i].place - place)) mark(g, &bonds[i]);
    fr_memory_unlock();
}

bool fr_mapping_next(uint64_t place, uint64_t size, uint64_t from, struct fr_mapping *out)
{
    bool found = false;
    fr_memory_lock();
    for (size_t i = first(0, 0, from); in_range(i, 0, 0, place, size) && !found; i++) {
        found = !bonds[i].ticket && bonds[i].size <= size - (bonds[i].place - place);
        *out = bonds[i];
    }
    if (found) out->memory->calls++;
    fr_memory_unlock();
    return found;
}

void fr_mapping_drop(struct fr_release *g, const struct fr_mapping *bond)
{
    fr_memory_lock();
    for (size_t i = first(0, 0, bond->place); i < count && !bonds[i].owner && bonds[i].place == bond->place; i++) {
        if (bonds[i].ticket || bonds[i].size != bond->size || bonds[i].memory != bond->memory) continue;
        announce(g, bond->memory);
        remove_bond(i);
        bond->memory->holds--;
        bury(g, bond->memory);
        break;
    }
    fr_memory_unlock();
}

void fr_mappings_keep_one(struct fr_release *g, uint64_t place, CUmemGenericAllocationHandle number)
{
    bool known = false;
    fr_memory_lock();
    size_t from = first(0, 0, place);
    for (size_t i = from; i < count && !bonds[i].owner && bonds[i].place == place; i++) known |= bonds[i].memory->number == number;
    for (size_t i = from; known && i < count && !bonds[i].owner && bonds[i].place == place;) {
        struct fr_memory *m = bonds[i].memory;
        if (bonds[i].ticket || m->number == number) {
            i++;
            continue;
        }
        announce(g, m);
        remove_bond(i);
        m->holds--;
        bury(g, m); /* the bonds that it owns come after these */
    }
    fr_memory_unlock();
}

void fr_mappings_removed(struct fr_release *g, uint64_t owner, int device, uint64_t place, uint64_t size, bool done)
{
    fr_memory_lock();
    size_t i = first(owner, device, place), kept = i;
    for (; g->ticket && in_range(i, owner, device, place, size); i++) {
        struct fr_mapping b = bonds[i];
        bool ours = b.ticket == g->ticket;
        if (ours) {
            b.ticket = 0;
            b.memory->calls--;
            b.memory->holds -= done;
        }
        if (!ours || !done) bonds[kept++] = b;
        if (ours) bury(g, b.memory); /* this removes only bonds after all of these, if any: memory mapped to an array, or bound, owns none */
    }
    if (count > i) memmove(&bonds[kept], &bonds[i], (count - i) * sizeof *bonds);
    count -= i - kept;
    fr_memory_unlock();
}

/* ---- tiles ---- */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Never falls when a coordinate grows, so the tiles that lie in a box stand between its first and its last corner. */
static uint64_t place_of(const struct fr_box *box, const uint64_t at[3])
{
    uint64_t place = least(at[2], 0x3fff) << 11 | least(box->layer, 0x7ff);
    place = place << 5 | least(box->level, 0x1f);
    return (place << 17 | least(at[1], 0x1ffff)) << 17 | least(at[0], 0x1ffff);
}

static uint64_t last_of(uint64_t from, uint64_t size) { return size ? from + least(size - 1, UINT64_MAX - from) : from; }

static void range_of(const struct fr_box *box, uint64_t *place, uint64_t *size)
{
    uint64_t last[3];
    for (int i = 0; i < 3; i++) last[i] = last_of(box->from[i], box->size[i]);
    *place = place_of(box, box->from);
    *size = place_of(box, last) - *place;
}

/* A size of 0, which only a driver could explain, is covered by nothing but itself. A range that goes beyond the last number
 * covers nothing else. */
static bool within(uint64_t from, uint64_t size, uint64_t outer, uint64_t outer_size)
{
    if (from == outer && size == outer_size) return true;
    return size && outer_size <= UINT64_MAX - outer && from >= outer && from - outer <= outer_size && size <= outer_size - (from - outer);
}

bool fr_box_covers(const struct fr_box *outer, const struct fr_box *inner)
{
    if (outer->kind != inner->kind || outer->level != inner->level || outer->layer != inner->layer) return false;
    for (int i = 0; i < 3; i++)
        if (!within(inner->from[i], inner->size[i], outer->from[i], outer->size[i])) return false;
    return true;
}

bool fr_box_add(struct fr_release *undo, uint64_t array, const struct fr_box *box, struct fr_memory *m)
{
    struct fr_mapping bond = {.owner = array, .place = place_of(box, box->from), .memory = m, .box = *box};
    fr_memory_lock();
    take_ticket(undo);
    bond.ticket = undo->ticket;
    bool ok = insert(&bond);
    if (ok) m->calls++;
    fr_memory_unlock();
    return ok;
}

void fr_box_remove(struct fr_release *g, uint64_t array, const struct fr_box *box)
{
    uint64_t place, size;
    range_of(box, &place, &size);
    fr_memory_lock();
    take_ticket(g);
    for (size_t i = first(array, 0, place); in_range(i, array, 0, place, size); i++)
        if (!bonds[i].ticket && fr_box_covers(box, &bonds[i].box)) mark(g, &bonds[i]);
    fr_memory_unlock();
}

void fr_box_removed(struct fr_release *g, uint64_t array, const struct fr_box *box, bool done)
{
    uint64_t place, size;
    range_of(box, &place, &size);
    fr_mappings_removed(g, array, 0, place, size, done);
}
