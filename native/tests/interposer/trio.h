/* Two processes of a container that share memory and one that looks on; what they hold must be the same in simgpu's ledger and
 * in what the container believes, at the latest 100 ms after somebody died. */
#ifndef TRIO_H
#define TRIO_H

#include "worker.h"

#define QUOTA (3072 * MIB) /* the card has 4096: what is free is what the quota leaves */
#define CARDS CARD_A "=3GiB,context=256MiB"

/* Two that share, and one that looks on. */
static struct worker a, b, c;

static void three(void)
{
    a = start(0), b = start(0), c = start(0);
    begin(a), begin(b), begin(c);
}

static void agree(int line, unsigned contexts, unsigned long long mib)
{
    unsigned long long expected = contexts * CONTEXT + mib * MIB, driver, container;
    double from = seconds();
    do driver = held(CARD_A), container = seen_by(c);
    while ((driver != expected || container != expected) && seconds() - from < soon());
    if (driver == expected && container == expected) return;
    fprintf(stderr, "line %d: the driver holds %.1f MiB, the container believes %.1f, expected %.1f\n", line, (double)driver / MIB, (double)container / MIB,
            (double)expected / MIB);
    ok_so_far = false;
}
#define HOLDS(contexts, mib) agree(__LINE__, contexts, mib)

/* The last byte can be had, and not one more. */
static void rest_is_exact(unsigned contexts, unsigned long long mib)
{
    unsigned long long rest = QUOTA - contexts * CONTEXT - mib * MIB;
    EXPECT_EQ(order(c, ALLOC, 0, rest + 2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(order(c, ALLOC, 0, rest), CUDA_SUCCESS);
    EXPECT_EQ(order(c, ALLOC, 1, 2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(held(CARD_A), QUOTA);
    EXPECT_EQ(order(c, GIVE, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(peak(CARD_A), QUOTA);
}

#endif
