/* Programs of a container that run one after the other: memory of the last one is free when the next one requests memory. */
#include "container.h"

#define CARDS CARD_A "=1GiB,context=256MiB"

static void asks_and_takes(void)
{
    CUdeviceptr p;
    context_on(0);
    EXPECT_EQ(free_bytes(), (1024 - 256) * MIB);
    EXPECT_EQ(cuMemAlloc_v2(&p, 200 * MIB), 0);
}

static void each_finds_the_whole_quota_free(void)
{
    for (int i = 0; i < 6 && ok_so_far; i++) EXPECT(run_child(asks_and_takes));
}

int main(void)
{
    IN(CARDS, each_finds_the_whole_quota_free);
    FINISH;
}
