/* Contexts that the application makes. Each costs hundreds of MiB of the card, and what was allocated in it goes with it: all
 * of it is given back after the driver has destroyed the context, and not before. */
#include "memory/context.h"

#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/oom_retry.h"
#include "ledger/records.h"
#include "memory/api_memory.h"
#include "memory/capture_origins.h"
#include "memory/code_room.h"
#include "memory/context_audit.h"
#include "memory/context_buffers.h"
#include "memory/context_cost.h"
#include "memory/context_ends.h"
#include "memory/context_users.h"
#include "memory/eager.h"
#include "memory/function_table.h"
#include "memory/granules.h"
#include "memory/kept_blocks.h"
#include "memory/late_free.h"
#include "memory/linear_records.h"
#include "memory/loaded.h"
#include "memory/margin_pool.h"
#include "memory/pool_shrink.h"
#include "memory/tiles.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void (*_Atomic fr_before_context_ends)(CUcontext context);
void (*_Atomic fr_after_context_ends)(void);

static void end_is_over(void)
{
    void (*after)(void) = atomic_load(&fr_after_context_ends);
    if (after) after();
}

/* While the driver destroys a context, it may already give the context's addresses and handles to others. So the doomed
 * context's records that have such keys take other keys. A key is never used twice, because the thread may be held up while
 * others make and destroy hundreds of contexts. */
static void change_key(struct fr_record *r, bool ends)
{
    static _Atomic uint64_t keys = 1ull << 63; /* neither addresses nor handles */
    bool by_address = r->class == FR_POINTER || r->class == FR_ARRAY || r->class == FR_MIPMAP;
    if (!by_address && !fr_is_buffer(r)) return;
    if (ends) {
        r->key_before = r->key;
        r->key = atomic_fetch_add(&keys, 1);
    } else if (r->key >> 63) {
        r->key = r->key_before; /* the keys of a green context's records, which its primary context takes over, were not changed */
    }
}

/* A limit may have been set while its record was away: both charges stay until the context ends. */
static void put(struct fr_record r)
{
    struct fr_record other = {.bytes = 0};
    if (fr_is_buffer(&r) && fr_record_find(r.class, r.key, &other) && other.context == r.context) r.bytes += other.bytes;
    fr_record_put(r);
}

enum way { RENAMED, ENDS, MERGES };

static bool move_one(CUcontext from, CUcontext to, enum way way, bool inside, CUdeviceptr *margin_piece)
{
    struct fr_record r;
    *margin_piece = 0;
    fr_loads_lock();
    bool found = fr_record_take_of(from, &r);
    if (found && inside && r.class == FR_MARGIN_PIECE) {
        *margin_piece = r.key;
    } else if (found && !(way == MERGES ? fr_room_follows : fr_room_moves)(&r, to)) {
        r.context = to;
        change_key(&r, way == ENDS);
        put(r);
    }
    fr_loads_unlock();
    return found;
}

static void move(CUcontext from, CUcontext to, enum way way, bool inside)
{
    CUdeviceptr margin_piece;
    while (move_one(from, to, way, inside, &margin_piece))
        if (margin_piece) fr_margin_piece_free(margin_piece);
    fr_granules_rename(from, to, way == ENDS);
}

/* Pieces of the library's own pools do not end with the context, so they are freed while it exists. */
static void move_to_doomed(CUcontext context, CUcontext doomed)
{
    CUcontext popped;
    bool inside = atomic_load(&fr_margin_pieces) && !REAL(cuCtxPushCurrent_v2)(context);
    move(context, doomed, ENDS, inside);
    if (inside) REAL(cuCtxPopCurrent_v2)(&popped);
}

CUcontext fr_context_retire(CUcontext context)
{
    static _Atomic uintptr_t names = 1; /* odd: not handles */
    CUcontext doomed = (CUcontext)atomic_fetch_add(&names, 2);
    void (*before)(CUcontext) = atomic_load(&fr_before_context_ends);
    if (before) before(context);
    fr_kept_blocks_free();
    fr_functions_forget(); /* before the driver can give their handles to others, and once more in fr_context_reclaim */
    fr_context_forget(context);
    move_to_doomed(context, doomed);
    fr_captures_rename(context, doomed);
    return doomed;
}

void fr_context_follow(CUcontext context, CUcontext doomed)
{
    move_to_doomed(context, doomed);
    fr_captures_rename(context, doomed);
}

