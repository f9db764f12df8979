/* Launching kernels. A simulated kernel computes nothing: it takes time and a share of the SMs. */
#include "module.h"

#include <stdlib.h>
#include <string.h>

#define THREADS_PER_SM 2048
#define DEFAULT_WAVE_US 5.0

static double default_wave_us(void)
{
    static double value = -1;
    const char *set = getenv("SIMGPU_KERNEL_US");
    if (value < 0) value = set && *set ? atof(set) : DEFAULT_WAVE_US;
    return value;
}

static const void *parameter(const struct sim_function *f, unsigned i, void **params, void **extra)
{
    if (i >= f->param_count) return NULL;
    if (params) return params[i];
    for (void **e = extra; e && *e; e += 2) /* pairs of key and value, ended by NULL */
        if (*e == (void *)1) return (const char *)e[1] + f->param_offset[i];
    return NULL;
}

static bool integer_parameter(const struct sim_function *f, unsigned i, void **params, void **extra, double *out)
{
    const void *at = parameter(f, i, params, extra);
    uint32_t narrow;
    uint64_t wide;
    if (!at) return false;
    if (f->param_size[i] == 8) {
        memcpy(&wide, at, sizeof wide);
        *out = (double)wide;
    } else {
        memcpy(&narrow, at, sizeof narrow);
        *out = narrow;
    }
    return true;
}

/* The number of blocks that the whole card can run at once. */
static double capacity(const struct sim_ctx *ctx, const struct sim_function *f, double threads)
{
    double per_sm = f->timing.blocks_per_sm;
    if (per_sm <= 0) per_sm = (double)(long)(THREADS_PER_SM / (threads < 1 ? 1 : threads));
    if (per_sm > 32) per_sm = 32;
    return per_sm * sim_card_of(ctx->device)->sm_count;
}

CUresult sim_kernel_item(struct sim_ctx *ctx, struct sim_function *f, const unsigned grid[3], const unsigned block[3],
                         void **params, void **extra, struct sim_item *item)
{
    double blocks = (double)grid[0] * grid[1] * grid[2], threads = (double)block[0] * block[1] * block[2];
    if (blocks < 1 || threads < 1 || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
    double room = capacity(ctx, f, threads), waves = (double)(uint64_t)((blocks + room - 1) / room);
    double us = f->timing.time_us, share = f->timing.share;
    if (f->timing.time_param >= 0 && !integer_parameter(f, (unsigned)f->timing.time_param, params, extra, &us))
        return CUDA_ERROR_INVALID_VALUE;
    if (us < 0) us = waves * (f->timing.per_wave_us >= 0 ? f->timing.per_wave_us : default_wave_us());
    if (share < 0) share = blocks / room;
    if (share > 1) share = 1;
    *item = (struct sim_item){.kind = SIM_KERNEL, .left_ns = (uint64_t)(us * 1000), .share = (uint16_t)(share * 1000)};
    double number = 0;
    if (f->timing.meet > 1 && integer_parameter(f, 1, params, extra, &number)) item->meet = (uint32_t)number, item->peers = (uint8_t)f->timing.meet;
    struct sim_ctx *own = sim_function_context(f);
    CUresult r = sim_buffers_use(own ? own : ctx, f->local_bytes);
    return r ? r : sim_function_load(ctx, f);
}

static CUresult launch(CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned shared, CUstream handle,
                       void **params, void **extra, bool cooperative)
{
    struct sim_ctx *c;
    struct sim_item item;
    CUresult r = sim_enter_for(handle, &c);
    if (r) return r;
    if (!SIM_VALID(f, FUNCTION)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    struct sim_stream *st = sim_stream_of(c, handle);
    if (!st) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (sim_capturing(st)) {
        CUgraphNodeParams p = {.type = 0, .kernel = {f, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, params, extra, NULL, c}};
        return sim_leave(sim_capture_node(st, &p));
    }
    r = sim_kernel_item(st->ctx, f, grid, block, params, extra, &item);
    double blocks = (double)grid[0] * grid[1] * grid[2];
    if (!r && cooperative && blocks > capacity(st->ctx, f, (double)block[0] * block[1] * block[2])) r = CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return sim_leave(r ? r : sim_submit(st, item, NULL));
}

#define DIMENSIONS unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define GRID (unsigned[]){gx, gy, gz}
#define BLOCK (unsigned[]){bx, by, bz}

API CUresult cuLaunchKernel(CUfunction f, DIMENSIONS, CUstream s, void **p, void **e)
{
    return launch(f, GRID, BLOCK, shared, s, p, e, false);
}
API CUresult cuLaunchKernel_ptsz(CUfunction f, DIMENSIONS, CUstream s, void **p, void **e)
{
    return launch(f, GRID, BLOCK, shared, SIM_PER_THREAD(s), p, e, false);
}
API CUresult cuLaunchCooperativeKernel(CUfunction f, DIMENSIONS, CUstream s, void **p)
{
    return launch(f, GRID, BLOCK, shared, s, p, NULL, true);
}
API CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, DIMENSIONS, CUstream s, void **p)
{
    return launch(f, GRID, BLOCK, shared, SIM_PER_THREAD(s), p, NULL, true);
}

static CUresult launch_config(const CUlaunchConfig *c, CUstream s, CUfunction f, void **p, void **e)
{
    if (!c) return CUDA_ERROR_INVALID_VALUE;
    unsigned grid[3] = {c->gridDimX, c->gridDimY, c->gridDimZ}, block[3] = {c->blockDimX, c->blockDimY, c->blockDimZ};
    return launch(f, grid, block, c->sharedMemBytes, s, p, e, false);
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **p, void **e)
{
    return launch_config(c, c ? c->hStream : NULL, f, p, e);
}
API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *c, CUfunction f, void **p, void **e)
{
    return launch_config(c, c ? SIM_PER_THREAD(c->hStream) : NULL, f, p, e);
}

