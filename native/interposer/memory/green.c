/* Green contexts: parts of a device's SMs. Each holds the device's primary context and is charged as a context, since no figure
 * for green contexts is known. What is allocated in a green context belongs to the primary context, and is given back with
 * that; what is loaded in it is loaded in the primary context (load.c). */
#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/records.h"
#include "memory/api_memory.h"
#include "memory/context.h"
#include "memory/context_audit.h"
#include "memory/context_buffers.h"
#include "memory/context_cost.h"
#include "memory/context_ends.h"
#include "memory/context_users.h"
#include "memory/function_table.h"
#include "memory/green_records.h"
#include "memory/kept_blocks.h"
#include "memory/late_free.h"
#include "memory/primary.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

CUresult cuCtxFromGreenCtx(CUcontext *, CUgreenCtx);

static CUresult create(struct fr_context_call *c) { return REAL(cuGreenCtxCreate)(c->green_out, c->params, c->device, c->flags); }
static CUresult destroy(struct fr_context_call *c) { return REAL(cuGreenCtxDestroy)(c->green_out ? *c->green_out : c->green); }

/* Records the context in which the green context's work is done: allocations there are recorded under that context. */
static void learn(CUgreenCtx green, CUcontext context)
{
    if (fr_green_has(green, context)) fr_context_known(context);
}

static CUresult make(CUgreenCtx *out, void *description, CUdevice device, unsigned flags)
{
    struct fr_context_call c = {.go = create, .green_out = out, .params = description, .device = device, .flags = flags};
    struct fr_cost cost;
    if (!out || !description || !fr_device_exists(device)) return create(&c);
    CUresult r = fr_primary_hold(&c, destroy, &cost);
    if (r) return r;
    bool kept = fr_context_measure(&cost);
    struct fr_record record = {.class = FR_CONTEXT, .card = cost.op.card, .object = FR_NO_OBJECT, .key = (uintptr_t)*out,
                               .bytes = cost.bytes, .a = (uint64_t)(unsigned)device | FR_GREEN};
    if (!kept || !fr_record_put(record)) {
        fr_primary_leave(&(struct fr_context_call){.go = destroy, .green = *out, .device = device}, false);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    fr_op_end(&cost.op, r ? 0 : cost.bytes);
    if (!kept) fr_context_refused(device, 1);
    CUcontext context = NULL;
    if (!r && fr_driver_has(FR_cuCtxFromGreenCtx) && !REAL(cuCtxFromGreenCtx)(&context, *out)) learn(*out, context);
    return r;
}

/* Another thread may change what is returned, so the driver writes it here. */
HOOK CUresult cuGreenCtxCreate(CUgreenCtx *out, void *description, CUdevice device, unsigned flags)
{
    CUgreenCtx made = NULL;
    CUresult r = make(out ? &made : NULL, description, device, flags);
    if (!r && out) *out = made;
    return r;
}

HOOK CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green)
{
    CUcontext context = NULL;
    CUresult r = REAL(cuCtxFromGreenCtx)(out ? &context : NULL, green);
    if (!r && out) learn(green, context);
    if (!r && out) *out = context;
    return r;
}

/* In the turn of calls that let go of the primary context: the primary context takes over what was allocated here, or is
 * already gone together with all of it. */
static CUresult destroy_in_turn(struct fr_context_call *c)
{
    struct fr_record record;
    struct fr_op op;
    if (!fr_green_take(c->green, &record)) return destroy(c);
    if (record.b) fr_late_frees_context_ends((CUcontext)(uintptr_t)record.b);
    fr_free_begin(&op, record.card);
    fr_functions_forget(); /* its modules go with it, and their functions' handles may be reused */
    CUcontext context = (CUcontext)(uintptr_t)record.b;
    if (context) {
        fr_users_wait(record.card); /* what calls under way were promised is counted under its name */
        record.bytes += fr_buffers_take(context);
        fr_context_forget(context);
        fr_context_merge(context, fr_primary_context(c->device));
    }
    if (context) fr_context_end_begins(context);
    CUresult r = destroy(c);
    if (context) fr_context_end_is_over(context);
    if (context && !r) { /* for calls of other threads that came too late */
        fr_users_wait(record.card);
        record.bytes += fr_buffers_take(context);
        fr_context_merge(context, fr_primary_context(c->device));
    }
    if (r) fr_record_put(record);
    fr_free_end(&op, r ? 0 : record.bytes);
    return r;
}

HOOK CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    struct fr_record record;
    struct fr_context_call c = {.go = destroy_in_turn, .green = green};
    if (!green || !fr_record_find(FR_CONTEXT, (uintptr_t)green, &record)) return destroy(&c);
    c.device = (CUdevice)(uint32_t)record.a;
    fr_kept_blocks_free(); /* its streams end with it */
    return fr_primary_leave(&c, false);
}
