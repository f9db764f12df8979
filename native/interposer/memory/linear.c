/* Linear memory: reserve, call, keep.
 *
 * From 1 MiB on an allocation takes whole granules. Smaller ones share granules (granules.c): one is reserved for each, and
 * given back when the piece landed in a granule that is charged already; when the quota has no granule left, a piece goes
 * without reservation if a hole is sure to be left for it. What the driver takes beyond what was expected is charged if the
 * quota can bear it; else it is freed at once and the answer is out of memory. */
#include "linear.h"
#include "api_memory.h"
#include "granules.h"

enum { WHOLE = 0, PIECE = 1 }; /* b of a record */

bool fr_here(struct fr_place *at)
{
    at->context = NULL;
    at->card = fr_card_here(&at->device);
    return at->device >= 0 && !REAL(cuCtxGetCurrent)(&at->context);
}

/* A card that the limits do not name has no quota. */
CUresult fr_begin_here(struct fr_op *op, const struct fr_place *at, uint64_t worst)
{
    if (likely(at->card != FR_NO_CARD)) return fr_begin(op, at->card, worst);
    *op = (struct fr_op){.card = FR_NO_CARD};
    if (fr_process() == FR_OFF) return CUDA_SUCCESS;
    if (fr_process() != FR_CLOSED) fr_say(FR_SAY_CARD, "device %d is not among this container's cards: nothing can be allocated on it", at->device);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- large ---- */

static void undo(CUdeviceptr p) { REAL(cuMemFree_v2)(p); }

static bool remember(const struct fr_request *q, const struct fr_place *at, uint64_t bytes, uint64_t kind)
{
    struct fr_record r = {.class = FR_POINTER, .card = at->card, .object = FR_NO_OBJECT, .key = q->address, .bytes = bytes,
                          .context = at->context, .a = q->size, .b = kind};
    return fr_record_put(r);
}

static CUresult whole(struct fr_request *q, const struct fr_place *at)
{
    struct fr_op op;
    CUresult r = fr_begin_here(&op, at, fr_granules(q->worst));
    if (r) return r;
    if ((r = q->call(q))) {
        fr_end(&op, 0);
        return r;
    }
    uint64_t took = fr_granules(q->size);
    bool kept = took <= op.reserved || at->card == FR_NO_CARD || fr_more(&op, took - op.reserved);
    if (kept && remember(q, at, took, WHOLE)) {
        fr_end(&op, took);
        return CUDA_SUCCESS;
    }
    undo(q->address);
    fr_end(&op, 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- small ---- */

static bool room_for_one(int card)
{
    struct fr_quota quota;
    fr_quota(card, &quota);
    return quota.memory >= FR_GRANULE && fr_used(card) <= quota.memory - FR_GRANULE;
}

/* A granule of its own, or a hole that is sure. */
static bool try_to_enter(struct fr_op *op, struct fr_small *s, const struct fr_place *at, uint64_t size)
{
    *s = (struct fr_small){.crowded = false};
    if (fr_begin(op, at->card, 0)) return false;
    bool own = room_for_one(at->card) && fr_more(op, FR_GRANULE);
    if (fr_small_enter(s, at->context, at->card, size, own)) return true;
    fr_end(op, 0);
    return false;
}

/* When there is neither, the ledger waits for what others give back; and then as long for those on their way, who may lie
 * in the only hole, but need not. */
static CUresult enter(struct fr_op *op, struct fr_small *s, const struct fr_place *at, uint64_t size)
{
    struct fr_patience patience = {0};
    if (try_to_enter(op, s, at, size)) return CUDA_SUCCESS;
    CUresult r = fr_begin(op, at->card, FR_GRANULE);
    if (!r) return fr_small_enter(s, at->context, at->card, size, 1), CUDA_SUCCESS;
    do {
        if (try_to_enter(op, s, at, size)) return CUDA_SUCCESS;
    } while (s->crowded && fr_wait(&patience));
    return r;
}

static bool leave(struct fr_op *op, struct fr_small *s, CUdeviceptr p, uint64_t size)
{
    struct fr_small_end end = fr_small_leave(s, p, size);
    while (end.missing && fr_more(op, end.missing * FR_GRANULE)) {
        s->own += end.missing;
        end = fr_small_leave(s, p, size);
    }
    bool good = end.booked && !end.missing;
    if (!good) {
        struct fr_record forgotten;
        fr_record_take(FR_POINTER, p, &forgotten); /* before the driver gives the address to somebody else */
        undo(p);
        fr_escape();
    }
    if (end.missing) end = fr_small_leave(s, 0, 0);
    fr_end(op, end.kept * FR_GRANULE);
    fr_free_end(&end.spare, end.back * FR_GRANULE);
    return good;
}

static CUresult piece(struct fr_request *q, const struct fr_place *at)
{
    struct fr_op op;
    struct fr_small s;
    CUresult r = enter(&op, &s, at, q->worst);
    if (r) return r;
    r = q->call(q);
    if (!r && !remember(q, at, 0, PIECE)) {
        undo(q->address);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r) {
        leave(&op, &s, 0, 0);
        return r;
    }
    return leave(&op, &s, q->address, q->size) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult fr_linear_request(struct fr_request *q)
{
    struct fr_place at;
    if (!fr_here(&at)) return q->call(q);
    bool small = !q->whole && q->worst < FR_SMALL && at.card != FR_NO_CARD;
    return small ? piece(q, &at) : whole(q, &at);
}

/* ---- and back ---- */

bool fr_linear_free_begin(struct fr_linear *f, CUdeviceptr p)
{
    f->known = p && fr_record_take(FR_POINTER, p, &f->record);
    if (!f->known) return false;
    if (f->record.b == PIECE) fr_small_freeing(p, f->record.a);
    fr_free_begin(&f->op, f->record.card);
    return true;
}

static void stays(struct fr_linear *f)
{
    uint32_t owed = 0;
    if (f->record.b == PIECE) fr_small_stays(f->record.key, f->record.a, &owed);
    if (owed) fr_charge(f->record.card, owed * FR_GRANULE);
    fr_record_put(f->record);
    fr_free_end(&f->op, 0);
}

void fr_linear_free_end(struct fr_linear *f, CUresult result)
{
    if (!f->known) return;
    if (result) {
        stays(f);
        return;
    }
    uint64_t bytes = f->record.bytes;
    int object = f->record.object;
    if (f->record.b == PIECE) {
        uint32_t back;
        fr_small_freed(f->record.context, f->record.key, f->record.a, &back, &object);
        bytes = back * FR_GRANULE;
    }
    fr_free_end(&f->op, object == FR_NO_OBJECT ? bytes : fr_object_leave(object));
}

/* ---- for IPC: what the driver shares ---- */

bool fr_linear_shared(CUdeviceptr p, int *card, uint64_t *bytes, int *object)
{
    struct fr_record r;
    if (!fr_record_find(FR_POINTER, p, &r) && !fr_record_covering(FR_POINTER, p, &r)) return false;
    *card = r.card;
    *bytes = r.b == PIECE ? FR_GRANULE : r.bytes;
    *object = r.object;
    return r.b != PIECE || fr_small_object(p, card, object);
}

bool fr_linear_set_object(CUdeviceptr p, int object)
{
    struct fr_record r;
    if (!fr_record_find(FR_POINTER, p, &r) && !fr_record_covering(FR_POINTER, p, &r)) return false;
    if (r.b == PIECE) return fr_small_set_object(p, object);
    r.object = object;
    return fr_record_put(r);
}
