/* Two processes of a container that share memory, and one that observes. The memory that they hold must be the same in simgpu's ledger and in the
 * container's, at the latest 100 ms after a process died. */
#ifndef TRIO_H
#define TRIO_H

#include "worker.h"

#define QUOTA (3072 * MIB) /* the card has 4096 MiB, so the free memory is limited by the quota only */
#define CARDS CARD_A "=3GiB,context=256MiB"

/* a and b share memory, c observes. */
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

/* The last byte can be allocated, and not one more. */
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

/* A process of another container. */
static __attribute__((unused)) struct worker start_stranger(void)
{
    char ours[sizeof container_directory], name[128];
    memcpy(ours, container_directory, sizeof ours);
    snprintf(name, sizeof name, "%s", getenv("SIMGPU_CONTAINER"));
    new_container(CARDS);
    struct worker stranger = start(0);
    memcpy(container_directory, ours, sizeof ours);
    setenv("FRACTILE_DIR", ours, 1);
    setenv("SIMGPU_CONTAINER", name, 1);
    begin(stranger);
    return stranger;
}

/* a makes memory, b imports it, and both give it up: each frees it, ends or is killed, in every order. `share` gets the number of the round. The
 * driver holds `mib` until the second of them has given it up. */
static __attribute__((unused)) void leave_in_all_orders(unsigned mib, void (*share)(int), CUresult (*free_made)(void), CUresult (*free_imported)(void))
{
    enum { FREES, ENDS, KILLED, WAYS };
    c = start(0);
    begin(c);
    for (int way = 0; way < WAYS * WAYS * 2; way++) {
        int how_a = way % WAYS, how_b = way / WAYS % WAYS;
        bool a_first = way / WAYS / WAYS;
        a = start(0), b = start(0);
        begin(a), begin(b);
        share(way);
        unsigned alive = 3;
        for (int step = 0; step < 2; step++) {
            bool is_a = a_first == (step == 0);
            int how = is_a ? how_a : how_b;
            if (how == FREES) EXPECT_EQ(is_a ? free_made() : free_imported(), CUDA_SUCCESS);
            else end(is_a ? a : b, how == KILLED), alive--;
            HOLDS(alive, step == 0 ? mib : 0);
        }
        if (how_a == FREES) end(a, false);
        if (how_b == FREES) end(b, false);
        if (!ok_so_far) fprintf(stderr, "maker %d, importer %d, %s first\n", how_a, how_b, a_first ? "maker" : "importer");
        HOLDS(1, 0);
    }
    rest_is_exact(1, 0);
    end(c, false);
}

#endif
