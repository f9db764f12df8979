/* Copies and fills. The bytes move when the call is made; the time passes on the engines. A program that orders its accesses with streams and
 * events sees the same values as on a card. */
#include "array.h"

#include <string.h>

#define LATENCY_NS 1500.0

struct sim_item sim_copy_item(struct sim_ctx *ctx, size_t size, int engine)
{
    double ns = LATENCY_NS + (double)size / sim_card_of(ctx->device)->host_gbps;
    return (struct sim_item){.kind = SIM_COPY, .left_ns = (uint64_t)ns, .engine = (uint8_t)engine};
}

/* Within the card, the SMs' memory path does the copy: reads and writes share its bandwidth. */
struct sim_item sim_fill_item(struct sim_ctx *ctx, size_t size)
{
    double ns = LATENCY_NS + 2.0 * (double)size / sim_card_of(ctx->device)->memory_gbps;
    return (struct sim_item){.kind = SIM_KERNEL, .left_ns = (uint64_t)ns, .share = 100, .memory_bound = 1};
}

static bool range_ok(CUdeviceptr p, size_t size, bool on_device)
{
    struct sim_region *r = sim_region_find(p);
    if (!on_device) return p != 0;
    return r && size <= r->va + r->size - p;
}

static struct sim_item item_between(struct sim_ctx *ctx, bool from_device, bool to_device, size_t size)
{
    if (from_device && to_device) return sim_fill_item(ctx, size);
    return sim_copy_item(ctx, size, from_device ? SIM_TO_HOST : SIM_TO_DEVICE);
}


static CUresult submit_copy(struct sim_stream *st, const CUDA_MEMCPY3D *p, bool wait)
{
    struct sim_item item;
    uint64_t seq;
    if (sim_capturing(st)) {
        CUgraphNodeParams node = {.type = 1};
        node.memcpy.copyParams = *p;
        node.memcpy.copyCtx = st->ctx;
        return wait ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : sim_capture_node(st, &node);
    }
    CUresult r = sim_copy_3d(p, st->ctx, &item);
    if (!r) r = sim_submit(st, item, &seq);
    if (!r && wait) sim_wait(st->ctx->id, st->ctx->generation, seq);
    return r;
}

static CUresult copy(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream handle, bool wait)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_stream *st = sim_stream_of(c, handle);
    if (!st) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!size) return sim_leave(CUDA_SUCCESS);
    CUDA_MEMCPY3D p = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = src,
                       .dstDevice = dst, .WidthInBytes = size, .Height = 1, .Depth = 1};
    return sim_leave(submit_copy(st, &p, wait));
}

#define HOST(p) ((CUdeviceptr)(uintptr_t)(p))

/* Each copy has a synchronous and an asynchronous form, for the legacy and for the per-thread default stream. */
#define COPIES(sync, sync_ptds, async, async_ptsz, to_type, from_type, to, from, waits)                                 \
    API CUresult sync(to_type d, from_type s, size_t n) { return copy(to, from, n, NULL, waits); }                      \
    API CUresult sync_ptds(to_type d, from_type s, size_t n) { return copy(to, from, n, CU_STREAM_PER_THREAD, waits); } \
    API CUresult async(to_type d, from_type s, size_t n, CUstream h) { return copy(to, from, n, h, false); }            \
    API CUresult async_ptsz(to_type d, from_type s, size_t n, CUstream h) { return copy(to, from, n, SIM_PER_THREAD(h), false); }

COPIES(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, CUdeviceptr, const void *, d, HOST(s), true)
COPIES(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, void *, CUdeviceptr, HOST(d), s, true)
COPIES(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, CUdeviceptr, CUdeviceptr, d, s, false)
COPIES(cuMemcpy, cuMemcpy_ptds, cuMemcpyAsync, cuMemcpyAsync_ptsz, CUdeviceptr, CUdeviceptr, d, s, true)

