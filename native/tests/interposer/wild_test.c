/* A driver that takes more than the table of bounds says (SIMGPU_POLICY=wild). Where the library can see its own figure in NVML, it charges the
 * excess, and gives back what is no longer held. */
#include "container.h"

#define CARDS CARD_A "=2GiB,context=256MiB"

/* What the library counts, as soon as it is what the driver holds. It looks at most every 100 ms, when it is called. */
static unsigned long long counted(void)
{
    unsigned long long n = 0;
    for (double from = seconds(); seconds() - from < 40 * soon(); usleep(20000)) {
        n = 2048 * MIB - free_bytes();
        if (n / (2 * MIB) == (held(CARD_A) + 2 * MIB - 1) / (2 * MIB)) break;
    }
    return n / (2 * MIB) * (2 * MIB);
}

static unsigned long long held_granules(void) { return (held(CARD_A) + 2 * MIB - 1) / (2 * MIB) * (2 * MIB); }

static void excess_is_counted_and_given_back(void)
{
    CUdeviceptr p[8];
    CUcontext first = context_on(0), second = NULL;
    for (int i = 0; i < 8; i++) EXPECT_EQ(cuMemAlloc_v2(&p[i], 40 * MIB), CUDA_SUCCESS);
    EXPECT(held(CARD_A) > CONTEXT + 8 * 40 * MIB);
    EXPECT_EQ(cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS); /* after a new context the library looks */
    EXPECT_EQ(counted(), held_granules());
    for (int i = 0; i < 8; i += 2) EXPECT_EQ(cuMemFree_v2(p[i]), CUDA_SUCCESS);
    EXPECT_EQ(counted(), held_granules());
    for (int i = 1; i < 8; i += 2) EXPECT_EQ(cuMemFree_v2(p[i]), CUDA_SUCCESS);
    EXPECT_EQ(counted(), held_granules());
    EXPECT_EQ(cuCtxDestroy_v2(second), CUDA_SUCCESS);
    EXPECT_EQ(counted(), held_granules());
    (void)first;
}

int main(void)
{
    setenv("SIMGPU_POLICY", "wild:3", 1);
    IN(CARDS, excess_is_counted_and_given_back);
    setenv("SIMGPU_POLICY", "wild:6", 1);
    IN(CARDS, excess_is_counted_and_given_back);
    FINISH;
}