/* ---- one call, several cards ---- */

/* Each stream must be a created one (not NULL), on a card that no earlier entry of the list uses. */
static CUresult check_list(const CUDA_LAUNCH_PARAMS *list, unsigned count)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!list || !count || count > SIM_CARDS) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++) {
        CUstream st = list[i].hStream;
        bool made = st != CU_STREAM_LEGACY && st != CU_STREAM_PER_THREAD && SIM_VALID(st, STREAM);
        if (!made || !SIM_VALID(list[i].function, FUNCTION)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
        for (unsigned k = 0; k < i; k++)
            if (list[k].hStream->ctx->device == st->ctx->device) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    }
    return sim_leave(CUDA_SUCCESS);
}

/* Each kernel starts when its own stream reaches it; the cards are not synchronised. */
API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
    CUresult r = check_list(list, count);
    for (unsigned i = 0; !r && i < count; i++) {
        const CUDA_LAUNCH_PARAMS *l = &list[i];
        r = launch(l->function, (unsigned[]){l->gridDimX, l->gridDimY, l->gridDimZ}, (unsigned[]){l->blockDimX, l->blockDimY, l->blockDimZ},
                   l->sharedMemBytes, l->hStream, l->kernelParams, NULL, true);
    }
    return (void)flags, r;
}

/* ---- occupancy ---- */

static CUresult active_blocks(int *out, CUfunction f, int threads)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!out || threads <= 0) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!SIM_VALID(f, FUNCTION)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    *out = threads > 1024 ? 0 : (int)(capacity(c, f, threads) / sim_card_of(c->device)->sm_count);
    sim_leave(CUDA_SUCCESS);
    return sim_function_asked(f);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, CUfunction f, int threads, size_t shared)
{
    return (void)shared, active_blocks(out, f, threads);
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, CUfunction f, int threads, size_t shared, unsigned flags)
{
    return (void)shared, (void)flags, active_blocks(out, f, threads);
}

/* The largest block, and the grid that fills the card with such blocks. */
static CUresult potential(int *grid, int *block, CUfunction f, int limit)
{
    int per_sm;
    int threads = limit > 0 && limit < 1024 ? limit : 1024;
    CUresult r = active_blocks(&per_sm, f, threads);
    if (r || !grid || !block) return r ? r : CUDA_ERROR_INVALID_VALUE;
    *block = threads;
    *grid = per_sm * (int)sim_card_of(sim_current()->device)->sm_count;
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f, void *sizes, size_t shared, int limit)
{
    return (void)sizes, (void)shared, potential(grid, block, f, limit);
}
API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction f, void *sizes, size_t shared, int limit, unsigned flags)
{
    return (void)sizes, (void)shared, (void)flags, potential(grid, block, f, limit);
}
