/* Arrays and mipmapped arrays: all levels, all layers, counted in bytes. The formula gives the reserve. The charge is what the
 * driver reports as the array's memory requirements, or the formula if the driver has no answer for this kind of array. Sparse
 * and deferred arrays hold no memory of their own: it comes from handles, for which cuMemCreate was charged. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/records.h"
#include "memory/api_memory.h"
#include "memory/context_ends.h"
#include "memory/context_users.h"
#include "memory/devices.h"
#include "memory/granules.h"
#include "memory/holding.h"
#include "memory/place.h"
#include "memory/tiles.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ALIGNMENT 65536

struct shape {
    uint64_t width, height, depth;
    uint32_t texel_bits;
    bool block, layered; /* block: compressed in blocks of 4 x 4 texels */
};

/* Formats that define the whole texel, whatever NumChannels says: first, last, bits, compressed in blocks. */
static const struct { int first, last; uint32_t bits; bool block; } whole_formats[] = {
    {0x50, 0x50, 32, false}, {0x51, 0x52, 32, false}, {0x53, 0x53, 16, false}, {0x54, 0x54, 32, false}, {0x55, 0x58, 64, false},
    {0x59, 0x59, 16, false}, {0x5a, 0x5a, 32, false}, {0x5b, 0x5e, 64, false},
    {0x91, 0x92, 4, true}, {0x93, 0x96, 8, true}, {0x97, 0x98, 4, true}, {0x99, 0x9e, 8, true},
    {0x9f, 0xa1, 32, false}, {0xa2, 0xb1, 64, false}, {0xb2, 0xb5, 64, false},
    {0xc0, 0xc0, 8, false}, {0xc1, 0xc1, 16, false}, {0xc2, 0xc2, 32, false}, {0xc3, 0xc3, 16, false}, {0xc4, 0xc4, 32, false},
    {0xc5, 0xc5, 64, false}, {0xc6, 0xc6, 8, false}, {0xc7, 0xc7, 16, false}, {0xc8, 0xc8, 32, false}, {0xc9, 0xc9, 16, false},
    {0xca, 0xca, 32, false}, {0xcb, 0xcb, 64, false}, {0xb0, 0xb0, 16, false}};

static uint32_t channel_bits(int format)
{
    switch (format) {
    case 0x01: case 0x08: return 8;
    case 0x02: case 0x09: case 0x10: return 16;
    default: return 32;
    }
}

static struct shape shape_of(uint64_t width, uint64_t height, uint64_t depth, int format, unsigned channels, unsigned flags)
{
    struct shape s = {width ? width : 1, height ? height : 1, depth ? depth : 1, channel_bits(format) * (channels ? channels : 1), false,
                      flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)};
    for (size_t i = sizeof whole_formats / sizeof *whole_formats; i-- > 0;)
        if (format >= whole_formats[i].first && format <= whole_formats[i].last) {
            s.texel_bits = whole_formats[i].bits;
            s.block = whole_formats[i].block;
            break;
        }
    return s;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) || product > UINT64_MAX / 4 ? UINT64_MAX / 4 : product;
}

static uint64_t level_bytes(const struct shape *s)
{
    uint64_t w = s->block ? (s->width + 3) / 4 * 4 : s->width, h = s->block ? (s->height + 3) / 4 * 4 : s->height;
    return times(times(times(w, s->texel_bits) / 8 + (w * s->texel_bits % 8 != 0), h), s->depth);
}

static uint64_t half(uint64_t n) { return n > 1 ? n / 2 : 1; }

