/* The hooks of memory at an address: what each driver call takes, and what it gives back.
 *
 * Arguments that the driver refuses are passed on unchanged, so that its error comes back and nothing is reserved. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/api_memory.h"
#include "memory/linear.h"
#include "memory/linear_records.h"
#include "memory/margin_pool.h"
#include "memory/place.h"
#include "memory/pool.h"
#include "memory/pool_pieces.h"
#include "memory/pool_shrink.h"
#include "memory/pool_waits.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PITCH 512 /* no card aligns rows to more; if one does, the pitch that the driver returns counts */

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t pitch_of(uint64_t width)
{
    return width > UINT64_MAX - PITCH ? UINT64_MAX : (width + PITCH - 1) / PITCH * PITCH;
}

/* ---- linear ---- */

HOOK CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
    return out && size ? fr_linear_alloc(out, size, &(struct fr_retry){0}) : REAL(cuMemAlloc_v2)(out, size);
}

static CUresult alloc_v1(struct fr_request *q)
{
    CUdeviceptr_v1 p = 0;
    CUresult r = REAL(cuMemAlloc)(&p, (unsigned)q->size);
    q->address = p;
    return r;
}

HOOK CUresult cuMemAlloc(CUdeviceptr_v1 *out, unsigned size)
{
    struct fr_request q = {.call = alloc_v1, .size = size, .worst = size};
    if (!out || !size) return REAL(cuMemAlloc)(out, size);
    CUresult r = fr_linear_request(&q);
    if (!r) *out = (CUdeviceptr_v1)q.address;
    return r;
}

/* ---- pitched: the returned pitch times the height ---- */

static CUresult alloc_pitch(struct fr_request *q)
{
    CUresult r = REAL(cuMemAllocPitch_v2)(&q->address, &q->pitch, q->width, q->height, q->element);
    q->size = times(q->pitch, q->height);
    return r;
}

HOOK CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
    struct fr_request q = {.call = alloc_pitch, .width = width, .height = height, .element = element};
    if (!out || !pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return REAL(cuMemAllocPitch_v2)(out, pitch, width, height, element);
    q.size = q.worst = times(pitch_of(width), height);
    CUresult r = fr_linear_request(&q);
    if (r) return r;
    *out = q.address;
    *pitch = q.pitch;
    return CUDA_SUCCESS;
}

static CUresult alloc_pitch_v1(struct fr_request *q)
{
    CUdeviceptr_v1 p = 0;
    unsigned pitch = 0;
    CUresult r = REAL(cuMemAllocPitch)(&p, &pitch, (unsigned)q->width, (unsigned)q->height, q->element);
    q->address = p;
    q->pitch = pitch;
    q->size = times(pitch, q->height);
    return r;
}

HOOK CUresult cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    struct fr_request q = {.call = alloc_pitch_v1, .width = width, .height = height, .element = element};
    if (!out || !pitch || !width || !height) return REAL(cuMemAllocPitch)(out, pitch, width, height, element);
    q.size = q.worst = times(pitch_of(width), height);
    CUresult r = fr_linear_request(&q);
    if (r) return r;
    *out = (CUdeviceptr_v1)q.address;
    *pitch = (unsigned)q.pitch;
    return CUDA_SUCCESS;
}

/* ---- managed: in full, wherever its pages are ---- */

static CUresult alloc_managed(struct fr_request *q) { return REAL(cuMemAllocManaged)(&q->address, (size_t)q->size, q->flags); }

HOOK CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags)
{
    struct fr_request q = {.call = alloc_managed, .size = size, .worst = size, .flags = flags, .whole = true};
    if (!out || !size || (flags != 1 && flags != 2)) return REAL(cuMemAllocManaged)(out, size, flags);
    CUresult r = fr_linear_request(&q);
    if (!r) *out = q.address;
    return r;
}

/* ---- free: unknown addresses are left to the driver ---- */

/* This call may also free memory of a pool, and the pool may be smaller then. */
static CUresult free_of_pool(CUdeviceptr p)
{
    struct fr_shrinking s;
    CUdevice device;
    if (!atomic_load_explicit(&fr_pools_any, memory_order_relaxed)) return REAL(cuMemFree_v2)(p);
    fr_margin_piece_gone(p);
    if (unlikely(atomic_load_explicit(&fr_pieces_any, memory_order_relaxed))) fr_piece_freed(p);
    fr_pools_free_beside_waits();
    fr_pools_shrinking(&s, FR_WAITS);
    CUresult r = REAL(cuMemFree_v2)(p);
    int card = fr_card_here(&device);
    if (!r && card != FR_NO_CARD) fr_margin_tidy(card);
    fr_pools_shrunk(&s);
    return r;
}

HOOK CUresult cuMemFree_v2(CUdeviceptr p)
{
    struct fr_linear f;
    if (!fr_linear_free_begin(&f, p)) return free_of_pool(p);
    CUresult r = REAL(cuMemFree_v2)(p);
    fr_linear_free_end(&f, r);
    return r;
}

HOOK CUresult cuMemFree(CUdeviceptr_v1 p)
{
    struct fr_linear f;
    bool ours = fr_linear_free_begin(&f, p);
    CUresult r = REAL(cuMemFree)(p);
    if (ours) fr_linear_free_end(&f, r);
    return r;
}
