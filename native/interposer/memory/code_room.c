/* The most memory that the code in a context takes.
 *
 * The driver keeps code in blocks of 2 MiB and never says which piece lies in which block. A piece is a function that was
 * loaded alone, or an image that was loaded as a whole. The library relies on one rule: the driver takes another block for a
 * piece only if the piece does not fit behind the last one in the block that the driver took last and still has. Whatever else
 * the driver does, this limits the number of blocks:
 *
 *      A block that was left behind for a piece of b bytes holds, or held, more than 2 MiB - b bytes. Pieces of at most
 *      256 KiB leave behind blocks of at least 1.75 MiB; the bytes of a larger piece are counted once more for the block
 *      that it left behind. So with `weight`, the bytes of all pieces, large ones counted twice, there are at most
 *      weight / 1.75 MiB + 1 blocks.
 *
 * And no block is empty, so there are never more blocks than pieces. Unloaded code may leave holes that are not used again: its
 * weight stays until the number of pieces is the lower bound; then the weight is what that many blocks can have.
 *
 * Each context has a record of this. Calls under way are counted separately: they have not yet loaded what they were promised,
 * and the bytes that they reserved are theirs until they end. If a call that ends leaves a block charged only because another
 * call may still need it, that block is announced as slack, as a reservation is: a process that is short of memory waits for
 * the other call. */
#include "memory/code_room.h"

#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/records.h"
#include "memory/devices.h"
#include "memory/granules.h"
#include "memory/image.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNIT 4096ull         /* the unit in which pieces are counted */
#define PIECE_UNIT 65536ull  /* the first piece of an image is rounded up to this: the smallest page that a driver is expected to give it */
#define LARGE (256ull << 10)
#define FULL (FR_GRANULE - LARGE)

/* ---- what pieces count ---- */