static uint64_t bytes_of(struct shape s, unsigned levels)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < levels && i < 32; i++) {
        sum = sum + level_bytes(&s);
        if (sum > UINT64_MAX / 4) break;
        if (s.width == 1 && s.height == 1 && (s.depth == 1 || s.layered)) break;
        s.width = half(s.width), s.height = half(s.height);
        if (!s.layered) s.depth = half(s.depth);
    }
    return (sum + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- making ----
 *
 * Another thread may change the description, or the returned values, at any time: the driver reads and writes our copies. */

struct creation {
    CUresult (*go)(struct creation *c);
    void (*undo)(uint64_t handle);
    bool (*requirements)(uint64_t handle, CUdevice device, uint64_t *size);
    enum fr_class class;
    void *out;
    const void *description;
    unsigned levels;
    uint64_t handle;
};

static CUresult create_now(struct creation *c, const struct fr_place *at, struct fr_op *op, uint64_t size, const struct fr_question *q)
{
    CUresult r = c->go(c);
    if (r) {
        fr_op_end(op, 0);
        return r;
    }
    uint64_t said = 0;
    if (fr_may_ask(q)) {
        if (c->requirements(c->handle, at->device, &said) && said) size = said;
        fr_asked(q);
    }
    uint64_t took = fr_round_to_granules(size);
    bool kept = at->card == FR_NO_CARD || took <= op->reserved || fr_op_more(op, took - op->reserved);
    struct fr_record record = {.class = c->class, .card = at->card, .object = FR_NO_OBJECT, .key = c->handle, .bytes = took, .context = at->context};
    if (kept && fr_record_put(record)) {
        fr_op_end(op, took);
        return CUDA_SUCCESS;
    }
    c->undo(c->handle);
    fr_op_end(op, 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* It holds no memory of its own; its tiles end with it, or with its context. */
static CUresult create_unbacked(struct creation *c)
{
    struct fr_place at;
    struct fr_user user;
    if (!fr_place_here(&at)) return at.error;
    fr_user_begin(&user, at.card);
    CUresult r = c->go(c);
    if (!r) fr_tiles_made(c->handle, at.context);
    fr_user_end(&user);
    return r;
}

static CUresult create(struct creation *c, struct shape shape, bool backed)
{
    struct fr_place at;
    struct fr_op op;
    struct fr_user user;
    struct fr_question question;
    uint64_t size = bytes_of(shape, c->levels);
    if (!backed) return create_unbacked(c);
    if (!fr_place_here(&at)) return at.error;
    CUresult r = fr_op_begin_at(&op, &at, fr_round_to_granules(size));
    if (r) return r;
    fr_user_begin(&user, at.card);
    fr_question_prepare(&question, at.context);
    r = create_now(c, &at, &op, size, &question);
    fr_user_end(&user);
    return r;
}

static void undo_array(uint64_t handle) { REAL(cuArrayDestroy)((CUarray)(uintptr_t)handle); }
static void undo_mipmap(uint64_t handle) { REAL(cuMipmappedArrayDestroy)((CUmipmappedArray)(uintptr_t)handle); }

static bool array_requirements(uint64_t handle, CUdevice device, uint64_t *size)
{
    CUDA_ARRAY_MEMORY_REQUIREMENTS m = {0};
    bool said = fr_driver_has(FR_cuArrayGetMemoryRequirements) && !REAL(cuArrayGetMemoryRequirements)(&m, (CUarray)(uintptr_t)handle, device);
    *size = m.size;
    return said;
}

static bool mipmap_requirements(uint64_t handle, CUdevice device, uint64_t *size)
{
    CUDA_ARRAY_MEMORY_REQUIREMENTS m = {0};
    bool said = fr_driver_has(FR_cuMipmappedArrayGetMemoryRequirements) &&
                !REAL(cuMipmappedArrayGetMemoryRequirements)(&m, (CUmipmappedArray)(uintptr_t)handle, device);
    *size = m.size;
    return said;
}

static CUresult keep(struct creation *c, CUresult r)
{
    if (!r) c->handle = (uintptr_t)*(CUarray *)c->out;
    return r;
}

static CUresult array_v1(struct creation *c) { return keep(c, REAL(cuArrayCreate)(c->out, c->description)); }
static CUresult array_v2(struct creation *c) { return keep(c, REAL(cuArrayCreate_v2)(c->out, c->description)); }
static CUresult array_3d_v1(struct creation *c) { return keep(c, REAL(cuArray3DCreate)(c->out, c->description)); }
static CUresult array_3d_v2(struct creation *c) { return keep(c, REAL(cuArray3DCreate_v2)(c->out, c->description)); }
static CUresult mipmap(struct creation *c) { return keep(c, REAL(cuMipmappedArrayCreate)(c->out, c->description, c->levels)); }

static CUresult plain(CUarray *out, const void *description, CUresult (*go)(struct creation *), struct shape shape, unsigned flags)
{
    CUarray made = NULL;
    struct creation c = {.go = go, .undo = undo_array, .requirements = array_requirements, .class = FR_ARRAY, .out = &made,
                         .description = description, .levels = 1};
    CUresult r = create(&c, shape, !(flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)));
    if (!r) *out = made;
    return r;
}

HOOK CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *given)
{
    if (!out || !given) return REAL(cuArrayCreate_v2)(out, given);
    const CUDA_ARRAY_DESCRIPTOR own = *given, *d = &own;
    return plain(out, d, array_v2, shape_of(d->Width, d->Height, 0, d->Format, d->NumChannels, 0), 0);
}

HOOK CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *given)
{
    if (!out || !given) return REAL(cuArrayCreate)(out, given);
    const CUDA_ARRAY_DESCRIPTOR_v1 own = *given, *d = &own;
    return plain(out, d, array_v1, shape_of(d->Width, d->Height, 0, d->Format, d->NumChannels, 0), 0);
}

