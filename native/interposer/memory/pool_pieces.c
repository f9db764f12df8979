/* A pool gives back memory that its maker has freed, and the driver keeps the block in which a piece lay for as long as another
 * process has a pointer to that piece. So each exported piece is an object of the container, of no bytes, that its maker and
 * its importers hold.
 *
 *      exported --free--> orphan, if a process has imported it --the last importer lets go--> gone
 *
 * The block of an orphan leaves the pool at some later time, and nothing shows whose block the pool gives back. So each orphan
 * is charged for it, up to the largest block in which it can lie. For one orphan at a time, and blocks of one size, that is
 * exact. For several it is too much, but the charge may not be shared among them, as any of them may be let go of first. The
 * object pays, and the charge ends with its last holder, however that one ends. A program that frees a piece after its
 * importers did, as CUDA requires, has no orphans. */
#include "memory/pool_pieces.h"

#include "ledger/objects.h"
#include "ledger/records.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define ORPHAN (1ull << 63) /* keys of orphans: not addresses */

_Atomic uint32_t fr_pieces_any;

/* A record's key is the piece's address; a: the pool; b: the object's key; bytes: what it may still be charged. */
static struct fr_key key_of(const struct fr_record *r) { return (struct fr_key){FR_KEY_PIECE, r->b}; }

bool fr_piece_exported(CUdeviceptr p, CUmemoryPool pool, int card, uint64_t chunk, struct fr_key key)
{
    struct fr_record r;
    if (fr_record_find(FR_PIECE, p, &r)) return fr_object_also(r.object, key);
    r = (struct fr_record){.class = FR_PIECE, .card = card, .key = p, .bytes = chunk, .a = (uintptr_t)pool, .b = key.b};
    r.object = fr_object_share(card, 0, key);
    if (r.object == FR_NO_OBJECT) return false;
    if (!fr_record_put(r)) return fr_object_leave(r.object), false;
    atomic_store(&fr_pieces_any, 1);
    return true;
}

/* Forgets orphans whose importers have let go. */
static void tidy(void)
{
    struct fr_record r;
    for (uint64_t after = ORPHAN - 1; fr_record_next(FR_PIECE, after, &r); after = r.key)
        if (!fr_object_charge(r.object, key_of(&r), 0)) fr_record_take(FR_PIECE, r.key, &r);
}

void fr_piece_freed(CUdeviceptr p)
{
    static _Atomic uint64_t orphans = ORPHAN;
    struct fr_record r;
    if (!fr_record_take(FR_PIECE, p, &r)) return;
    r.key = atomic_fetch_add(&orphans, 1);
    fr_record_put(r);
    fr_object_leave(r.object); /* it has no bytes yet */
    tidy();
}

void fr_pieces_stay(CUmemoryPool pool, uint64_t bytes)
{
    struct fr_record r;
    if (!atomic_load_explicit(&fr_pieces_any, memory_order_relaxed)) return;
    for (uint64_t after = ORPHAN - 1; fr_record_next(FR_PIECE, after, &r); after = r.key) {
        uint64_t part = r.bytes < bytes ? r.bytes : bytes;
        if (r.a != (uintptr_t)pool || !fr_record_take(FR_PIECE, r.key, &r)) continue;
        if (!fr_object_charge(r.object, key_of(&r), part)) continue;
        r.bytes -= part;
        if (r.bytes) fr_record_put(r);
    }
}

void fr_pieces_forget(CUmemoryPool pool)
{
    struct fr_record r;
    if (!atomic_load_explicit(&fr_pieces_any, memory_order_relaxed)) return;
    for (uint64_t after = ORPHAN - 1; fr_record_next(FR_PIECE, after, &r); after = r.key)
        if (r.a == (uintptr_t)pool) fr_record_take(FR_PIECE, r.key, &r);
}
