/* Linear memory: reserve, call, keep.
 *
 * From 1 MiB on an allocation takes whole granules. Smaller ones share granules (granules.c): one granule is reserved for each
 * piece, and given back if the piece lands in a granule that is charged already. What the driver takes beyond that is charged
 * if the quota has room for it; otherwise the memory is freed at once and the call returns out of memory. */
#include "memory/linear.h"

#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "ledger/objects.h"
#include "ledger/process.h"
#include "ledger/records.h"
#include "memory/api_memory.h"
#include "memory/context_users.h"
#include "memory/devices.h"
#include "memory/granules.h"
#include "memory/kept_blocks.h"
#include "memory/late_free.h"
#include "memory/linear_records.h"
#include "memory/margin_pool.h"
#include "memory/place.h"
#include "memory/pool.h"
#include "memory/pool_shrink.h"
#include "memory/streams.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What pools of this process hold unused goes back before anything is refused. */
static CUresult begin(struct fr_op *op, const struct fr_place *at, uint64_t worst, struct fr_retry *patience)
{
    CUresult r = fr_op_begin_at_within(op, at, worst, patience);
    bool something = atomic_load(&fr_pools_any) || atomic_load(&fr_late_frees);
    if (likely(r != CUDA_ERROR_OUT_OF_MEMORY) || !something || at->card == FR_NO_CARD || atomic_load(&fr_capture_count)) return r;
    fr_kept_blocks_free();
    fr_late_frees_look();
    fr_pools_trim(at->card);
    return fr_op_begin_at_within(op, at, worst, patience);
}

/* ---- large ---- */

static void undo(CUdeviceptr p) { REAL(cuMemFree_v2)(p); }

static bool remember(const struct fr_request *q, const struct fr_place *at, uint64_t bytes, uint64_t kind)
{
    struct fr_record r = {.class = FR_POINTER, .card = at->card, .object = FR_NO_OBJECT, .key = q->address, .bytes = bytes,
                          .context = at->context, .a = q->size, .b = kind};
    return fr_linear_put(&r);
}

static CUresult whole_now(struct fr_request *q, const struct fr_place *at, struct fr_op *op)
{
    CUresult r = q->call(q);
    if (r) {
        fr_op_end(op, 0);
        return r;
    }
    uint64_t took = fr_round_to_granules(q->size);
    bool kept = took <= op->reserved || at->card == FR_NO_CARD || fr_op_more(op, took - op->reserved);
    if (kept && remember(q, at, took, FR_LINEAR_WHOLE)) {
        fr_op_end(op, took);
        return CUDA_SUCCESS;
    }
    undo(q->address);
    fr_op_end(op, 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult whole(struct fr_request *q, const struct fr_place *at)
{
    struct fr_op op;
    struct fr_user user;
    CUresult r = begin(&op, at, fr_round_to_granules(q->worst), &q->patience);
    if (r) return r;
    fr_user_begin(&user, at->card);
    r = whole_now(q, at, &op);
    fr_user_end(&user);
    return r;
}

/* ---- small ---- */

/* Charges the granules in which the piece is the first. If they are more than were reserved, they are charged if the quota has
 * room. */
static bool book(struct fr_request *q, const struct fr_place *at, struct fr_op *op)
{
    uint32_t added, emptied;
    int object;
    struct fr_piece piece = {at->card, q->address, q->size, {0}};
    if (!fr_granules_add(at->context, &piece, &added)) {
        undo(q->address);
        return false;
    }
    uint64_t bytes = added * FR_GRANULE;
    bool kept = bytes <= op->reserved || op->card == FR_NO_CARD || fr_op_more(op, bytes - op->reserved);
    if (kept && remember(q, at, fr_linear_granules(&piece), FR_LINEAR_PIECE)) {
        fr_op_end(op, bytes);
        return true;
    }
    undo(q->address);
    fr_granules_remove(&piece, false, &emptied, &object);
    return false;
}

static bool last_granule(int card)
{
    struct fr_quota quota;
    if (likely(fr_has_room(card, 2 * FR_GRANULE))) return false;
    fr_quota(card, &quota);
    return fr_used(card) + 2 * FR_GRANULE > quota.may_hold && fr_process_state() == FR_ENFORCE;
}

/* The rest of the last granule could not be used: the next piece would need a granule to be reserved. So the last pieces lie in
 * a pool that cannot grow (margin_pool.c). */
static CUresult piece(struct fr_request *q, const struct fr_place *at)
{
    struct fr_op op;
    struct fr_user user;
    if (unlikely(last_granule(at->card)) && q->plain && fr_margin_small(&q->address, q->size, at)) return CUDA_SUCCESS;
    CUresult r = begin(&op, at, FR_GRANULE, &q->patience);
    if (r) return r;
    fr_user_begin(&user, at->card);
    r = q->call(q);
    if (!r && !book(q, at, &op)) r = CUDA_ERROR_OUT_OF_MEMORY;
    fr_user_end(&user);
    fr_op_end(&op, 0);
    return r;
}

CUresult fr_linear_request(struct fr_request *q)
{
    struct fr_place at;
    if (!fr_place_here(&at)) return at.error;
    bool small = !q->whole && q->worst < FR_SMALL && at.card != FR_NO_CARD;
    return small ? piece(q, &at) : whole(q, &at);
}

static CUresult alloc(struct fr_request *q) { return REAL(cuMemAlloc_v2)(&q->address, (size_t)q->size); }

CUresult fr_linear_alloc(CUdeviceptr *out, size_t size, struct fr_retry *patience)
{
    struct fr_request q = {.call = alloc, .size = size, .worst = size, .plain = true, .patience = *patience};
    CUresult r = fr_linear_request(&q);
    *patience = q.patience;
    if (!r) *out = q.address;
    return r;
}