API CUresult cuMemcpyPeer(CUdeviceptr d, CUcontext dc, CUdeviceptr s, CUcontext sc, size_t n) { return (void)dc, (void)sc, copy(d, s, n, NULL, true); }
API CUresult cuMemcpyPeer_ptds(CUdeviceptr d, CUcontext dc, CUdeviceptr s, CUcontext sc, size_t n) { return (void)dc, (void)sc, copy(d, s, n, CU_STREAM_PER_THREAD, true); }
API CUresult cuMemcpyPeerAsync(CUdeviceptr d, CUcontext dc, CUdeviceptr s, CUcontext sc, size_t n, CUstream h) { return (void)dc, (void)sc, copy(d, s, n, h, false); }
API CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr d, CUcontext dc, CUdeviceptr s, CUcontext sc, size_t n, CUstream h) { return (void)dc, (void)sc, copy(d, s, n, SIM_PER_THREAD(h), false); }

/* ---- two and three dimensions ---- */

struct side {
    char *base; /* NULL: contents are not kept */
    size_t pitch, slice;
    bool device;
};

static bool array_side(struct side *s, struct sim_array *a, size_t x, size_t y, size_t z)
{
    if (!SIM_VALID(a, ARRAY)) return false;
    char *base = a->bytes ? sim_bytes_touch(a->bytes) : NULL;
    *s = (struct side){base ? base + z * a->row * a->rows + y * a->row + x : NULL, a->row, a->row * a->rows, true};
    return true;
}

static bool linear_side(struct side *s, CUdeviceptr p, size_t pitch, size_t height, size_t x, size_t y, size_t z, const CUDA_MEMCPY3D *all)
{
    if (!pitch) pitch = x + all->WidthInBytes;
    if (!height) height = y + all->Height;
    CUdeviceptr first = p + z * pitch * height + y * pitch + x;
    size_t span = (all->Depth - 1) * pitch * height + (all->Height - 1) * pitch + all->WidthInBytes;
    char *base = sim_contents(first, span, &s->device);
    s->base = base;
    s->pitch = pitch;
    s->slice = pitch * height;
    return range_ok(first, span, s->device);
}

static bool source(struct side *s, const CUDA_MEMCPY3D *p)
{
    if (p->srcMemoryType == CU_MEMORYTYPE_ARRAY) return array_side(s, p->srcArray, p->srcXInBytes, p->srcY, p->srcZ);
    CUdeviceptr at = p->srcMemoryType == CU_MEMORYTYPE_HOST ? HOST(p->srcHost) : p->srcDevice;
    return linear_side(s, at, p->srcPitch, p->srcHeight, p->srcXInBytes, p->srcY, p->srcZ, p);
}

static bool destination(struct side *s, const CUDA_MEMCPY3D *p)
{
    if (p->dstMemoryType == CU_MEMORYTYPE_ARRAY) return array_side(s, p->dstArray, p->dstXInBytes, p->dstY, p->dstZ);
    CUdeviceptr at = p->dstMemoryType == CU_MEMORYTYPE_HOST ? HOST(p->dstHost) : p->dstDevice;
    return linear_side(s, at, p->dstPitch, p->dstHeight, p->dstXInBytes, p->dstY, p->dstZ, p);
}

CUresult sim_copy_3d(const CUDA_MEMCPY3D *p, struct sim_ctx *ctx, struct sim_item *item)
{
    struct side from, to;
    if (!p->WidthInBytes || !p->Height || !p->Depth) {
        *item = (struct sim_item){.kind = SIM_MARK};
        return CUDA_SUCCESS;
    }
    if (!source(&from, p) || !destination(&to, p)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t z = 0; z < p->Depth; z++)
        for (size_t y = 0; y < p->Height; y++) {
            if (!to.base) break;
            char *d = to.base + z * to.slice + y * to.pitch;
            if (from.base) memmove(d, from.base + z * from.slice + y * from.pitch, p->WidthInBytes);
            else if (!to.device) memset(d, 0, p->WidthInBytes); /* contents too large to keep read as zero */
        }
    *item = item_between(ctx, from.device, to.device, p->WidthInBytes * p->Height * p->Depth);
    return CUDA_SUCCESS;
}

CUresult sim_copy_call(const CUDA_MEMCPY3D *p, CUstream handle, bool wait)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_stream *st = sim_stream_of(c, handle);
    if (!p) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    return sim_leave(st ? submit_copy(st, p, wait) : CUDA_ERROR_INVALID_HANDLE);
}

