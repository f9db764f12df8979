/* Arrays and mipmapped arrays. The size is the bytes of all elements of all levels. */
#include "array.h"

#include <stdlib.h>

enum { FLAG_SPARSE = 0x40, FLAG_DEFERRED = 0x80 };
#define ALIGNMENT 65536

static struct sim_array *arrays; /* without levels of mipmapped arrays */

static void enlist(struct sim_array *a)
{
    a->next = arrays;
    arrays = a;
}

static void delist(struct sim_array *a)
{
    for (struct sim_array **p = &arrays; *p; p = &(*p)->next)
        if (*p == a) {
            *p = a->next;
            return;
        }
}

static size_t format_size(int format)
{
    switch (format) {
    case 0x01: case 0x08: return 1;
    case 0x02: case 0x09: case 0x10: return 2;
    case 0x03: case 0x0a: case 0x20: return 4;
    default: return 0;
    }
}

static size_t at_least_1(size_t n) { return n ? n : 1; }

static struct sim_array *describe(struct sim_ctx *ctx, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    size_t element = format_size(d->Format);
    bool channels_ok = d->NumChannels == 1 || d->NumChannels == 2 || d->NumChannels == 4;
    bool size_ok = d->Width && d->Width <= 131072 && d->Height <= 131072 && d->Depth <= 16384;
    struct sim_array *a = element && channels_ok && size_ok ? calloc(1, sizeof *a) : NULL;
    if (!a) return NULL;
    *a = (struct sim_array){.magic = MAGIC_ARRAY, .ctx = ctx, .desc = *d, .row = d->Width * element * d->NumChannels,
                            .rows = at_least_1(d->Height), .layers = at_least_1(d->Depth)};
    a->size = (size_t)sim_round(a->row * a->rows * a->layers, ALIGNMENT);
    return a;
}

static CUresult back(struct sim_array *a, size_t size)
{
    if (a->desc.Flags & (FLAG_SPARSE | FLAG_DEFERRED)) return CUDA_SUCCESS; /* its memory is mapped by cuMemMapArrayAsync */
    a->charge = sim_take(a->ctx->card, SIM_ARRAY, (size_t)sim_round(size, sim.granule), size);
    return a->charge ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_array *a = out && d ? describe(c, d) : NULL;
    if (!a) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    r = back(a, a->size);
    if (!r && !(a->bytes = sim_bytes_new(a->size))) r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r) sim_give(a->charge), free(a);
    else enlist(*out = a);
    return sim_leave(r);
}

API CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d) { return create(out, d); }

API CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d)
{
    if (!d) return sim.initialised ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
    CUDA_ARRAY3D_DESCRIPTOR wide = {d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
    return create(out, &wide);
}

static void empty(struct sim_array *a)
{
    sim_tiles_forget(a);
    sim_give(a->charge);
    sim_bytes_drop(a->bytes);
    a->magic = 0;
}

static void destroy_one(struct sim_array *a)
{
    empty(a);
    free(a);
}

/* Arrays are freed with their context. The handles' memory stays, so that later uses are recognised as invalid. */
void sim_arrays_forget(struct sim_ctx *ctx)
{
    for (struct sim_array *a = arrays, *next; a; a = next) {
        next = a->next;
        if (a->ctx != ctx) continue;
        delist(a);
        for (unsigned i = 0; i < a->level_count; i++) empty(a->levels[i]);
        empty(a);
    }
}

void sim_arrays_move(const struct sim_ctx *from, struct sim_ctx *to)
{
    for (struct sim_array *a = arrays; a; a = a->next) {
        if (a->ctx != from) continue;
        a->ctx = to;
        for (unsigned i = 0; i < a->level_count; i++) a->levels[i]->ctx = to;
    }
}

static CUresult destroy(struct sim_array *a, bool mipmapped)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!SIM_VALID(a, ARRAY) || a->level || mipmapped != (a->level_count > 0)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    sim_wait_context(c);
    delist(a);
    for (unsigned i = 0; i < a->level_count; i++) destroy_one(a->levels[i]);
    destroy_one(a);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuArrayDestroy(CUarray a) { return destroy(a, false); }
API CUresult cuMipmappedArrayDestroy(CUmipmappedArray a) { return destroy(a, true); }

static size_t half(size_t n) { return n > 1 ? n / 2 : n; }

/* Fills in the levels and returns the bytes of all of them. */
static size_t add_levels(struct sim_array *a, unsigned wanted)
{
    CUDA_ARRAY3D_DESCRIPTOR d = a->desc;
    size_t sum = 0;
    for (unsigned i = 0; i < wanted && i < 32; i++) {
        struct sim_array *level = describe(a->ctx, &d);
        if (!level || !(level->bytes = sim_bytes_new(level->size))) return 0;
        level->level = true;
        a->levels[a->level_count++] = level;
        sum += level->row * level->rows * level->layers;
        if (d.Width <= 1 && d.Height <= 1 && d.Depth <= 1) break;
        d.Width = half(d.Width);
        d.Height = half(d.Height);
        d.Depth = half(d.Depth);
    }
    return (size_t)sim_round(sum, ALIGNMENT);
}

API CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_array *a = out && d && levels ? describe(c, d) : NULL;
    if (!a) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    a->size = add_levels(a, levels);
    r = a->size ? back(a, a->size) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!r) {
        enlist(*out = a);
        return sim_leave(CUDA_SUCCESS);
    }
    for (unsigned i = 0; i < a->level_count; i++) destroy_one(a->levels[i]);
    destroy_one(a);
    return sim_leave(r);
}

API CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray a, unsigned level)
{
    if (!out || !SIM_VALID(a, ARRAY)) return CUDA_ERROR_INVALID_HANDLE;
    if (level >= a->level_count) return CUDA_ERROR_INVALID_VALUE;
    *out = a->levels[level];
    return CUDA_SUCCESS;
}

API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray a)
{
    if (!out || !SIM_VALID(a, ARRAY)) return CUDA_ERROR_INVALID_HANDLE;
    *out = a->desc;
    return CUDA_SUCCESS;
}

API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *out, CUarray a)
{
    if (!out || !SIM_VALID(a, ARRAY)) return CUDA_ERROR_INVALID_HANDLE;
    *out = (CUDA_ARRAY_DESCRIPTOR){a->desc.Width, a->desc.Height, a->desc.Format, a->desc.NumChannels};
    return CUDA_SUCCESS;
}

static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, struct sim_array *a, CUdevice device)
{
    if (!out || !sim_device_valid(device)) return CUDA_ERROR_INVALID_VALUE;
    if (!SIM_VALID(a, ARRAY)) return CUDA_ERROR_INVALID_HANDLE;
    *out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){a->size, ALIGNMENT, {0}};
    return CUDA_SUCCESS;
}

API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray a, CUdevice d) { return requirements(out, a, d); }
API CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray a, CUdevice d) { return requirements(out, a, d); }
