/* Green contexts: parts of a device's SMs, each with a context of its own that costs as much as any other. Memory allocated in a green context
 * belongs to the device's primary context, which every green context holds, and stays when the green context is destroyed. Modules and loaded
 * libraries belong to the primary context from the start. If a reset ends the primary context first, the green ones end with everything that
 * was made in them, and only their handles are left. A green context reports fewer SMs, but that is not modelled: its kernels run as in any
 * context. */
#include "local.h"

#include <stdlib.h>

enum { RESOURCE_SM = 1, DEFAULT_STREAM = 1, MAGIC_GREEN = 0x47524e31, MAGIC_DESCRIPTION = 0x44534331 };

struct resource { /* the API's layout */
    int type;
    unsigned char padding[92];
    union { unsigned sms; unsigned char room[48]; };
};

struct description { uint32_t magic; unsigned sms; };

struct sim_green {
    uint32_t magic;
    unsigned sms;
    struct sim_ctx *ctx;
};

static void sms(struct resource *out, unsigned count)
{
    *out = (struct resource){.type = RESOURCE_SM};
    out->sms = count;
}

API CUresult cuDeviceGetDevResource(CUdevice device, struct resource *out, int type)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!sim_device_valid(device)) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!out || type != RESOURCE_SM) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    sms(out, sim_card_of(device)->sm_count);
    return sim_leave(CUDA_SUCCESS);
}

/* Splits into groups of `least` SMs: as many as possible, or as many as requested. *groups returns the number. */
API CUresult cuDevSmResourceSplitByCount(struct resource *out, unsigned *groups, const struct resource *from, struct resource *rest, unsigned flags, unsigned least)
{
    if (!groups || !from || from->type != RESOURCE_SM) return CUDA_ERROR_INVALID_VALUE;
    unsigned each = least ? (least + 1) / 2 * 2 : 2, all = from->sms / each;
    if (out && *groups < all) all = *groups;
    for (unsigned i = 0; out && i < all; i++) sms(&out[i], each);
    if (rest) sms(rest, from->sms - all * each);
    *groups = all;
    return (void)flags, all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuDevResourceGenerateDesc(void **out, const struct resource *resources, unsigned count)
{
    if (!out || !resources || !count) return CUDA_ERROR_INVALID_VALUE;
    struct description *d = calloc(1, sizeof *d); /* the API has no call that frees it */
    if (!d) return CUDA_ERROR_OUT_OF_MEMORY;
    d->magic = MAGIC_DESCRIPTION;
    for (unsigned i = 0; i < count; i++) d->sms += resources[i].sms;
    *out = d;
    return CUDA_SUCCESS;
}

static CUresult make(struct sim_green **out, const struct description *d, CUdevice device, unsigned flags)
{
    struct sim_ctx *primary;
    struct sim_green *g = calloc(1, sizeof *g);
    CUresult r = g ? sim_primary_hold(device, &primary) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r) return free(g), r;
    if ((r = sim_context_make(device, flags, primary, &g->ctx))) {
        sim_primary_let_go(device);
        return free(g), r;
    }
    g->magic = MAGIC_GREEN;
    g->sms = d->sms;
    *out = g;
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxCreate(CUgreenCtx *out, void *description, CUdevice device, unsigned flags)
{
    const struct description *d = description;
    CUresult r = sim_enter();
    if (r) return r;
    if (!sim_device_valid(device)) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!out || !d || d->magic != MAGIC_DESCRIPTION || flags != DEFAULT_STREAM) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    return sim_leave(make(out, d, device, 0));
}

static void to_parent(struct sim_ctx *c)
{
    sim_arrays_move(c, c->parent);
    for (size_t i = 0; i < sim_region_count(); i++)
        if (sim_region_number(i)->ctx == c) sim_region_number(i)->ctx = c->parent;
}

API CUresult cuGreenCtxDestroy(CUgreenCtx g)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(g, GREEN)) return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
    CUdevice device = g->ctx->device;
    g->magic = 0; /* the handle's memory stays, as with other contexts */
    if (!SIM_VALID(g->ctx, CTX)) return sim_leave(CUDA_SUCCESS); /* it ended when the primary context was reset */
    to_parent(g->ctx);
    if (sim_current() == g->ctx) sim_set_current(NULL);
    sim_context_free(g->ctx);
    sim_primary_let_go(device);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx g)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!SIM_VALID(g, GREEN)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!SIM_VALID(g->ctx, CTX)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = g->ctx;
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxGetDevResource(CUgreenCtx g, struct resource *out, int type)
{
    if (!out || type != RESOURCE_SM) return CUDA_ERROR_INVALID_VALUE;
    if (!SIM_VALID(g, GREEN)) return CUDA_ERROR_INVALID_CONTEXT;
    sms(out, g->sms);
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx g, unsigned flags, int priority)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_stream *s = out && SIM_VALID(g, GREEN) ? sim_stream_new() : NULL;
    if (!s) return sim_leave(out ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE);
    sim_stream_init(g->ctx, s, flags, priority);
    s->next = g->ctx->streams;
    *out = g->ctx->streams = s;
    return sim_leave(CUDA_SUCCESS);
}