static uint64_t up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }
static uint64_t lesser(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static struct fr_code piece(uint64_t bytes)
{
    uint64_t rounded = up(bytes, PIECE_UNIT);
    if (!bytes) return (struct fr_code){0};
    if (rounded >= FR_GRANULE) return (struct fr_code){.own = fr_round_to_granules(bytes)};
    return (struct fr_code){.weight = rounded > LARGE ? 2 * rounded : rounded, .pieces = 1};
}

/* Functions after the first. Together they are no more than what the first one left of the image; each is rounded up. */
static struct fr_code others(const struct fr_image *i, uint64_t count)
{
    uint64_t left = i->code > i->first ? i->code - i->first : 0;
    uint64_t bytes = i->each && count > left / i->each ? left : count * i->each;
    if (i->each >= FR_GRANULE) return (struct fr_code){.own = bytes + count * FR_GRANULE};
    bytes += count * UNIT;
    return (struct fr_code){.weight = i->each > LARGE ? 2 * bytes : bytes, .pieces = count};
}

struct fr_code fr_code_more(struct fr_code than, struct fr_code now)
{
    return (struct fr_code){now.own > than.own ? now.own - than.own : 0, now.weight > than.weight ? now.weight - than.weight : 0,
                            now.pieces > than.pieces ? now.pieces - than.pieces : 0};
}

struct fr_code fr_code_most(struct fr_code a, struct fr_code b)
{
    return (struct fr_code){larger(a.own, b.own), larger(a.weight, b.weight), larger(a.pieces, b.pieces)};
}

struct fr_code fr_code_of(const struct fr_image *i, struct fr_count loaded)
{
    struct fr_code sum = {0};
    if (loaded.functions) {
        struct fr_code first = piece(lesser(i->first, i->code)), rest = others(i, loaded.functions - 1);
        sum = (struct fr_code){first.own + rest.own, first.weight + rest.weight, first.pieces + rest.pieces};
    }
    return loaded.whole ? fr_code_most(sum, piece(i->code)) : sum;
}

/* ---- the blocks of a context: a record under its handle. The counts are packed into a and b ---- */

struct room {
    struct fr_record record; /* bytes: in the ledger, beyond what calls under way have reserved */
    uint64_t weight, pieces; /* of loaded code */
    uint64_t coming, coming_pieces, granted; /* of calls under way; granted: bytes */
};

enum { COMING_BITS = 28, PIECES_BITS = 18 };

static uint64_t key_of(CUcontext context) { return (uint64_t)(uintptr_t)context << 2 | 2; }
static bool is_room(const struct fr_record *r) { return r->class == FR_MODULE && (r->key & 3) == 2; }
static uint64_t fit(uint64_t n, unsigned bits) { return lesser(n, (1ull << bits) - 1); }

static void unpack(struct room *r)
{
    r->weight = (r->record.a >> 32) * UNIT;
    r->pieces = r->record.a & UINT32_MAX;
    r->coming = (r->record.b & ((1ull << COMING_BITS) - 1)) * UNIT;
    r->coming_pieces = r->record.b >> COMING_BITS & ((1ull << PIECES_BITS) - 1);
    r->granted = (r->record.b >> (COMING_BITS + PIECES_BITS)) * FR_GRANULE;
}

static bool has_calls(const struct fr_record *r) { return r->b != 0; }

static bool find(CUcontext context, struct room *r)
{
    bool found = fr_record_find(FR_MODULE, key_of(context), &r->record) && (r->record.context == context || has_calls(&r->record));
    if (!found) r->record = (struct fr_record){.class = FR_MODULE, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = key_of(context), .context = context};
    unpack(r);
    return found;
}

static bool put(struct room *r)
{
    r->record.a = fit(up(r->weight, UNIT) / UNIT, 32) << 32 | fit(r->pieces, 32);
    r->record.b = r->granted / FR_GRANULE << (COMING_BITS + PIECES_BITS) | fit(r->coming_pieces, PIECES_BITS) << COMING_BITS |
                  fit(up(r->coming, UNIT) / UNIT, COMING_BITS);
    return fr_record_put(r->record);
}

static uint64_t blocks(const struct room *r)
{
    return lesser(r->pieces + r->coming_pieces, (r->weight + r->coming) / FULL + 1) * FR_GRANULE;
}

/* What is charged but needed only by calls under way. */
static uint64_t spare(const struct room *r)
{
    uint64_t loaded = lesser(r->pieces, r->weight / FULL + 1) * FR_GRANULE;
    return r->record.bytes > loaded ? r->record.bytes - loaded : 0;
}

uint64_t fr_room_missing(CUcontext context, struct fr_code more)
{
    struct room r;
    find(context, &r);
    r.coming += more.weight;
    r.coming_pieces += more.pieces;
    uint64_t there = r.record.bytes + r.granted, needed = blocks(&r);
    return needed > there ? needed - there : 0;
}

bool fr_room_promise(const struct fr_place *at, struct fr_code more, uint64_t granted)
{
    struct room r;
    find(at->context, &r);
    r.record.card = at->card;
    r.coming += more.weight;
    r.coming_pieces += more.pieces;
    r.granted += granted;
    return put(&r);
}

static uint64_t less(uint64_t from, uint64_t what) { return from > what ? from - what : 0; }

static struct fr_room_change settle(struct room *r, uint64_t spare_before)
{
    uint64_t before = r->record.bytes;
    r->record.bytes = less(blocks(r), r->granted);
    put(r);
    return (struct fr_room_change){(int64_t)(r->record.bytes - before), (int64_t)(spare(r) - spare_before)};
}

struct fr_room_change fr_room_keep(CUcontext context, struct fr_code promised, struct fr_code came, uint64_t granted)
{
    struct room r;
    if (!find(context, &r)) return (struct fr_room_change){0}; /* gone with the context */
    uint64_t spare_before = spare(&r);
    r.coming = less(r.coming, promised.weight);
    r.coming_pieces = less(r.coming_pieces, promised.pieces);
    r.granted = less(r.granted, granted);
    r.weight += came.weight;
    r.pieces += came.pieces;
    struct fr_room_change change = settle(&r, spare_before);
    bool moves = r.record.context != context && !has_calls(&r.record), empty = !r.record.bytes && !r.pieces && !has_calls(&r.record);
    if (!moves && !empty) return change;
    fr_record_take(FR_MODULE, r.record.key, &r.record); /* empty: perhaps its context ended before the call, and nothing else would take it */
    if (moves) fr_room_moves(&r.record, r.record.context);
    return change;
}

static void take_out(struct room *r, uint64_t pieces)
{
    r->pieces = less(r->pieces, pieces);
    r->weight = lesser(r->weight, r->pieces * FULL);
}

struct fr_room_change fr_room_leave(CUcontext context, uint64_t pieces)
{
    struct room r;
    if (!find(context, &r)) return (struct fr_room_change){0};
    uint64_t spare_before = spare(&r);
    take_out(&r, pieces);
    return settle(&r, spare_before);
}

uint64_t fr_room_less(CUcontext context, uint64_t pieces)
{
    struct room r;
    if (!find(context, &r)) return 0;
    take_out(&r, pieces);
    return less(r.record.bytes, less(blocks(&r), r.granted));
}

uint64_t fr_room_spare(const struct fr_record *record)
{
    struct room r = {.record = *record};
    if (!is_room(record)) return 0;
    unpack(&r);
    return spare(&r);
}

/* Moves a record into the blocks of another context, or to another name. */
bool fr_room_moves(const struct fr_record *record, CUcontext to)
{
    struct room old = {.record = *record}, new;
    if (!is_room(record)) return false;
    unpack(&old);
    find(to, &new);
    uint64_t spare_before = spare(&old) + spare(&new);
    new.record.card = old.record.card;
    new.record.bytes += old.record.bytes;
    new.weight += old.weight;
    new.pieces += old.pieces;
    new.coming += old.coming;
    new.coming_pieces += old.coming_pieces;
    new.granted += old.granted;
    put(&new);
    fr_slack_add(new.record.card, (int64_t)(spare(&new) - spare_before));
    return true;
}

bool fr_room_follows(const struct fr_record *record, CUcontext to)
{
    if (!is_room(record) || !has_calls(record)) return fr_room_moves(record, to);
    struct fr_record stays = *record;
    stays.context = to;
    fr_record_put(stays);
    return true;
}
