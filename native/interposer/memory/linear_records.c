/* The charges of linear memory, from its records: what goes back when it is freed, and what an IPC export of it shares. */
#include "memory/linear_records.h"

#include "base/compiler.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/records.h"
#include "memory/granules.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

/* The record of a piece has no bytes of its own; its `bytes` field has the numbers of its granules. */
static struct fr_piece piece_of(const struct fr_record *r, CUdeviceptr p)
{
    return (struct fr_piece){r->card, p, r->a, {(uint32_t)r->bytes, (uint32_t)(r->bytes >> 32)}};
}

uint64_t fr_linear_granules(const struct fr_piece *piece) { return piece->in[0] | (uint64_t)piece->in[1] << 32; }

bool fr_linear_is_piece(const struct fr_record *r)
{
    return (r->class == FR_POINTER && r->b == FR_LINEAR_PIECE) || (r->class == FR_LATE && (r->b & 3) == FR_LINEAR_PIECE);
}

/* A thread that ends the context either takes the record, or waits for this free. */
static void enter_context(const struct fr_record *r, void *user) { fr_user_begin(user, r->card); }

bool fr_linear_free_begin(struct fr_linear *f, CUdeviceptr p)
{
    f->known = p && fr_record_take_after(FR_POINTER, p, &f->record, enter_context, &f->user);
    if (!f->known) return false;
    struct fr_piece piece = piece_of(&f->record, p);
    uint64_t bytes = f->record.object == FR_NO_OBJECT ? f->record.bytes : 0;
    if (fr_linear_is_piece(&f->record)) bytes = fr_granules_leaving(&piece) * FR_GRANULE;
    fr_free_begin(&f->op, f->record.card);
    fr_free_most(&f->op, bytes);
    return true;
}

bool fr_linear_imported(CUdeviceptr p, int piece, int pool)
{
    return fr_record_put((struct fr_record){.class = FR_POINTER, .card = fr_object_card(piece), .object = piece, .key = p, .bytes = (uint64_t)pool, .b = FR_LINEAR_IMPORTED});
}

void fr_linear_leave_pool(const struct fr_record *r)
{
    bool imported = (r->class == FR_POINTER || r->class == FR_LATE) && r->b & FR_LINEAR_IMPORTED;
    if (imported) fr_object_leave((int)r->bytes);
}

/* Returns what goes back to the ledger when the driver has taken the memory back. */
static uint64_t refund(const struct fr_record *r, CUdeviceptr p, bool was_leaving)
{
    uint64_t bytes = r->bytes;
    int object = r->object;
    if (fr_linear_is_piece(r)) {
        uint32_t emptied;
        struct fr_piece piece = piece_of(r, p);
        fr_granules_remove(&piece, was_leaving, &emptied, &object);
        bytes = emptied * FR_GRANULE;
        if (object != FR_NO_OBJECT) return bytes + fr_object_leave(object);
    }
    fr_linear_leave_pool(r);
    return object == FR_NO_OBJECT ? bytes : fr_object_leave(object);
}

/* Stores a record. If the address already has one, threads that free and end contexts at the same time have met, and the memory
 * of one of the two records is gone. It cannot be determined which one. If both records are the same, one of the charges goes
 * back; otherwise both stay, which is never too little. */
bool fr_linear_put(const struct fr_record *r)
{
    struct fr_record old;
    struct fr_op op;
    if (!fr_record_replace(r, &old)) return false;
    if (likely(!old.class)) return true;
    bool same = old.card == r->card && old.bytes == r->bytes && old.a == r->a && old.b == r->b && old.object == FR_NO_OBJECT && r->object == FR_NO_OBJECT;
    if (!same) return true;
    fr_free_begin(&op, old.card);
    fr_free_end(&op, refund(&old, old.key, false));
    return true;
}

void fr_linear_free_end(struct fr_linear *f, CUresult result)
{
    if (!f->known) return;
    struct fr_piece piece = piece_of(&f->record, f->record.key);
    if (result && fr_linear_is_piece(&f->record)) fr_granules_stay(&piece);
    if (result) fr_linear_put(&f->record);
    fr_free_end(&f->op, result ? 0 : refund(&f->record, f->record.key, true));
    fr_user_end(&f->user);
}

/* Keeps a late free: its record waits under a number; b: address and kind. */
bool fr_linear_keep(const struct fr_linear *f, uint64_t number, CUcontext context)
{
    struct fr_record r = f->record;
    r.class = FR_LATE;
    if (!r.context) r.context = context; /* of a pool: only its stream ends with a context */
    r.b = r.key | r.b;
    r.key = number;
    return fr_record_put(r);
}

void fr_linear_release(uint64_t number)
{
    struct fr_record r;
    struct fr_op op;
    if (!fr_record_take(FR_LATE, number, &r)) return; /* it went with its context */
    fr_free_begin(&op, r.card);
    fr_free_end(&op, refund(&r, r.b & ~3ull, true));
}

static bool record_of(CUdeviceptr p, struct fr_record *r) { return fr_record_find(FR_POINTER, p, r) || fr_record_covering(FR_POINTER, p, r); }

bool fr_linear_shared(CUdeviceptr p, int *card, uint64_t *bytes, int *object, struct fr_record *r)
{
    if (!record_of(p, r)) return false;
    *card = r->card;
    *bytes = r->b == FR_LINEAR_PIECE ? FR_GRANULE : r->bytes;
    *object = r->object;
    struct fr_piece piece = piece_of(r, r->key);
    return r->b != FR_LINEAR_PIECE || fr_granule_object(&piece, object);
}

bool fr_linear_covers(CUdeviceptr p, size_t size)
{
    struct fr_record r;
    if (!record_of(p, &r)) return false;
    uint64_t bytes = r.b == FR_LINEAR_WHOLE ? r.bytes : r.b == FR_LINEAR_PIECE ? r.a : 0;
    return p - r.key < bytes && size <= bytes - (p - r.key);
}

bool fr_linear_set_object(const struct fr_record *seen, int object)
{
    struct fr_piece piece = piece_of(seen, seen->key);
    return seen->b == FR_LINEAR_PIECE ? fr_granule_set_object(&piece, object) : fr_record_set_object(seen, object);
}
