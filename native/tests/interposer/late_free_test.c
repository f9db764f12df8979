/* Linear memory of one context is freed in a busy stream of another context, which ends before any call has waited for the stream. The memory is
 * charged as long as the driver may have it, and no longer. The quota is 1 GiB, of which each context takes 256 MiB. */
#include "container.h"

#define CARDS CARD_A "=1GiB,context=256MiB"
#define ROUNDS 30

CUresult cuStreamDestroy_v2(CUstream);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);

static const char *text = ".version 7.0\n.target sm_50\n.address_size 64\n// simgpu: time_us=$0 share=1\n.visible .entry spin(.param .u64 us) { ret; }\n";

static CUstream busy_stream(uint64_t us)
{
    CUmodule module;
    CUfunction spin;
    CUstream s = NULL;
    void *arguments[] = {&us};
    EXPECT_EQ(cuModuleLoadData(&module, text), 0);
    EXPECT_EQ(cuModuleGetFunction(&spin, module, "spin"), 0);
    EXPECT_EQ(cuStreamCreate(&s, 1), 0);
    EXPECT_EQ(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, s, arguments, NULL), 0);
    return s;
}

static void nothing_is_left(void)
{
    EXPECT(held(CARD_A) <= 256 * MIB);
    EXPECT_EQ(free_bytes(), (1024 - 256) * MIB);
    EXPECT(peak(CARD_A) <= 1024 * MIB);
}

static void what_was_freed_in_a_context_that_is_destroyed_is_not_charged_for_ever(void)
{
    CUcontext own = context_on(0), other;
    CUdeviceptr p;
    for (int i = 0; i < ROUNDS && ok_so_far; i++) {
        cuCtxSetCurrent(own);
        EXPECT_EQ(cuMemAlloc_v2(&p, 100 * MIB), 0);
        EXPECT_EQ(cuCtxCreate_v2(&other, 0, 0), 0);
        CUstream s = busy_stream(2000);
        EXPECT_EQ(cuMemFreeAsync(p, s), 0);
        if (i % 2) EXPECT_EQ(cuStreamDestroy_v2(s), 0);
        EXPECT_EQ(cuCtxDestroy_v2(other), 0);
    }
    cuCtxSetCurrent(own);
    nothing_is_left();
}

static void what_was_freed_in_a_primary_context_that_ends_is_not_charged_for_ever(void)
{
    CUcontext own = context_on(0), primary;
    CUdeviceptr p;
    for (int i = 0; i < ROUNDS && ok_so_far; i++) {
        cuCtxSetCurrent(own);
        EXPECT_EQ(cuMemAlloc_v2(&p, 100 * MIB), 0);
        EXPECT_EQ(cuDevicePrimaryCtxRetain(&primary, 0), 0);
        cuCtxSetCurrent(primary);
        EXPECT_EQ(cuMemFreeAsync(p, busy_stream(2000)), 0);
        cuCtxSetCurrent(own);
        EXPECT_EQ(i % 2 ? cuDevicePrimaryCtxReset_v2(0) : cuDevicePrimaryCtxRelease_v2(0), 0);
    }
    nothing_is_left();
}

static void what_was_freed_in_a_stream_that_is_destroyed_when_idle_comes_back_at_once(void)
{
    CUdeviceptr p;
    context_on(0);
    for (int i = 0; i < ROUNDS && ok_so_far; i++) {
        EXPECT_EQ(cuMemAlloc_v2(&p, 600 * MIB), 0);
        CUstream s = busy_stream(1000);
        EXPECT_EQ(cuMemFreeAsync(p, s), 0);
        while (cuStreamQuery(s)) usleep(200);
        EXPECT_EQ(cuStreamDestroy_v2(s), 0);
    }
    EXPECT(peak(CARD_A) <= 1024 * MIB);
}

int main(void)
{
    static const char *policies[] = {"0", "1", "2", "3", "4", "5"}; /* some free it in the stream, some at a synchronisation */
    for (int i = 0; i < 6; i++) {
        setenv("SIMGPU_POLICY", policies[i], 1);
        IN(CARDS, what_was_freed_in_a_context_that_is_destroyed_is_not_charged_for_ever);
        IN(CARDS, what_was_freed_in_a_primary_context_that_ends_is_not_charged_for_ever);
        IN(CARDS, what_was_freed_in_a_stream_that_is_destroyed_when_idle_comes_back_at_once);
    }
    FINISH;
}
