/* The records of granules, step by step in orders that threads rarely produce. Here the test acts as the driver. */
#include "check.h"
#include "ledger/objects.h"
#include "memory/granules.h"

#include "cuda_abi.h"

#define G FR_GRANULE
#define A ((CUcontext)(uintptr_t)16)
#define B ((CUcontext)(uintptr_t)32)
#define DOOMED ((CUcontext)(uintptr_t)1)
#define BASE (64ull * G)

static struct fr_piece piece_at(CUdeviceptr p, uint64_t size) { return (struct fr_piece){0, p, size, {0}}; }

static uint32_t booked(CUcontext c, struct fr_piece *piece)
{
    uint32_t added = 99;
    EXPECT(fr_granules_add(c, piece, &added));
    return added;
}

static uint32_t freed(const struct fr_piece *piece, bool was_leaving)
{
    uint32_t emptied = 99;
    int object;
    fr_granules_remove(piece, was_leaving, &emptied, &object);
    return emptied;
}

static uint32_t unbooked(const struct fr_piece *piece)
{
    fr_granules_leaving(piece);
    return freed(piece, true);
}

static void a_granule_is_added_with_its_first_piece_and_emptied_with_its_last(void)
{
    struct fr_piece one = piece_at(BASE, 1000), two = piece_at(BASE + 1024, 1000);
    EXPECT_EQ(booked(A, &one), 1);
    EXPECT_EQ(booked(A, &two), 0);
    EXPECT_EQ(unbooked(&one), 0);
    EXPECT_EQ(unbooked(&two), 1);
    EXPECT_EQ(booked(A, &one), 1);
    EXPECT_EQ(unbooked(&one), 1);
}

/* The driver freed the first piece and reused its place before the free was recorded. */
static void a_piece_booked_where_one_is_being_freed_keeps_the_granule(void)
{
    struct fr_piece one = piece_at(BASE, 512), two = one;
    EXPECT_EQ(booked(A, &one), 1);
    fr_granules_leaving(&one);
    EXPECT_EQ(booked(A, &two), 0);
    EXPECT_EQ(freed(&one, true), 0);
    EXPECT_EQ(unbooked(&two), 1);
}

static void a_piece_across_two_granules_counts_in_both(void)
{
    struct fr_piece across = piece_at(BASE + G - 512, 1024), one = piece_at(BASE, 512);
    EXPECT_EQ(booked(A, &across), 2);
    EXPECT_EQ(booked(A, &one), 0);
    EXPECT_EQ(unbooked(&across), 1);
    EXPECT_EQ(unbooked(&one), 1);
}

static void what_was_never_booked_empties_nothing(void)
{
    struct fr_piece never = piece_at(BASE + 7 * G, 512);
    EXPECT_EQ(unbooked(&never), 0);
}

static void a_shared_granule_leaves_its_object_and_empties_nothing(void)
{
    uint32_t emptied;
    int object;
    struct fr_piece one = piece_at(BASE, 512);
    EXPECT_EQ(booked(A, &one), 1);
    EXPECT(fr_granule_set_object(&one, 5));
    EXPECT(fr_granule_object(&one, &object));
    EXPECT_EQ(object, 5);
    fr_granules_leaving(&one);
    fr_granules_remove(&one, true, &emptied, &object);
    EXPECT_EQ(emptied, 0);
    EXPECT_EQ(object, 5);
}

/* Other processes still hold that memory, so a new allocation at its address is additional memory. */
static void beside_a_shared_granule_whose_pieces_are_all_being_freed_there_is_another(void)
{
    uint32_t emptied;
    int object;
    struct fr_piece one = piece_at(BASE, 512), two = piece_at(BASE + 1024, 512), fresh = one, beside = two;
    EXPECT_EQ(booked(A, &one) + booked(A, &two), 1);
    EXPECT(fr_granule_set_object(&one, 5));
    fr_granules_leaving(&one);
    EXPECT_EQ(booked(A, &fresh), 0); /* the other piece keeps it */
    EXPECT_EQ(unbooked(&fresh), 0);
    fr_granules_leaving(&two);
    EXPECT_EQ(booked(A, &fresh), 1);
    EXPECT(fr_granule_object(&fresh, &object));
    EXPECT_EQ(object, FR_NO_OBJECT);
    EXPECT_EQ(freed(&one, true), 0);
    fr_granules_remove(&two, true, &emptied, &object);
    EXPECT_EQ(emptied, 0);
    EXPECT_EQ(object, 5);
    EXPECT_EQ(booked(A, &beside), 0);
    EXPECT_EQ(unbooked(&beside), 0);
    EXPECT_EQ(unbooked(&fresh), 1);
}

