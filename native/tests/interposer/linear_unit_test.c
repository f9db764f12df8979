/* The book of granules, step by step in orders that threads meet only now and then. Here the test is the driver. */
#include "check.h"
#include "memory/granules.h"

#include "cuda_abi.h"

#define G FR_GRANULE
#define A ((CUcontext)(uintptr_t)16)
#define B ((CUcontext)(uintptr_t)32)
#define BASE (64ull * G)

static uint32_t booked(CUcontext c, CUdeviceptr p, uint64_t size)
{
    uint32_t added = 99;
    EXPECT(fr_granules_add(c, 0, p, size, &added));
    return added;
}

static uint32_t unbooked(CUdeviceptr p, uint64_t size)
{
    uint32_t emptied = 99;
    int object;
    fr_granules_remove(0, p, size, &emptied, &object);
    return emptied;
}

static void a_granule_is_added_with_its_first_piece_and_emptied_with_its_last(void)
{
    EXPECT_EQ(booked(A, BASE, 1000), 1);
    EXPECT_EQ(booked(A, BASE + 1024, 1000), 0);
    EXPECT_EQ(unbooked(BASE, 1000), 0);
    EXPECT_EQ(unbooked(BASE + 1024, 1000), 1);
    EXPECT_EQ(booked(A, BASE, 1000), 1);
    EXPECT_EQ(unbooked(BASE, 1000), 1);
}

/* The driver freed the first piece and gave its place away before the free came back to the book. */
static void a_piece_booked_where_one_is_being_freed_keeps_the_granule(void)
{
    EXPECT_EQ(booked(A, BASE, 512), 1);
    EXPECT_EQ(booked(A, BASE, 512), 0);
    EXPECT_EQ(unbooked(BASE, 512), 0);
    EXPECT_EQ(unbooked(BASE, 512), 1);
}

static void a_piece_across_two_granules_counts_in_both(void)
{
    EXPECT_EQ(booked(A, BASE + G - 512, 1024), 2);
    EXPECT_EQ(booked(A, BASE, 512), 0);
    EXPECT_EQ(unbooked(BASE + G - 512, 1024), 1);
    EXPECT_EQ(unbooked(BASE, 512), 1);
}

static void what_was_never_booked_empties_nothing(void) { EXPECT_EQ(unbooked(BASE + 7 * G, 512), 0); }

static void a_shared_granule_leaves_its_object_and_empties_nothing(void)
{
    uint32_t emptied;
    int object;
    EXPECT_EQ(booked(A, BASE, 512), 1);
    EXPECT(fr_granule_set_object(0, BASE + 100, 5));
    EXPECT(fr_granule_object(0, BASE, &object));
    EXPECT_EQ(object, 5);
    fr_granules_remove(0, BASE, 512, &emptied, &object);
    EXPECT_EQ(emptied, 0);
    EXPECT_EQ(object, 5);
}

/* While a context is being destroyed, its addresses may belong to another card already. */
static void the_same_address_on_another_card_is_another_granule(void)
{
    uint32_t added, emptied;
    int object;
    EXPECT_EQ(booked(A, BASE, 512), 1);
    EXPECT(fr_granules_add(B, 1, BASE, 512, &added));
    EXPECT_EQ(added, 1);
    fr_granules_remove(1, BASE, 512, &emptied, &object);
    EXPECT_EQ(emptied, 1);
    EXPECT_EQ(unbooked(BASE, 512), 1);
}

static void granules_go_with_their_context_and_with_no_other(void)
{
    int object;
    EXPECT_EQ(booked(A, BASE, 512) + booked(A, BASE + G, 512) + booked(B, BASE + 2 * G, 512), 3);
    fr_granules_rename(A, (CUcontext)(uintptr_t)1);
    EXPECT(!fr_granules_drop(A, &object));
    int dropped = 0;
    while (fr_granules_drop((CUcontext)(uintptr_t)1, &object)) dropped++;
    EXPECT_EQ(dropped, 2);
    EXPECT_EQ(unbooked(BASE + 2 * G, 512), 1);
}

int main(void)
{
    RUN(a_granule_is_added_with_its_first_piece_and_emptied_with_its_last);
    RUN(a_piece_booked_where_one_is_being_freed_keeps_the_granule);
    RUN(a_piece_across_two_granules_counts_in_both);
    RUN(what_was_never_booked_empties_nothing);
    RUN(a_shared_granule_leaves_its_object_and_empties_nothing);
    RUN(the_same_address_on_another_card_is_another_granule);
    RUN(granules_go_with_their_context_and_with_no_other);
    FINISH;
}
