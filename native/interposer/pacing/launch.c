/* Every call that puts work on a card. Unpaced it is one look at a flag and the call itself; paced, it goes through the gate.
 * Copies over the bus have engines of their own and pass. Copies and fills within the card run as kernels do: large ones
 * count as work of the length that the card's memory allows. */
#include "pace.h"

#define LARGE 1048576ull
#define BYTES_PER_NS 500 /* of a copy within a card; what it really took is measured by the arbiter */

static uint64_t shape(uint64_t x, uint64_t y, uint64_t z, uint64_t block, uint64_t shared)
{
    return ((x * 1000003 + y) * 1000003 + z) * 4099 + block * 131 + shared;
}

#define PACED(work, call)                                                 \
    do {                                                                  \
        struct fr_ticket t_;                                              \
        fr_pace_enter(&t_, &(work));                                      \
        CUresult r_ = (call);                                             \
        fr_pace_leave(&t_, r_);                                           \
        return r_;                                                        \
    } while (0)

/* ---- kernels ---- */

#define LAUNCH(name, own)                                                                                                        \
    HOOK CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
                       CUstream s, void **parameters, void **extra)                                                              \
    {                                                                                                                            \
        CUresult used = fr_function_used(f, s);                                                                                  \
        if (unlikely(used)) return used;                                                                                         \
        if (fr_unpaced()) return REAL(name)(f, gx, gy, gz, bx, by, bz, shared, s, parameters, extra);                            \
        struct fr_work w = {(uintptr_t)f, shape(gx, gy, gz, (uint64_t)bx * by * bz, shared), s, own, 0};                         \
        PACED(w, REAL(name)(f, gx, gy, gz, bx, by, bz, shared, s, parameters, extra));                                           \
    }
LAUNCH(cuLaunchKernel, false)
LAUNCH(cuLaunchKernel_ptsz, true)

#define COOPERATIVE(name, own)                                                                                                   \
    HOOK CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
                       CUstream s, void **parameters)                                                                            \
    {                                                                                                                            \
        CUresult used = fr_function_used(f, s);                                                                                  \
        if (unlikely(used)) return used;                                                                                         \
        if (fr_unpaced()) return REAL(name)(f, gx, gy, gz, bx, by, bz, shared, s, parameters);                                   \
        struct fr_work w = {(uintptr_t)f, shape(gx, gy, gz, (uint64_t)bx * by * bz, shared), s, own, 0};                         \
        PACED(w, REAL(name)(f, gx, gy, gz, bx, by, bz, shared, s, parameters));                                                  \
    }
COOPERATIVE(cuLaunchCooperativeKernel, false)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

#define EXTENDED(name, own)                                                                                                      \
    HOOK CUresult name(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra)                                   \
    {                                                                                                                            \
        CUresult used = fr_function_used(f, c ? c->hStream : NULL);                                                                                  \
        if (unlikely(used)) return used;                                                                                         \
        if (!c || fr_unpaced()) return REAL(name)(c, f, parameters, extra);                                                      \
        uint64_t block = (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ;                                                   \
        struct fr_work w = {(uintptr_t)f, shape(c->gridDimX, c->gridDimY, c->gridDimZ, block, c->sharedMemBytes), c->hStream, own, 0}; \
        PACED(w, REAL(name)(c, f, parameters, extra));                                                                           \
    }
EXTENDED(cuLaunchKernelEx, false)
EXTENDED(cuLaunchKernelEx_ptsz, true)

/* The forms of CUDA 3: their shape was set on the function before. */
HOOK CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream s)
{
    CUresult used = fr_function_used(f, s);
    if (unlikely(used)) return used;
    if (fr_unpaced()) return REAL(cuLaunchGridAsync)(f, width, height, s);
    struct fr_work w = {(uintptr_t)f, shape((uint64_t)width, (uint64_t)height, 1, 0, 0), s, false, 0};
    PACED(w, REAL(cuLaunchGridAsync)(f, width, height, s));
}

HOOK CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
    CUresult used = fr_function_used(f, NULL);
    if (unlikely(used)) return used;
    if (fr_unpaced()) return REAL(cuLaunchGrid)(f, width, height);
    struct fr_work w = {(uintptr_t)f, shape((uint64_t)width, (uint64_t)height, 1, 0, 0), NULL, false, 0};
    PACED(w, REAL(cuLaunchGrid)(f, width, height));
}

HOOK CUresult cuLaunch(CUfunction f)
{
    CUresult used = fr_function_used(f, NULL);
    if (unlikely(used)) return used;
    if (fr_unpaced()) return REAL(cuLaunch)(f);
    struct fr_work w = {(uintptr_t)f, 1, NULL, false, 0};
    PACED(w, REAL(cuLaunch)(f));
}

/* One call for several cards: each of its launches passes its own card's gate before any goes. Who is through a gate holds up
 * that card until the call is made, so all programs pass in one order, that of the cards, whatever order the list has. */
#define MULTI FR_MAX_CARDS