void fr_context_restore(CUcontext from, CUcontext to)
{
    move(from, to, RENAMED, false);
    fr_captures_rename(from, to);
    end_is_over();
}

void fr_context_merge(CUcontext green, CUcontext primary) { move(green, primary, MERGES, false); }

static uint64_t bytes_of(const struct fr_record *r)
{
    fr_linear_leave_pool(r);
    fr_slack_add(r->card, -(int64_t)fr_room_spare(r));
    if (fr_linear_is_piece(r)) return 0; /* its granules come last */
    return r->object == FR_NO_OBJECT ? r->bytes : fr_object_leave(r->object);
}

static bool take(CUcontext doomed, struct fr_record *r)
{
    fr_loads_lock();
    bool found = fr_record_take_of(doomed, r);
    fr_loads_unlock();
    return found;
}

uint64_t fr_context_reclaim(CUcontext doomed, int card)
{
    struct fr_record r;
    struct fr_op op;
    int object;
    uint64_t bytes = 0;
    end_is_over();
    fr_captures_end_with(doomed);
    while (take(doomed, &r)) {
        if (r.class == FR_TILED) fr_tiles_forget(r.key);
        if (r.card == card) {
            bytes += bytes_of(&r);
            continue;
        }
        fr_free_begin(&op, r.card); /* memory of a peer's card */
        fr_free_end(&op, bytes_of(&r));
    }
    fr_functions_forget();
    fr_pools_shrunk(&(struct fr_shrinking){.wait = -1});
    while (fr_granules_drop(doomed, &object)) bytes += object == FR_NO_OBJECT ? FR_GRANULE : fr_object_leave(object);
    return bytes;
}

/* ---- making ---- */

static CUresult make_one(struct fr_context_call *c)
{
    struct fr_cost cost;
    struct fr_load libraries;
    if (!c->out || !fr_device_exists(c->device)) return c->go(c);
    struct fr_retry patience = {0};
    CUresult r;
    do {
        r = fr_context_reserve(&cost, 1, c->device, fr_eager_bytes(c->device), &patience);
        if (r) return fr_context_refused(c->device, 1);
    } while (!fr_eager_begin(&libraries, c->device, &cost));
    r = c->go(c);
    if (r) {
        fr_eager_end(&libraries, NULL);
        fr_op_end(&cost.op, 0);
        return r;
    }
    bool kept = fr_context_measure(&cost);
    struct fr_record record = {.class = FR_CONTEXT, .card = cost.op.card, .object = FR_NO_OBJECT, .key = (uintptr_t)*c->out, .bytes = cost.bytes};
    if (kept && fr_record_put(record)) {
        int card = cost.op.card;
        fr_op_end(&cost.op, cost.bytes);
        fr_context_made(card, *c->out);
        fr_eager_end(&libraries, *c->out);
        return CUDA_SUCCESS;
    }
    REAL(cuCtxDestroy_v2)(*c->out);
    fr_eager_end(&libraries, NULL);
    fr_op_end(&cost.op, 0);
    return kept ? CUDA_ERROR_OUT_OF_MEMORY : fr_context_refused(c->device, 1);
}

/* Another thread may change what is returned, so the driver writes it here. */
static CUresult make(struct fr_context_call *c)
{
    CUcontext made = NULL, *out = c->out;
    if (out) c->out = &made;
    CUresult r = make_one(c);
    if (!r && out) *out = made;
    return r;
}

static CUresult create(struct fr_context_call *c) { return REAL(cuCtxCreate)(c->out, c->flags, c->device); }
static CUresult create_v2(struct fr_context_call *c) { return REAL(cuCtxCreate_v2)(c->out, c->flags, c->device); }
static CUresult create_v3(struct fr_context_call *c) { return REAL(cuCtxCreate_v3)(c->out, c->params, c->count, c->flags, c->device); }
static CUresult create_v4(struct fr_context_call *c) { return REAL(cuCtxCreate_v4)(c->out, c->params, c->flags, c->device); }
static CUresult create_gl(struct fr_context_call *c) { return REAL(cuGLCtxCreate)(c->out, c->flags, c->device); }
static CUresult create_gl_v2(struct fr_context_call *c) { return REAL(cuGLCtxCreate_v2)(c->out, c->flags, c->device); }