HOOK CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *given)
{
    if (!out || !given) return REAL(cuArray3DCreate_v2)(out, given);
    const CUDA_ARRAY3D_DESCRIPTOR own = *given, *d = &own;
    return plain(out, d, array_3d_v2, shape_of(d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags), d->Flags);
}

HOOK CUresult cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *given)
{
    if (!out || !given) return REAL(cuArray3DCreate)(out, given);
    const CUDA_ARRAY3D_DESCRIPTOR_v1 own = *given, *d = &own;
    return plain(out, d, array_3d_v1, shape_of(d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags), d->Flags);
}

HOOK CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *given, unsigned levels)
{
    if (!out || !given || !levels) return REAL(cuMipmappedArrayCreate)(out, given, levels);
    const CUDA_ARRAY3D_DESCRIPTOR own = *given, *d = &own;
    CUmipmappedArray made = NULL;
    struct creation c = {.go = mipmap, .undo = undo_mipmap, .requirements = mipmap_requirements, .class = FR_MIPMAP, .out = &made,
                         .description = d, .levels = levels};
    struct shape shape = shape_of(d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags);
    CUresult r = create(&c, shape, !(d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)));
    if (!r) *out = made;
    return r;
}

/* ---- destroying ---- */

static CUresult destroy(enum fr_class class, uint64_t handle, CUresult (*real)(uint64_t))
{
    struct fr_record record;
    struct fr_op op;
    struct fr_user user;
    if (!fr_record_find(class, handle, &record)) return real(handle);
    fr_user_begin(&user, record.card);
    bool known = fr_record_take(class, handle, &record);
    fr_free_begin(&op, known ? record.card : FR_NO_CARD);
    if (known) fr_free_most(&op, record.bytes);
    CUresult r = real(handle);
    if (known && r) fr_record_put(record);
    fr_free_end(&op, r || !known ? 0 : record.bytes);
    fr_user_end(&user);
    return r;
}

static CUresult real_array(uint64_t handle) { return REAL(cuArrayDestroy)((CUarray)(uintptr_t)handle); }
static CUresult real_mipmap(uint64_t handle) { return REAL(cuMipmappedArrayDestroy)((CUmipmappedArray)(uintptr_t)handle); }

HOOK CUresult cuArrayDestroy(CUarray array)
{
    struct fr_tiles_end tiles;
    fr_tiles_begin(&tiles, array);
    CUresult r = destroy(FR_ARRAY, (uintptr_t)array, real_array);
    fr_tiles_end(&tiles, r == CUDA_SUCCESS);
    return r;
}

HOOK CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    struct fr_tiles_end tiles;
    fr_tiles_begin(&tiles, array);
    CUresult r = destroy(FR_MIPMAP, (uintptr_t)array, real_mipmap);
    fr_tiles_end(&tiles, r == CUDA_SUCCESS);
    return r;
}
