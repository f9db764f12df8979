/* What linear memory is charged with, from its record: what goes back when it is freed, and what an IPC export of it shares. */
#include "memory/linear_records.h"

#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/records.h"
#include "memory/granules.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

bool fr_linear_free_begin(struct fr_linear *f, CUdeviceptr p)
{
    struct fr_record there;
    if (!(f->known = p && fr_record_find(FR_POINTER, p, &there))) return false;
    fr_user_begin(&f->user, there.card);
    f->known = fr_record_take(FR_POINTER, p, &f->record);
    if (f->known) fr_free_begin(&f->op, f->record.card);
    else fr_user_end(&f->user);
    return f->known;
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

/* What goes back to the ledger when the driver has taken the memory back. */
static uint64_t refund(const struct fr_record *r, CUdeviceptr p, uint64_t kind)
{
    uint64_t bytes = r->bytes;
    int object = r->object;
    if (kind == FR_LINEAR_PIECE) {
        uint32_t emptied;
        fr_granules_remove(r->card, p, r->a, &emptied, &object);
        bytes = emptied * FR_GRANULE;
    }
    fr_linear_leave_pool(r);
    return object == FR_NO_OBJECT ? bytes : fr_object_leave(object);
}

/* Two records for one address: threads that free and end contexts at the same time have met, and the memory of one of the two is gone.
 * Which one cannot be told. Where both say the same, one of the charges goes back; else both stay, which is never too little. */
bool fr_linear_put(struct fr_record r)
{
    struct fr_record old;
    struct fr_op op;
    if (!fr_record_replace(r, &old)) return false;
    bool same = old.class && old.card == r.card && old.bytes == r.bytes && old.a == r.a && old.b == r.b && old.object == FR_NO_OBJECT && r.object == FR_NO_OBJECT;
    if (!same) return true;
    fr_free_begin(&op, old.card);
    fr_free_end(&op, refund(&old, old.key, old.b));
    return true;
}

void fr_linear_free_end(struct fr_linear *f, CUresult result)
{
    if (!f->known) return;
    if (result) fr_linear_put(f->record);
    fr_free_end(&f->op, result ? 0 : refund(&f->record, f->record.key, f->record.b));
    fr_user_end(&f->user);
}

/* A late free: the record waits under a number; b: address and kind. */
bool fr_linear_keep(const struct fr_linear *f, uint64_t number, CUcontext context)
{
    struct fr_record r = f->record;
    r.class = FR_LATE;
    if (!r.context) r.context = context; /* of a pool: only the stream ends with a context */
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
    fr_free_end(&op, refund(&r, r.b & ~3ull, r.b & 3));
}

bool fr_linear_shared(CUdeviceptr p, int *card, uint64_t *bytes, int *object)
{
    struct fr_record r;
    if (!fr_record_find(FR_POINTER, p, &r) && !fr_record_covering(FR_POINTER, p, &r)) return false;
    *card = r.card;
    *bytes = r.b == FR_LINEAR_PIECE ? FR_GRANULE : r.bytes;
    *object = r.object;
    return r.b != FR_LINEAR_PIECE || fr_granule_object(*card, p, object);
}

bool fr_linear_set_object(CUdeviceptr p, int object)
{
    struct fr_record r;
    if (!fr_record_find(FR_POINTER, p, &r) && !fr_record_covering(FR_POINTER, p, &r)) return false;
    if (r.b == FR_LINEAR_PIECE) return fr_granule_set_object(r.card, p, object);
    r.object = object;
    return fr_record_put(r);
}