HOOK CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device)
{
    return make(&(struct fr_context_call){.go = create, .out = out, .flags = flags, .device = device});
}
HOOK CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
    return make(&(struct fr_context_call){.go = create_v2, .out = out, .flags = flags, .device = device});
}
HOOK CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice device)
{
    return make(&(struct fr_context_call){.go = create_v3, .out = out, .params = affinity, .count = count, .flags = flags, .device = device});
}
HOOK CUresult cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice device)
{
    return make(&(struct fr_context_call){.go = create_v4, .out = out, .params = params, .flags = flags, .device = device});
}
HOOK CUresult cuGLCtxCreate(CUcontext *out, unsigned flags, CUdevice device)
{
    return make(&(struct fr_context_call){.go = create_gl, .out = out, .flags = flags, .device = device});
}
HOOK CUresult cuGLCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
    return make(&(struct fr_context_call){.go = create_gl_v2, .out = out, .flags = flags, .device = device});
}

/* VDPAU passes two more arguments: its device, and the function for looking up VDPAU's functions. */
static CUresult create_vdpau(struct fr_context_call *c)
{
    return REAL(cuVDPAUCtxCreate)(c->out, c->flags, c->device, c->mode, c->params);
}
static CUresult create_vdpau_v2(struct fr_context_call *c)
{
    return REAL(cuVDPAUCtxCreate_v2)(c->out, c->flags, c->device, c->mode, c->params);
}
HOOK CUresult cuVDPAUCtxCreate(CUcontext *out, unsigned flags, CUdevice device, unsigned vdp_device, void *get)
{
    return make(&(struct fr_context_call){.go = create_vdpau, .out = out, .flags = flags, .device = device, .mode = vdp_device, .params = get});
}
HOOK CUresult cuVDPAUCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device, unsigned vdp_device, void *get)
{
    return make(&(struct fr_context_call){.go = create_vdpau_v2, .out = out, .flags = flags, .device = device, .mode = vdp_device, .params = get});
}

/* ---- ending ---- */

/* Another thread has destroyed it at the same moment. */
static bool is_gone(CUcontext context)
{
    unsigned version;
    return fr_driver_has(FR_cuCtxGetApiVersion) && REAL(cuCtxGetApiVersion)(context, &version) != CUDA_SUCCESS;
}

/* From here on the library does not query the driver about any of the context's modules and streams. */
static CUresult go_and_end(struct fr_context_call *c)
{
    fr_context_end_begins(c->context);
    CUresult r = c->go(c);
    fr_context_end_is_over(c->context);
    return r;
}

static CUresult end_in_turn(struct fr_context_call *c)
{
    struct fr_record self;
    struct fr_op op;
    if (!fr_record_take(FR_CONTEXT, (uintptr_t)c->context, &self)) return go_and_end(c); /* made without the library, or not a context */
    if (c->count && self.a) { /* cuCtxDetach of a context that was attached once more */
        self.a--;
        fr_record_put(self);
        return c->go(c);
    }
    fr_late_frees_context_ends(c->context);
    fr_users_wait(self.card); /* what calls of other threads have made in this context goes with it */
    fr_free_begin(&op, self.card);
    fr_free_most(&op, self.bytes);
    CUcontext doomed = fr_context_retire(c->context);
    CUresult r = go_and_end(c);
    if (r && !is_gone(c->context)) {
        fr_context_restore(doomed, c->context);
        fr_record_put(self);
        fr_free_end(&op, 0);
        return r;
    }
    uint64_t bytes = self.bytes + fr_context_reclaim(doomed, self.card) + fr_unseen_take(self.card);
    fr_contexts_add(self.card, -1);
    fr_free_end(&op, bytes);
    return r;
}

CUresult fr_context_end(struct fr_context_call *c)
{
    bool turn = fr_eager_ends();
    CUresult r = end_in_turn(c);
    fr_eager_ended(turn);
    return r;
}

HOOK CUresult cuCtxAttach(CUcontext *out, unsigned flags)
{
    struct fr_record self;
    CUcontext context = NULL;
    CUresult r = REAL(cuCtxAttach)(out ? &context : NULL, flags);
    if (!r && out) *out = context;
    if (r || !out || !fr_record_take(FR_CONTEXT, (uintptr_t)context, &self)) return r;
    self.a++;
    fr_record_put(self);
    return r;
}
