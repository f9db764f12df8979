/* Contexts: the per-thread stack, primary contexts, the memory that a context costs, and the effect of a fault on it. */
#include "local.h"

#include <stdlib.h>
#include <string.h>

#define STACK 64

static __thread struct { struct sim_ctx *at[STACK]; int depth; } stack;

struct sim_ctx *sim_current(void)
{
    return stack.depth ? stack.at[stack.depth - 1] : NULL;
}

void sim_set_current(struct sim_ctx *ctx)
{
    if (stack.depth) stack.depth--;
    if (ctx) stack.at[stack.depth++] = ctx;
}

/* A fault on the card breaks every context that existed on it, permanently. */
CUresult sim_context_check(struct sim_ctx *ctx)
{
    if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
    if (ctx->magic != MAGIC_CTX) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    struct sim_card *card = sim_card_of(ctx->device);
    if (card->fault_generation != ctx->fault_seen && !ctx->broken) ctx->broken = (CUresult)card->fault_error;
    return ctx->broken;
}

static void link_context(struct sim_ctx *c, int device, unsigned flags, uint32_t charge)
{
    c->magic = MAGIC_CTX;
    c->device = device;
    c->card = sim.devices[device].card;
    c->charge = charge;
    c->flags = flags;
    c->fault_seen = sim_card_of(device)->fault_generation;
    c->generation = sim.host.state->contexts[c->id].generation;
    c->number = ++sim.next_number;
    sim_buffers_init(c);
    sim_stream_init(c, &c->legacy, 0, 0);
    c->legacy.legacy = true;
    c->next = sim.contexts;
    sim.contexts = c;
}

CUresult sim_context_make(int device, unsigned flags, struct sim_ctx *parent, struct sim_ctx **out)
{
    if (sim_card_of(device)->lost) return CUDA_ERROR_UNKNOWN;
    uint64_t told = sim_card_of(device)->context_bytes, bytes = sim_round(told * sim.policy.context_percent / 100, sim.granule);
    if (bytes > told && sim.policy.context_percent <= 100) bytes = told;
    struct sim_ctx *c = calloc(1, sizeof *c);
    uint32_t charge = c ? sim_take_within(sim.devices[device].card, SIM_CONTEXT, bytes, told, told) : 0;
    if (!charge) return free(c), CUDA_ERROR_OUT_OF_MEMORY;
    sim_lock(&sim.host);
    sim_advance(&sim.host, sim_now());
    c->id = sim_context_new(&sim.host, sim.devices[device].card);
    sim_unlock(&sim.host);
    if (c->id == SIM_NO_CONTEXT) {
        sim_give(charge);
        free(c);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    link_context(c, device, flags, charge);
    c->parent = parent;
    CUresult r = parent ? CUDA_SUCCESS : sim_libraries_load(c);
    if (r) sim_context_free(c);
    else *out = c;
    return r;
}

static void free_memory_of(struct sim_ctx *c)
{
    for (size_t i = sim_region_count(); i-- > 0;) {
        struct sim_region *r = sim_region_number(i);
        bool tied = r->kind != R_MAPPED && r->kind != R_POOL && r->kind != R_POOL_IMPORT && r->kind != R_GRAPH; /* these kinds outlive a context */
        if (r->ctx == c && tied) sim_free_region(r);
        else if (r->ctx == c) r->ctx = NULL;
        if (i > sim_region_count()) i = sim_region_count();
    }
}

/* Green contexts are part of the primary context: if a reset ends that, they end, too. */
static void free_children(const struct sim_ctx *c)
{
    for (struct sim_ctx *child = sim.contexts, *next; child; child = next) {
        next = child->next;
        if (child->parent == c) sim_context_free(child);
    }
}

/* The handle's memory is not freed: some programs use contexts that they destroyed, and must get an error. */
void sim_context_free(struct sim_ctx *c)
{
    free_children(c);
    for (struct sim_stream *s = c->streams; s; s = s->next) sim_capture_stream_ends(s);
    sim_modules_forget(c);
    sim_arrays_forget(c);
    sim_late_forget(c);
    free_memory_of(c);
    sim_lock(&sim.host);
    sim_context_drop(&sim.host, c->id);
    sim_buffers_drop(c);
    sim_release(&sim.host, c->charge);
    sim_unlock(&sim.host);
    for (struct sim_stream *s = c->streams, *next; s; s = next) next = s->next, sim_stream_gone(s);
    c->streams = NULL;
    for (struct sim_ctx **p = &sim.contexts; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            break;
        }
    c->magic = 0;
    if (c->primary) sim.devices[c->device].primary = NULL;
}

static CUresult create(CUcontext *out, unsigned flags, CUdevice device)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sim_device_valid(device)) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    if (stack.depth == STACK) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    r = sim_context_make(device, flags, NULL, out);
    if (!r) stack.at[stack.depth++] = *out;
    return sim_leave(r);
}

API CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device) { return create(out, flags, device); }
API CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) { return create(out, flags, device); }

API CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice device)
{
    if (affinity || count) return CUDA_ERROR_NOT_SUPPORTED; /* SM affinity needs MPS */
    return create(out, flags, device);
}

API CUresult cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice device)
{
    if (params && ((const int *)params)[2]) return CUDA_ERROR_NOT_SUPPORTED;
    return create(out, flags, device);
}

static CUresult destroy(CUcontext ctx)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(ctx, CTX)) return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
    sim_context_free(ctx);
    if (sim_current() == ctx) sim_set_current(NULL);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuCtxDestroy(CUcontext ctx) { return destroy(ctx); }
API CUresult cuCtxDestroy_v2(CUcontext ctx) { return destroy(ctx); }

static CUresult push(CUcontext ctx)
{
    if (!sim.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!SIM_VALID(ctx, CTX)) return CUDA_ERROR_INVALID_CONTEXT;
    if (stack.depth == STACK) return CUDA_ERROR_OUT_OF_MEMORY;
    stack.at[stack.depth++] = ctx;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *out)
{
    if (!sim.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!stack.depth) return CUDA_ERROR_INVALID_CONTEXT;
    struct sim_ctx *c = stack.at[--stack.depth];
    if (out) *out = c;
    return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent(CUcontext ctx) { return push(ctx); }
API CUresult cuCtxPushCurrent_v2(CUcontext ctx) { return push(ctx); }
API CUresult cuCtxPopCurrent(CUcontext *out) { return pop(out); }
API CUresult cuCtxPopCurrent_v2(CUcontext *out) { return pop(out); }

API CUresult cuCtxSetCurrent(CUcontext ctx)
{
    if (!sim.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (ctx && ctx->magic != MAGIC_CTX) return CUDA_ERROR_INVALID_CONTEXT;
    sim_set_current(ctx);
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *out)
{
    if (!sim.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = sim_current();
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *out)
{
    if (!sim.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    struct sim_ctx *c = sim_current();
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    *out = c->device;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice_v2(CUdevice *out, CUcontext ctx)
{
    if (!ctx) return cuCtxGetDevice(out);
    if (!SIM_VALID(ctx, CTX)) return CUDA_ERROR_INVALID_CONTEXT;
    *out = ctx->device;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetId(CUcontext ctx, unsigned long long *out)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!ctx) ctx = sim_current();
    if (!out) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!SIM_VALID(ctx, CTX)) return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
    *out = ctx->number;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuCtxGetFlags(unsigned *out)
{
    struct sim_ctx *c = sim_current();
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    *out = c->flags;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned *out)
{
    if (!ctx) ctx = sim_current();
    if (!SIM_VALID(ctx, CTX) || !out) return CUDA_ERROR_INVALID_CONTEXT;
    *out = 3020;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize(void)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (sim_any_capture()) return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    uint64_t from = sim.next_number;
    sim_wait_context(c);
    sim_synchronised(c, NULL, from);
    return sim_leave(sim_context_check(c));
}

API CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
    if (!ctx) return cuCtxSynchronize();
    CUresult r = push(ctx);
    if (r) return r;
    r = cuCtxSynchronize();
    pop(NULL);
    return r;
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return sim_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuCtxGetLimit(size_t *out, int limit)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!out) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (limit < 0 || limit > 6) return sim_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
    *out = c->limits[limit];
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuCtxSetLimit(int limit, size_t value)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (limit < 0 || limit > 6) return sim_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
    r = sim_buffer_set(c, limit, value);
    if (!r) c->limits[limit] = value;
    return sim_leave(r);
}

/* ---- primary contexts ---- */

CUresult sim_primary_hold(CUdevice device, struct sim_ctx **out)
{
    struct sim_device *d = &sim.devices[device];
    if (!d->primary) {
        CUresult r = sim_context_make(device, d->primary_flags, NULL, &d->primary);
        if (r) return r;
        d->primary->primary = true;
    }
    d->primary->primary_refs++;
    *out = d->primary;
    return CUDA_SUCCESS;
}

void sim_primary_let_go(CUdevice device)
{
    struct sim_ctx *c = sim.devices[device].primary;
    if (c && --c->primary_refs == 0) sim_context_free(c);
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sim_device_valid(device)) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    return sim_leave(sim_primary_hold(device, out));
}

static CUresult release_primary(CUdevice device, bool reset)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!sim_device_valid(device)) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    struct sim_ctx *c = sim.devices[device].primary;
    if (!c && !reset) return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (c && reset) sim_context_free(c);
    else sim_primary_let_go(device);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return release_primary(device, false); }
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return release_primary(device, false); }
API CUresult cuDevicePrimaryCtxReset(CUdevice device) { return release_primary(device, true); }
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { return release_primary(device, true); }

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!sim_device_valid(device)) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    if (flags) *flags = sim.devices[device].primary_flags;
    if (active) *active = sim.devices[device].primary != NULL;
    return sim_leave(CUDA_SUCCESS);
}