static void a_free_that_the_driver_refused_leaves_a_shared_granule_as_it_was(void)
{
    struct fr_piece one = piece_at(BASE, 512), two = piece_at(BASE + 512, 512);
    EXPECT_EQ(booked(A, &one), 1);
    EXPECT(fr_granule_set_object(&one, 5));
    fr_granules_leaving(&one);
    fr_granules_stay(&one);
    EXPECT_EQ(booked(A, &two), 0);
    EXPECT_EQ(unbooked(&two) + unbooked(&one), 0);
}

/* While a context is being destroyed, its addresses may belong to another card already. */
static void the_same_address_on_another_card_is_another_granule(void)
{
    struct fr_piece one = piece_at(BASE, 512), there = {1, BASE, 512, {0}};
    EXPECT_EQ(booked(A, &one), 1);
    EXPECT_EQ(booked(B, &there), 1);
    EXPECT_EQ(unbooked(&there), 1);
    EXPECT_EQ(unbooked(&one), 1);
}

static void granules_go_with_their_context_and_with_no_other(void)
{
    int object;
    struct fr_piece pieces[] = {piece_at(BASE, 512), piece_at(BASE + G, 512), piece_at(BASE + 2 * G, 512)};
    EXPECT_EQ(booked(A, &pieces[0]) + booked(A, &pieces[1]) + booked(B, &pieces[2]), 3);
    fr_granules_rename(A, DOOMED, true);
    EXPECT(!fr_granules_drop(A, &object));
    int dropped = 0;
    while (fr_granules_drop(DOOMED, &object)) dropped++;
    EXPECT_EQ(dropped, 2);
    EXPECT_EQ(unbooked(&pieces[2]), 1);
}

/* The driver may reuse the addresses before the library knows that the context is gone. */
static void at_the_address_of_a_context_that_ends_there_is_another_granule(void)
{
    int object;
    struct fr_piece old = piece_at(BASE, 512), fresh = piece_at(BASE + 512, 512);
    EXPECT_EQ(booked(A, &old), 1);
    fr_granules_rename(A, DOOMED, true);
    EXPECT_EQ(booked(B, &fresh), 1);
    EXPECT(fr_granules_drop(DOOMED, &object));
    EXPECT(!fr_granules_drop(DOOMED, &object));
    EXPECT_EQ(unbooked(&fresh), 1);
}

static void a_context_that_did_not_end_has_its_granules_again(void)
{
    struct fr_piece old = piece_at(BASE, 512), fresh = piece_at(BASE + 512, 512);
    EXPECT_EQ(booked(A, &old), 1);
    fr_granules_rename(A, DOOMED, true);
    fr_granules_rename(DOOMED, A, false);
    EXPECT_EQ(booked(A, &fresh), 0);
    EXPECT_EQ(unbooked(&fresh), 0);
    EXPECT_EQ(unbooked(&old), 1);
}

int main(void)
{
    RUN(a_granule_is_added_with_its_first_piece_and_emptied_with_its_last);
    RUN(a_piece_booked_where_one_is_being_freed_keeps_the_granule);
    RUN(a_piece_across_two_granules_counts_in_both);
    RUN(what_was_never_booked_empties_nothing);
    RUN(a_shared_granule_leaves_its_object_and_empties_nothing);
    RUN(beside_a_shared_granule_whose_pieces_are_all_being_freed_there_is_another);
    RUN(a_free_that_the_driver_refused_leaves_a_shared_granule_as_it_was);
    RUN(the_same_address_on_another_card_is_another_granule);
    RUN(granules_go_with_their_context_and_with_no_other);
    RUN(at_the_address_of_a_context_that_ends_there_is_another_granule);
    RUN(a_context_that_did_not_end_has_its_granules_again);
    FINISH;
}
