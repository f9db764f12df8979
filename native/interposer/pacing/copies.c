/* Copies and fills. Within a card they run like kernels, so they are paced like kernels. Copies over the bus use engines of their own
 * and are not paced.
 *
 * Some calls say by their type that both ends are on a card (DtoD, arrays). For the others, even those that name the host, the library
 * asks the driver for the type of each pointer, but only if the card is paced: unpaced, a copy costs one load more. The time of a copy is
 * learned by its function and its size, rounded to an eighth. Until the first is measured, BYTES_PER_NS is assumed. */
#include "pacing/copies.h"

#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/api_pool.h"
#include "pacing/api_copies.h"
#include "pacing/api_launch.h"
#include "pacing/gate.h"
#include "pacing/stream_state.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BYTES_PER_NS 500

static bool is_on_card(CUdeviceptr p)
{
    int type = 0;
    return !REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p) && type == CU_MEMORYTYPE_DEVICE;
}

bool fr_copy_within(CUdeviceptr to, CUdeviceptr from) { return is_on_card(to) && is_on_card(from); }

static uint64_t size_class(uint64_t bytes)
{
    unsigned shift = bytes < 16 ? 0 : 60 - (unsigned)__builtin_clzll(bytes); /* keeps four bits */
    return (bytes >> shift) << shift | 1;
}

struct fr_work fr_copy_work(const void *function, uint64_t bytes, CUstream s, bool own)
{
    uint64_t ns = 2000 + bytes / BYTES_PER_NS;
    return (struct fr_work){(uintptr_t)function, size_class(bytes), s, own, ns < 1000000000 ? (uint32_t)ns : 1000000000, false};
}

/* ---- fills, and copies whose ends are on a card by their types ---- */

#define MOVE(name, own, bytes, stream, parameters, arguments)                                    \
    HOOK CUresult name parameters                                                                \
    {                                                                                            \
        if (fr_unpaced()) return REAL(name) arguments;                                           \
        struct fr_work work = fr_copy_work((const void *)&name, (uint64_t)(bytes), stream, own); \
        PACED(work, REAL(name) arguments);                                                       \
    }

#define COPY(name, own) MOVE(name, own, n, NULL, (CUdeviceptr to, CUdeviceptr from, size_t n), (to, from, n))
#define COPY_ASYNC(name, own) MOVE(name, own, n, s, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))
COPY(cuMemcpyDtoD_v2, false)
COPY(cuMemcpyDtoD_v2_ptds, true)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, false)
COPY_ASYNC(cuMemcpyDtoDAsync_v2_ptsz, true)