static CUresult set_primary_flags(CUdevice device, unsigned flags)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!sim_device_valid(device)) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    sim.devices[device].primary_flags = flags;
    if (sim.devices[device].primary) sim.devices[device].primary->flags = flags;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) { return set_primary_flags(device, flags); }
API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) { return set_primary_flags(device, flags); }

/* ---- peers ---- */

API CUresult cuDeviceCanAccessPeer(int *out, CUdevice a, CUdevice b)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(a) || !sim_device_valid(b)) return CUDA_ERROR_INVALID_DEVICE;
    *out = a != b;
    return CUDA_SUCCESS;
}

static CUresult peer(CUcontext other, bool enable)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!SIM_VALID(other, CTX)) return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
    unsigned bit = 1u << other->device;
    if (other->device == c->device) return sim_leave(enable ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    if (enable && (c->peers & bit)) return sim_leave(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    if (!enable && !(c->peers & bit)) return sim_leave(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    c->peers ^= bit;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuCtxEnablePeerAccess(CUcontext other, unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : peer(other, true); }
API CUresult cuCtxDisablePeerAccess(CUcontext other) { return peer(other, false); }

/* Accepted, but without effect on the model. */
API CUresult cuCtxSetCacheConfig(int config) { return (void)config, sim_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
API CUresult cuCtxSetSharedMemConfig(int config) { return (void)config, sim_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
API CUresult cuCtxResetPersistingL2Cache(void) { return sim_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
API CUresult cuCtxSetFlags(unsigned flags)
{
    if (!sim_current()) return CUDA_ERROR_INVALID_CONTEXT;
    sim_current()->flags = flags;
    return CUDA_SUCCESS;
}