static CUresult copy_2d(const CUDA_MEMCPY2D *p, CUstream handle, bool wait)
{
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D q = {p->srcXInBytes, p->srcY, 0, 0, p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray, NULL,
                       p->srcPitch, 0, p->dstXInBytes, p->dstY, 0, 0, p->dstMemoryType, p->dstHost, p->dstDevice,
                       p->dstArray, NULL, p->dstPitch, 0, p->WidthInBytes, p->Height, 1};
    return sim_copy_call(&q, handle, wait);
}

API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *p) { return copy_2d(p, NULL, true); }
API CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *p) { return copy_2d(p, CU_STREAM_PER_THREAD, true); }
API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *p) { return copy_2d(p, NULL, true); }
API CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *p) { return copy_2d(p, CU_STREAM_PER_THREAD, true); }
API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream s) { return copy_2d(p, s, false); }
API CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *p, CUstream s) { return copy_2d(p, SIM_PER_THREAD(s), false); }
API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *p) { return sim_copy_call(p, NULL, true); }
API CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *p) { return sim_copy_call(p, CU_STREAM_PER_THREAD, true); }
API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream s) { return sim_copy_call(p, s, false); }
API CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *p, CUstream s) { return sim_copy_call(p, SIM_PER_THREAD(s), false); }

/* ---- fills ---- */

static void fill_row(char *at, unsigned value, unsigned element, size_t count)
{
    uint16_t half = (uint16_t)value;
    if (element == 1) {
        memset(at, (int)(value & 0xff), count);
        return;
    }
    for (size_t i = 0; i < count; i++) memcpy(at + i * element, element == 2 ? (void *)&half : (void *)&value, element);
}

CUresult sim_fill(CUdeviceptr dst, size_t pitch, unsigned value, unsigned element, size_t width, size_t height)
{
    bool device;
    size_t row = width * element, span = (height - 1) * pitch + row;
    char *at = sim_contents(dst, span, &device);
    if (dst % element || !sim_region_find(dst) || !range_ok(dst, span, device)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t y = 0; at && y < height; y++) fill_row(at + y * pitch, value, element, width);
    return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr dst, size_t pitch, unsigned value, unsigned element, size_t width, size_t height, CUstream handle)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_stream *st = sim_stream_of(c, handle);
    if (!st) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!width || !height) return sim_leave(CUDA_SUCCESS);
    if (sim_capturing(st)) {
        CUgraphNodeParams p = {.type = 2, .memset = {dst, pitch, value, element, width, height}};
        return sim_leave(sim_capture_node(st, &p));
    }
    r = sim_fill(dst, pitch, value, element, width, height);
    return sim_leave(r ? r : sim_submit(st, sim_fill_item(c, width * element * height), NULL));
}

#define FILLS(name, name_v, type, element)                                                                                        \
    API CUresult name##_v2(CUdeviceptr d, type v, size_t n) { return fill(d, 0, v, element, n, 1, NULL); }                        \
    API CUresult name##_v2_ptds(CUdeviceptr d, type v, size_t n) { return fill(d, 0, v, element, n, 1, CU_STREAM_PER_THREAD); }   \
    API CUresult name##Async(CUdeviceptr d, type v, size_t n, CUstream s) { return fill(d, 0, v, element, n, 1, s); }             \
    API CUresult name##Async_ptsz(CUdeviceptr d, type v, size_t n, CUstream s) { return fill(d, 0, v, element, n, 1, SIM_PER_THREAD(s)); } \
    API CUresult name_v##_v2(CUdeviceptr d, size_t p, type v, size_t w, size_t h) { return fill(d, p, v, element, w, h, NULL); }  \
    API CUresult name_v##_v2_ptds(CUdeviceptr d, size_t p, type v, size_t w, size_t h) { return fill(d, p, v, element, w, h, CU_STREAM_PER_THREAD); } \
    API CUresult name_v##Async(CUdeviceptr d, size_t p, type v, size_t w, size_t h, CUstream s) { return fill(d, p, v, element, w, h, s); } \
    API CUresult name_v##Async_ptsz(CUdeviceptr d, size_t p, type v, size_t w, size_t h, CUstream s) { return fill(d, p, v, element, w, h, SIM_PER_THREAD(s)); }

FILLS(cuMemsetD8, cuMemsetD2D8, unsigned char, 1)
FILLS(cuMemsetD16, cuMemsetD2D16, unsigned short, 2)
FILLS(cuMemsetD32, cuMemsetD2D32, unsigned, 4)
