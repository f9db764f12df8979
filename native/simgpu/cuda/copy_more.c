/* Less common copies: between contexts, from and to arrays by offset, many in one call. All of them use the three-dimensional copies of
 * copy.c. A decompression takes the time of writing its output; no bytes are unpacked. */
#include "array.h"

static CUDA_MEMCPY3D line(size_t size)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .WidthInBytes = size, .Height = 1, .Depth = 1};
}

/* ---- arrays ---- */

static CUresult between(CUdeviceptr d, CUarray to, size_t at, CUdeviceptr s, CUarray from, size_t of, size_t n, CUstream stream)
{
    CUDA_MEMCPY3D p = line(n);
    p.dstDevice = d;
    p.srcDevice = s;
    if (to) p.dstMemoryType = CU_MEMORYTYPE_ARRAY, p.dstArray = to, p.dstXInBytes = at;
    if (from) p.srcMemoryType = CU_MEMORYTYPE_ARRAY, p.srcArray = from, p.srcXInBytes = of;
    return sim_copy_call(&p, stream, true);
}

API CUresult cuMemcpyAtoA_v2(CUarray to, size_t at, CUarray from, size_t of, size_t n) { return between(0, to, at, 0, from, of, n, NULL); }
API CUresult cuMemcpyAtoA_v2_ptds(CUarray to, size_t at, CUarray from, size_t of, size_t n) { return between(0, to, at, 0, from, of, n, CU_STREAM_PER_THREAD); }
API CUresult cuMemcpyAtoD_v2(CUdeviceptr d, CUarray from, size_t of, size_t n) { return between(d, NULL, 0, 0, from, of, n, NULL); }
API CUresult cuMemcpyAtoD_v2_ptds(CUdeviceptr d, CUarray from, size_t of, size_t n) { return between(d, NULL, 0, 0, from, of, n, CU_STREAM_PER_THREAD); }
API CUresult cuMemcpyDtoA_v2(CUarray to, size_t at, CUdeviceptr s, size_t n) { return between(0, to, at, s, NULL, 0, n, NULL); }
API CUresult cuMemcpyDtoA_v2_ptds(CUarray to, size_t at, CUdeviceptr s, size_t n) { return between(0, to, at, s, NULL, 0, n, CU_STREAM_PER_THREAD); }

/* ---- between contexts: addresses are unique, so which contexts does not matter ---- */

static CUresult peer(const CUDA_MEMCPY3D_PEER *p, CUstream s, bool wait)
{
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D q = {p->srcXInBytes, p->srcY, p->srcZ, p->srcLOD, p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray, NULL,
                       p->srcPitch, p->srcHeight, p->dstXInBytes, p->dstY, p->dstZ, p->dstLOD, p->dstMemoryType, p->dstHost, p->dstDevice,
                       p->dstArray, NULL, p->dstPitch, p->dstHeight, p->WidthInBytes, p->Height, p->Depth};
    return sim_copy_call(&q, s, wait);
}

API CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *p) { return peer(p, NULL, true); }
API CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER *p) { return peer(p, CU_STREAM_PER_THREAD, true); }
API CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *p, CUstream s) { return peer(p, s, false); }
API CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER *p, CUstream s) { return peer(p, SIM_PER_THREAD(s), false); }

/* ---- many in one call ---- */

static CUresult list(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t n, size_t *failed, CUstream s)
{
    if (!to || !from || !sizes || !n || !s) return CUDA_ERROR_INVALID_VALUE; /* the legacy stream cannot take a batch */
    for (size_t i = 0; i < n; i++) {
        CUDA_MEMCPY3D p = line(sizes[i]);
        p.dstDevice = to[i];
        p.srcDevice = from[i];
        CUresult r = sim_copy_call(&p, s, false);
        if (r && failed) *failed = i;
        if (r) return r;
    }
    return CUDA_SUCCESS;
}

static CUresult operation(const CUDA_MEMCPY3D_BATCH_OP *o, CUstream s)
{
    CUDA_MEMCPY3D p = line(o->extent.width);
    p.Height = o->extent.height;
    p.Depth = o->extent.depth;
    if (o->src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY || o->dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) return CUDA_ERROR_NOT_SUPPORTED;
    p.srcDevice = o->src.op.ptr.ptr;
    p.srcPitch = o->src.op.ptr.rowLength;
    p.srcHeight = o->src.op.ptr.layerHeight;
    p.dstDevice = o->dst.op.ptr.ptr;
    p.dstPitch = o->dst.op.ptr.rowLength;
    p.dstHeight = o->dst.op.ptr.layerHeight;
    return sim_copy_call(&p, s, false);
}

static CUresult operations(size_t n, CUDA_MEMCPY3D_BATCH_OP *o, size_t *failed, CUstream s)
{
    if (!o || !n || !s) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n; i++) {
        CUresult r = operation(&o[i], s);
        if (r && failed) *failed = i;
        if (r) return r;
    }
    return CUDA_SUCCESS;
}

static CUresult decompress(CUmemDecompressParams *all, size_t n, size_t *failed, CUstream handle)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_stream *st = sim_stream_of(c, handle);
    if (!st) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    for (size_t i = 0; !r && i < n; i++) {
        r = all ? sim_submit(st, sim_fill_item(c, all[i].dstNumBytes), NULL) : CUDA_ERROR_INVALID_VALUE;
        if (r && failed) *failed = i;
    }
    return sim_leave(r);
}

typedef CUmemcpyAttributes attributes;
#define BATCH(name, s, stream)                                                                                                          \
    API CUresult cuMemcpyBatchAsync##name(CUdeviceptr *d, CUdeviceptr *f, size_t *z, size_t n, attributes *a, size_t *w, size_t as,      \
                                          size_t *failed, CUstream s) { return (void)a, (void)w, (void)as, list(d, f, z, n, failed, stream); } \
    API CUresult cuMemcpyBatchAsync_v2##name(CUdeviceptr *d, CUdeviceptr *f, size_t *z, size_t n, attributes *a, size_t *w, size_t as,   \
                                             CUstream s) { return (void)a, (void)w, (void)as, list(d, f, z, n, NULL, stream); }          \
    API CUresult cuMemcpyWithAttributesAsync##name(CUdeviceptr d, CUdeviceptr f, size_t n, attributes *a, CUstream s)                    \
    { return (void)a, list(&d, &f, &n, 1, NULL, stream); }                                                                              \
    API CUresult cuMemcpy3DBatchAsync##name(size_t n, CUDA_MEMCPY3D_BATCH_OP *o, size_t *failed, unsigned long long flags, CUstream s)   \
    { return (void)flags, operations(n, o, failed, stream); }                                                                           \
    API CUresult cuMemcpy3DBatchAsync_v2##name(size_t n, CUDA_MEMCPY3D_BATCH_OP *o, unsigned long long flags, CUstream s)                \
    { return (void)flags, operations(n, o, NULL, stream); }                                                                             \
    API CUresult cuMemcpy3DWithAttributesAsync##name(CUDA_MEMCPY3D_BATCH_OP *o, unsigned long long flags, CUstream s)                    \
    { return (void)flags, operations(1, o, NULL, stream); }                                                                             \
    API CUresult cuMemBatchDecompressAsync##name(CUmemDecompressParams *all, size_t n, unsigned flags, size_t *failed, CUstream s)       \
    { return (void)flags, decompress(all, n, failed, stream); }
BATCH(, s, s)
BATCH(_ptsz, s, SIM_PER_THREAD(s))