struct several {
    struct fr_ticket ticket;
    CUcontext context;
    CUdevice device;
    unsigned at; /* in the list */
};

static bool sort_by_card(struct several *all, const CUDA_LAUNCH_PARAMS *list, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct several next = {.at = i};
        if (REAL(cuStreamGetCtx)(list[i].hStream, &next.context) || REAL(cuCtxSetCurrent)(next.context) || fr_card_here(&next.device) < 0) return false;
        unsigned k = i;
        for (; k > 0 && all[k - 1].device > next.device; k--) all[k] = all[k - 1];
        all[k] = next;
    }
    return true;
}

static void enter_one(struct several *s, const CUDA_LAUNCH_PARAMS *l)
{
    uint64_t block = (uint64_t)l->blockDimX * l->blockDimY * l->blockDimZ;
    struct fr_work w = {(uintptr_t)l->function, shape(l->gridDimX, l->gridDimY, l->gridDimZ, block, l->sharedMemBytes), l->hStream, false, 0};
    REAL(cuCtxSetCurrent)(s->context);
    fr_pace_enter(&s->ticket, &w);
}

HOOK CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
    struct several all[MULTI];
    CUcontext before = NULL;
    for (unsigned i = 0; list && i < count; i++) {
        CUresult used = fr_function_used(list[i].function, list[i].hStream);
        if (unlikely(used)) return used;
    }
    if (!list || count > MULTI || fr_unpaced()) return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    REAL(cuCtxGetCurrent)(&before);
    bool sorted = sort_by_card(all, list, count); /* else the driver will refuse it */
    for (unsigned i = 0; sorted && i < count; i++) enter_one(&all[i], &list[all[i].at]);
    REAL(cuCtxSetCurrent)(before);
    CUresult r = REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    for (unsigned i = 0; sorted && i < count; i++) {
        REAL(cuCtxSetCurrent)(all[i].context); /* marks belong to it */
        fr_pace_leave(&all[i].ticket, r);
    }
    REAL(cuCtxSetCurrent)(before);
    return r;
}

/* ---- copies and fills within the card ---- */

static uint32_t length_of(uint64_t bytes)
{
    uint64_t ns = 2000 + bytes / BYTES_PER_NS;
    return ns < 1000000000 ? (uint32_t)ns : 1000000000;
}

#define MOVE(name, own, bytes, stream, parameters, arguments)                       \
    HOOK CUresult name parameters                                                   \
    {                                                                               \
        uint64_t size_ = (uint64_t)(bytes);                                         \
        if (size_ < LARGE || fr_unpaced()) return REAL(name) arguments;             \
        struct fr_work w = {(uintptr_t)&name, size_, stream, own, length_of(size_)}; \
        PACED(w, REAL(name) arguments);                                             \
    }

#define COPY(name, own) MOVE(name, own, n, NULL, (CUdeviceptr to, CUdeviceptr from, size_t n), (to, from, n))
#define COPY_ASYNC(name, own) MOVE(name, own, n, s, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))
COPY(cuMemcpyDtoD_v2, false)
COPY(cuMemcpyDtoD_v2_ptds, true)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, false)
COPY_ASYNC(cuMemcpyDtoDAsync_v2_ptsz, true)

#define FILL(bits, type)                                                                                                            \
    MOVE(cuMemsetD##bits##_v2, false, n * (bits / 8), NULL, (CUdeviceptr to, type v, size_t n), (to, v, n))                          \
    MOVE(cuMemsetD##bits##_v2_ptds, true, n * (bits / 8), NULL, (CUdeviceptr to, type v, size_t n), (to, v, n))                      \
    MOVE(cuMemsetD##bits##Async, false, n * (bits / 8), s, (CUdeviceptr to, type v, size_t n, CUstream s), (to, v, n, s))            \
    MOVE(cuMemsetD##bits##Async_ptsz, true, n * (bits / 8), s, (CUdeviceptr to, type v, size_t n, CUstream s), (to, v, n, s))        \
    MOVE(cuMemsetD2D##bits##_v2, false, w_ * h * (bits / 8), NULL, (CUdeviceptr to, size_t pitch, type v, size_t w_, size_t h),      \
         (to, pitch, v, w_, h))                                                                                                     \
    MOVE(cuMemsetD2D##bits##_v2_ptds, true, w_ * h * (bits / 8), NULL, (CUdeviceptr to, size_t pitch, type v, size_t w_, size_t h),  \
         (to, pitch, v, w_, h))                                                                                                     \
    MOVE(cuMemsetD2D##bits##Async, false, w_ * h * (bits / 8), s,                                                                   \
         (CUdeviceptr to, size_t pitch, type v, size_t w_, size_t h, CUstream s), (to, pitch, v, w_, h, s))                         \
    MOVE(cuMemsetD2D##bits##Async_ptsz, true, w_ * h * (bits / 8), s,                                                               \
         (CUdeviceptr to, size_t pitch, type v, size_t w_, size_t h, CUstream s), (to, pitch, v, w_, h, s))
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned)