#define ARRAYS(name, own)                                                                                                           \
    MOVE(cuMemcpyAtoA_v2##name, own, n, NULL, (CUarray to, size_t at, CUarray from, size_t of, size_t n), (to, at, from, of, n))    \
    MOVE(cuMemcpyAtoD_v2##name, own, n, NULL, (CUdeviceptr to, CUarray from, size_t of, size_t n), (to, from, of, n))               \
    MOVE(cuMemcpyDtoA_v2##name, own, n, NULL, (CUarray to, size_t at, CUdeviceptr from, size_t n), (to, at, from, n))
ARRAYS(, false)
ARRAYS(_ptds, true)

#define FILL(bits, type)                                                                                                          \
    MOVE(cuMemsetD##bits##_v2, false, n * (bits / 8), NULL, (CUdeviceptr to, type v, size_t n), (to, v, n))                       \
    MOVE(cuMemsetD##bits##_v2_ptds, true, n * (bits / 8), NULL, (CUdeviceptr to, type v, size_t n), (to, v, n))                   \
    MOVE(cuMemsetD##bits##Async, false, n * (bits / 8), s, (CUdeviceptr to, type v, size_t n, CUstream s), (to, v, n, s))         \
    MOVE(cuMemsetD##bits##Async_ptsz, true, n * (bits / 8), s, (CUdeviceptr to, type v, size_t n, CUstream s), (to, v, n, s))     \
    MOVE(cuMemsetD2D##bits##_v2, false, w * h * (bits / 8), NULL, (CUdeviceptr to, size_t pitch, type v, size_t w, size_t h),     \
         (to, pitch, v, w, h))                                                                                                    \
    MOVE(cuMemsetD2D##bits##_v2_ptds, true, w * h * (bits / 8), NULL, (CUdeviceptr to, size_t pitch, type v, size_t w, size_t h), \
         (to, pitch, v, w, h))                                                                                                    \
    MOVE(cuMemsetD2D##bits##Async, false, w * h * (bits / 8), s,                                                                  \
         (CUdeviceptr to, size_t pitch, type v, size_t w, size_t h, CUstream s), (to, pitch, v, w, h, s))                         \
    MOVE(cuMemsetD2D##bits##Async_ptsz, true, w * h * (bits / 8), s,                                                              \
         (CUdeviceptr to, size_t pitch, type v, size_t w, size_t h, CUstream s), (to, pitch, v, w, h, s))
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned)

/* ---- copies that may go over the bus ---- */

#define MAY_MOVE(name, own, within, bytes, stream, parameters, arguments)                        \
    HOOK CUresult name parameters                                                                \
    {                                                                                            \
        if (fr_unpaced() || !(within)) return REAL(name) arguments;                              \
        struct fr_work work = fr_copy_work((const void *)&name, (uint64_t)(bytes), stream, own); \
        PACED(work, REAL(name) arguments);                                                       \
    }

#define ANY(name, own) MAY_MOVE(name, own, fr_copy_within(to, from), n, NULL, (CUdeviceptr to, CUdeviceptr from, size_t n), (to, from, n))
#define ANY_ASYNC(name, own)                                                                                                  \
    MAY_MOVE(name, own, fr_copy_within(to, from), n, s, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))
ANY(cuMemcpy, false)
ANY(cuMemcpy_ptds, true)
ANY_ASYNC(cuMemcpyAsync, false)
ANY_ASYNC(cuMemcpyAsync_ptsz, true)

#define PEER(name, own)                                                                                             \
    MAY_MOVE(name, own, fr_copy_within(to, from), n, NULL,                                                          \
             (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t n),            \
             (to, to_context, from, from_context, n))
#define PEER_ASYNC(name, own)                                                                                        \
    MAY_MOVE(name, own, fr_copy_within(to, from), n, s,                                                              \
             (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t n, CUstream s), \
             (to, to_context, from, from_context, n, s))
PEER(cuMemcpyPeer, false)
PEER(cuMemcpyPeer_ptds, true)
PEER_ASYNC(cuMemcpyPeerAsync, false)
PEER_ASYNC(cuMemcpyPeerAsync_ptsz, true)

/* The argument for the host's end may be a pointer to the card: the driver goes by the address. */
#define HOST_END(name, own, host, bytes, stream, parameters, arguments) \
    MAY_MOVE(name, own, is_on_card((CUdeviceptr)(uintptr_t)(host)), bytes, stream, parameters, arguments)
#define HOSTS(sync, async, own)                                                                                                          \
    HOST_END(cuMemcpyHtoD##sync, own, from, n, NULL, (CUdeviceptr to, const void *from, size_t n), (to, from, n))                            \
    HOST_END(cuMemcpyDtoH##sync, own, to, n, NULL, (void *to, CUdeviceptr from, size_t n), (to, from, n))                                    \
    HOST_END(cuMemcpyHtoA##sync, own, from, n, NULL, (CUarray to, size_t at, const void *from, size_t n), (to, at, from, n))                 \
    HOST_END(cuMemcpyAtoH##sync, own, to, n, NULL, (void *to, CUarray from, size_t of, size_t n), (to, from, of, n))                         \
    HOST_END(cuMemcpyHtoD##async, own, from, n, s, (CUdeviceptr to, const void *from, size_t n, CUstream s), (to, from, n, s))               \
    HOST_END(cuMemcpyDtoH##async, own, to, n, s, (void *to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))                       \
    HOST_END(cuMemcpyHtoA##async, own, from, n, s, (CUarray to, size_t at, const void *from, size_t n, CUstream s), (to, at, from, n, s))    \
    HOST_END(cuMemcpyAtoH##async, own, to, n, s, (void *to, CUarray from, size_t of, size_t n, CUstream s), (to, from, of, n, s))
HOSTS(_v2, Async_v2, false)
HOSTS(_v2_ptds, Async_v2_ptsz, true)

static bool end_on_card(int type, CUdeviceptr p, const void *host)
{
    if (type == CU_MEMORYTYPE_HOST) return is_on_card((CUdeviceptr)(uintptr_t)host);
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY || (type == CU_MEMORYTYPE_UNIFIED && is_on_card(p));
}
#define WITHIN(p)                                                                                                                        \
    ((p) && end_on_card((p)->srcMemoryType, (p)->srcDevice, (p)->srcHost) && end_on_card((p)->dstMemoryType, (p)->dstDevice, (p)->dstHost))

#define PLANE(name, own) MAY_MOVE(name, own, WITHIN(p), p->WidthInBytes * p->Height, NULL, (const CUDA_MEMCPY2D *p), (p))
#define PLANE_ASYNC(name, own) MAY_MOVE(name, own, WITHIN(p), p->WidthInBytes * p->Height, s, (const CUDA_MEMCPY2D *p, CUstream s), (p, s))
PLANE(cuMemcpy2D_v2, false)
PLANE(cuMemcpy2D_v2_ptds, true)
PLANE(cuMemcpy2DUnaligned_v2, false)
PLANE(cuMemcpy2DUnaligned_v2_ptds, true)
PLANE_ASYNC(cuMemcpy2DAsync_v2, false)
PLANE_ASYNC(cuMemcpy2DAsync_v2_ptsz, true)

#define SPACE(name, own, type) MAY_MOVE(name, own, WITHIN(p), p->WidthInBytes * p->Height * p->Depth, NULL, (const type *p), (p))
#define SPACE_ASYNC(name, own, type) \
    MAY_MOVE(name, own, WITHIN(p), p->WidthInBytes * p->Height * p->Depth, s, (const type *p, CUstream s), (p, s))
SPACE(cuMemcpy3D_v2, false, CUDA_MEMCPY3D)
SPACE(cuMemcpy3D_v2_ptds, true, CUDA_MEMCPY3D)
SPACE_ASYNC(cuMemcpy3DAsync_v2, false, CUDA_MEMCPY3D)
SPACE_ASYNC(cuMemcpy3DAsync_v2_ptsz, true, CUDA_MEMCPY3D)
SPACE(cuMemcpy3DPeer, false, CUDA_MEMCPY3D_PEER)
SPACE(cuMemcpy3DPeer_ptds, true, CUDA_MEMCPY3D_PEER)
SPACE_ASYNC(cuMemcpy3DPeerAsync, false, CUDA_MEMCPY3D_PEER)
SPACE_ASYNC(cuMemcpy3DPeerAsync_ptsz, true, CUDA_MEMCPY3D_PEER)
