/* The hooks of all calls that launch kernels. Unpaced, a launch costs one look at a flag and the call itself. Paced, it goes through the
 * gate. Copies and fills are in copies.c. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/function.h"
#include "memory/own_events.h"
#include "memory/place.h"
#include "pacing/api_launch.h"
#include "pacing/gate.h"
#include "pacing/stream_state.h"

#include "cuda_abi.h"
#include "region.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static uint64_t shape(uint64_t x, uint64_t y, uint64_t z, uint64_t block, uint64_t shared)
{
    return ((x * 1000003 + y) * 1000003 + z) * 4099 + block * 131 + shared;
}

/* ---- kernels ---- */

/* A launch that needs no work here goes on to the driver by a jump: its arguments, most of which lie on the stack, stay where they are.
 * Everything else is in separate functions, so that the fast path need not save their registers. Those are reached by a jump, too. */
#define KERNEL(name, own, f, s, shape_of, parameters, arguments)                                   \
    static __attribute__((noinline)) CUresult name##_paced parameters                              \
    {                                                                                              \
        struct fr_work w = {(uintptr_t)(f), shape_of, s, own, 0, false};                           \
        PACED(w, REAL(name) arguments);                                                            \
    }                                                                                              \
    static __attribute__((noinline)) CUresult name##_with_care parameters                          \
    {                                                                                              \
        CUresult used = fr_function_used(f, s);                                                    \
        if (unlikely(used)) return used;                                                           \
        return fr_unpaced() ? REAL(name) arguments : name##_paced arguments;                       \
    }                                                                                              \
    HOOK CUresult name parameters                                                                  \
    {                                                                                              \
        __typeof__(&name) real = (__typeof__(&name))fr_known_function(FR_##name);                  \
        if (unlikely(!real || !fr_function_ready(f, s))) return name##_with_care arguments;        \
        return likely(fr_unpaced()) ? real arguments : name##_paced arguments;                     \
    }

#define LAUNCH(name, own)                                                                                                            \
    KERNEL(name, own, f, s, shape(gx, gy, gz, (uint64_t)bx * by * bz, shared),                                                       \
           (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, \
            void **parameters, void **extra),                                                                                        \
           (f, gx, gy, gz, bx, by, bz, shared, s, parameters, extra))
LAUNCH(cuLaunchKernel, false)
LAUNCH(cuLaunchKernel_ptsz, true)

#define COOPERATIVE(name, own)                                                                                                       \
    KERNEL(name, own, f, s, shape(gx, gy, gz, (uint64_t)bx * by * bz, shared),                                                       \
           (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, \
            void **parameters),                                                                                                      \
           (f, gx, gy, gz, bx, by, bz, shared, s, parameters))
COOPERATIVE(cuLaunchCooperativeKernel, false)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

static uint64_t shape_of_config(const CUlaunchConfig *c)
{
    return shape(c->gridDimX, c->gridDimY, c->gridDimZ, (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ, c->sharedMemBytes);
}

/* Another thread may change the structure during the call, so the driver gets the copy that was looked at. */
#define EXTENDED(name, own)                                                                                                            \
    static __attribute__((noinline)) CUresult name##_paced(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra)     \
    {                                                                                                                                  \
        CUlaunchConfig mine = *c;                                                                                                      \
        struct fr_work w = {(uintptr_t)f, shape_of_config(&mine), mine.hStream, own, 0, false};                                        \
        PACED(w, REAL(name)(&mine, f, parameters, extra));                                                                             \
    }                                                                                                                                  \
    static __attribute__((noinline)) CUresult name##_with_care(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra) \
    {                                                                                                                                  \
        if (!c) return REAL(name)(c, f, parameters, extra);                                                                            \
        CUlaunchConfig mine = *c;                                                                                                      \
        if (unlikely(fr_attributes_name_own(&mine))) return CUDA_ERROR_INVALID_HANDLE;                                                 \
        CUresult used = fr_function_used(f, mine.hStream);                                                                             \
        if (unlikely(used)) return used;                                                                                               \
        return fr_unpaced() ? REAL(name)(&mine, f, parameters, extra) : name##_paced(&mine, f, parameters, extra);                     \
    }                                                                                                                                  \
    HOOK CUresult name(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra)                                         \
    {                                                                                                                                  \
        __typeof__(&name) real = (__typeof__(&name))fr_known_function(FR_##name);                                                      \
        if (unlikely(!real || !c || c->numAttrs || !fr_function_ready(f, c->hStream))) return name##_with_care(c, f, parameters, extra); \
        return likely(fr_unpaced()) ? real(c, f, parameters, extra) : name##_paced(c, f, parameters, extra);                           \
    }
EXTENDED(cuLaunchKernelEx, false)
EXTENDED(cuLaunchKernelEx_ptsz, true)

/* The launch calls of CUDA 3: the program has set the block shape on the function before. */
HOOK CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream s)
{
    CUresult used = fr_function_used(f, s);
    if (unlikely(used)) return used;
    if (fr_unpaced()) return REAL(cuLaunchGridAsync)(f, width, height, s);
    struct fr_work w = {(uintptr_t)f, shape((uint64_t)width, (uint64_t)height, 1, 0, 0), s, false, 0, false};
    PACED(w, REAL(cuLaunchGridAsync)(f, width, height, s));
}

HOOK CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
    CUresult used = fr_function_used(f, NULL);
    if (unlikely(used)) return used;
    if (fr_unpaced()) return REAL(cuLaunchGrid)(f, width, height);
    struct fr_work w = {(uintptr_t)f, shape((uint64_t)width, (uint64_t)height, 1, 0, 0), NULL, false, 0, false};
    PACED(w, REAL(cuLaunchGrid)(f, width, height));
}

HOOK CUresult cuLaunch(CUfunction f)
{
    CUresult used = fr_function_used(f, NULL);
    if (unlikely(used)) return used;
    if (fr_unpaced()) return REAL(cuLaunch)(f);
    struct fr_work w = {(uintptr_t)f, 1, NULL, false, 0, false};
    PACED(w, REAL(cuLaunch)(f));
}

/* One call for several cards: each of its launches passes the gate of its own card before the call is made. A launch that has passed a
 * gate holds that card's turn until the call is made. So all programs pass the gates in the order of the cards, whatever order the list has. */
#define MULTI FR_MAX_CARDS

struct several {
    struct fr_ticket ticket;
    CUcontext context;
    CUdevice device;
    unsigned at; /* index in the list */
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
    struct fr_work w = {(uintptr_t)l->function, shape(l->gridDimX, l->gridDimY, l->gridDimZ, block, l->sharedMemBytes), l->hStream, false, 0, false};
    REAL(cuCtxSetCurrent)(s->context);
    fr_gate_enter(&s->ticket, &w);
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
        REAL(cuCtxSetCurrent)(all[i].context); /* events belong to this context */
        fr_gate_leave(&all[i].ticket, r);
    }
    REAL(cuCtxSetCurrent)(before);
    return r;
}
