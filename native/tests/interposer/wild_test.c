/* A driver that takes more than the table of bounds allows (SIMGPU_POLICY=wild). If the library can see the process's figure in NVML, it charges the
 * excess, refuses requests that no longer fit, and refunds the excess with the last context. */
#include "container.h"

#define QUOTA (2048 * MIB)
#define CARDS CARD_A "=2GiB,context=256MiB"

static bool covered(void) { return QUOTA - free_bytes() >= held(CARD_A); }

/* The library checks at most every 100 ms, when it is called. */
static bool soon_covered(void)
{
    for (double from = seconds(); seconds() - from < 40 * soon(); usleep(20000))
        if (covered()) return true;
    return false;
}

static void excess_is_counted_and_answered_with_refusals(void)
{
    CUdeviceptr p[8], rest;
    CUcontext first = context_on(0), second = NULL;
    for (int i = 0; i < 8; i++) EXPECT_EQ(cuMemAlloc_v2(&p[i], 40 * MIB), CUDA_SUCCESS);
    EXPECT(held(CARD_A) > CONTEXT + 8 * 40 * MIB);
    EXPECT(!covered());
    EXPECT_EQ(cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS); /* after a new context the library looks */
    EXPECT(soon_covered());
    EXPECT_EQ(cuMemAlloc_v2(&rest, QUOTA - held(CARD_A) + 2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    for (int i = 0; i < 8; i++) EXPECT_EQ(cuMemFree_v2(p[i]), CUDA_SUCCESS);
    EXPECT(covered());
    EXPECT_EQ(cuCtxDestroy_v2(second), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxDestroy_v2(first), CUDA_SUCCESS);
    first = context_on(0);
    EXPECT_EQ(QUOTA - free_bytes(), CONTEXT);
}

int main(void)
{
    setenv("SIMGPU_POLICY", "wild:3", 1);
    IN(CARDS, excess_is_counted_and_answered_with_refusals);
    setenv("SIMGPU_POLICY", "wild:6", 1);
    IN(CARDS, excess_is_counted_and_answered_with_refusals);
    FINISH;
}
