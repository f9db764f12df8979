/* The book of granules, step by step in orders that threads meet only now and then. Here the test is the driver. */
#include "check.h"
#include "granules.h"

#define G FR_GRANULE
#define A ((CUcontext)(uintptr_t)16)
#define BASE (64ull * G)
#define UNIT 512

static struct fr_small_end small_at(CUdeviceptr p, uint64_t size)
{
    struct fr_small s;
    EXPECT(fr_small_enter(&s, A, 0, size, 1));
    return fr_small_leave(&s, p, size);
}

static void freed(CUdeviceptr p, uint64_t size, uint32_t expected)
{
    uint32_t back;
    int object;
    fr_small_freeing(p, size);
    fr_small_freed(A, p, size, &back, &object);
    EXPECT_EQ(back, expected);
}

static bool sure(uint64_t size)
{
    struct fr_small s;
    if (!fr_small_enter(&s, A, 0, size, 0)) return false;
    struct fr_small_end end = fr_small_leave(&s, 0, 0);
    EXPECT_EQ(end.kept + end.back + end.missing, 0);
    return true;
}

static void a_granule_is_kept_with_its_first_piece_and_goes_back_with_its_last(void)
{
    EXPECT_EQ(small_at(BASE, 1000).kept, 1);
    EXPECT_EQ(small_at(BASE + 1024, 1000).kept, 0);
    EXPECT(sure(G - 2048));
    EXPECT(!sure(G - 2047));
    freed(BASE, 1000, 0);
    freed(BASE + 1024, 1000, 1);
    EXPECT(!sure(1));
}

static void a_piece_booked_where_one_is_being_freed_is_not_forgotten(void)
{
    uint32_t back;
    int object;
    EXPECT_EQ(small_at(BASE, UNIT).kept, 1);
    EXPECT_EQ(small_at(BASE + UNIT, G - UNIT).kept, 0); /* full */
    fr_small_freeing(BASE, UNIT);                       /* the driver frees it, and gives the place to the next one */
    EXPECT_EQ(small_at(BASE, UNIT).kept, 0);
    fr_small_freed(A, BASE, UNIT, &back, &object);
    EXPECT_EQ(back, 0);
    EXPECT(!sure(1));
    freed(BASE + UNIT, G - UNIT, 0);
    freed(BASE, UNIT, 1);
}

static void a_hole_is_sure_only_for_all_that_are_on_their_way_together(void)
{
    struct fr_small a, b;
    EXPECT_EQ(small_at(BASE, G - 8 * UNIT).kept, 1);
    EXPECT(fr_small_enter(&a, A, 0, 3 * UNIT, 0));
    EXPECT(!fr_small_enter(&b, A, 0, 6 * UNIT, 0));
    EXPECT(b.crowded);
    EXPECT(!fr_small_enter(&b, A, 0, 9 * UNIT, 0));
    EXPECT(!b.crowded); /* too small for it alone */
    EXPECT(fr_small_enter(&b, A, 0, 3 * UNIT, 0));
    EXPECT_EQ(fr_small_leave(&a, BASE + G - 6 * UNIT, 3 * UNIT).missing, 0);
    EXPECT_EQ(fr_small_leave(&b, BASE + G - 3 * UNIT, 3 * UNIT).missing, 0);
    freed(BASE, G - 8 * UNIT, 0);
    freed(BASE + G - 6 * UNIT, 3 * UNIT, 0);
    freed(BASE + G - 3 * UNIT, 3 * UNIT, 1);
}

static void what_is_on_its_way_may_lie_in_the_middle_of_a_hole(void)
{
    struct fr_small a, b;
    EXPECT_EQ(small_at(BASE, 1000 * UNIT).kept, 1);
    EXPECT_EQ(small_at(BASE + G - UNIT, UNIT).kept, 0);
    EXPECT(fr_small_enter(&a, A, 0, 10 * UNIT, 0)); /* the driver puts it behind the first */
    freed(BASE, 1000 * UNIT, 0);                    /* now holes of 1000 and 3085 units are left */
    EXPECT(!fr_small_enter(&b, A, 0, 3086 * UNIT, 0));
    EXPECT(b.crowded);
    EXPECT(fr_small_enter(&b, A, 0, 2000 * UNIT, 0));
    struct fr_small c;
    EXPECT(!fr_small_enter(&c, A, 0, 100 * UNIT, 0)); /* it could take the place of the second */
    EXPECT_EQ(fr_small_leave(&a, BASE + 1000 * UNIT, 10 * UNIT).missing, 0);
    EXPECT_EQ(fr_small_leave(&b, BASE + 1010 * UNIT, 2000 * UNIT).missing, 0);
    EXPECT(sure(1085 * UNIT));
    freed(BASE + 1000 * UNIT, 10 * UNIT, 0);
    freed(BASE + 1010 * UNIT, 2000 * UNIT, 0);
    freed(BASE + G - UNIT, UNIT, 1);
}

static void who_is_pushed_out_of_a_hole_gets_the_granule_of_who_took_it(void)
{
    struct fr_small claims, reserved;
    EXPECT_EQ(small_at(BASE, G - UNIT).kept, 1);
    EXPECT(fr_small_enter(&claims, A, 0, UNIT, 0));
    EXPECT(fr_small_enter(&reserved, A, 0, UNIT, 1));
    struct fr_small_end end = fr_small_leave(&reserved, BASE + G - UNIT, UNIT); /* it was faster */
    EXPECT_EQ(end.kept, 1);
    end = fr_small_leave(&claims, BASE + G, UNIT); /* a new granule */
    EXPECT_EQ(end.missing, 0);
    EXPECT_EQ(end.kept, 0);
    EXPECT_EQ(end.back, 0);
    freed(BASE, G - UNIT, 0);
    freed(BASE + G - UNIT, UNIT, 1);
    freed(BASE + G, UNIT, 1);
}

static void what_nobody_needed_in_the_end_goes_back(void)
{
    struct fr_small claims, reserved;
    EXPECT_EQ(small_at(BASE, G - 2 * UNIT).kept, 1);
    EXPECT(fr_small_enter(&claims, A, 0, UNIT, 0));
    EXPECT(fr_small_enter(&reserved, A, 0, UNIT, 1));
    EXPECT_EQ(fr_small_leave(&reserved, BASE + G - 2 * UNIT, UNIT).kept, 1);
    struct fr_small_end end = fr_small_leave(&claims, BASE + G - UNIT, UNIT);
    EXPECT_EQ(end.kept, 0);
    EXPECT_EQ(end.back, 1);
    freed(BASE, G - 2 * UNIT, 0);
    freed(BASE + G - 2 * UNIT, UNIT, 0);
    freed(BASE + G - UNIT, UNIT, 1);
}

static void a_last_piece_freed_while_others_are_on_their_way_leaves_its_granule_to_them(void)
{
    struct fr_small claims;
    EXPECT_EQ(small_at(BASE, UNIT).kept, 1);
    EXPECT(fr_small_enter(&claims, A, 0, UNIT, 0));
    freed(BASE, UNIT, 0); /* the driver dropped the granule */
    struct fr_small_end end = fr_small_leave(&claims, BASE + G, UNIT);
    EXPECT_EQ(end.missing, 0);
    EXPECT_EQ(end.back, 0);
    freed(BASE + G, UNIT, 1);
}

static void a_granule_that_the_driver_dropped_already_pays_for_the_next_one(void)
{
    struct fr_small claims;
    uint32_t back, owed;
    int object;
    EXPECT_EQ(small_at(BASE, UNIT).kept, 1);
    EXPECT(fr_small_enter(&claims, A, 0, UNIT, 0));
    fr_small_freeing(BASE, UNIT); /* the driver frees it, and drops its granule; nobody booked that yet */
    struct fr_small_end end = fr_small_leave(&claims, BASE + G, UNIT);
    EXPECT_EQ(end.missing, 0);
    EXPECT_EQ(end.kept, 0);
    fr_small_freed(A, BASE, UNIT, &back, &object);
    EXPECT_EQ(back, 0);
    fr_small_freeing(BASE + G, UNIT);
    fr_small_stays(BASE + G, UNIT, &owed); /* and one that the driver refused to free */
    EXPECT_EQ(owed, 0);
    freed(BASE + G, UNIT, 1);
}

static void of_two_granules_that_are_being_dropped_the_first_that_is_pays(void)
{
    struct fr_small claims;
    uint32_t back;
    int object;
    EXPECT_EQ(small_at(BASE, UNIT).kept, 1);
    EXPECT_EQ(small_at(BASE + G, UNIT).kept, 1);
    EXPECT(fr_small_enter(&claims, A, 0, UNIT, 0));
    fr_small_freeing(BASE, UNIT);
    fr_small_freeing(BASE + G, UNIT);
    EXPECT_EQ(fr_small_leave(&claims, BASE + 2 * G, UNIT).missing, 0); /* one is gone, the other may be there for a while */
    for (uint32_t i = 0; i < 2; i++) {
        fr_small_freed(A, BASE + i * G, UNIT, &back, &object);
        EXPECT_EQ(back, i);
    }
    freed(BASE + 2 * G, UNIT, 1);
}

static void a_granule_that_comes_again_after_its_charge_was_taken_over_is_charged_again(void)
{
    struct fr_small claims;
    uint32_t back;
    int object;
    EXPECT_EQ(small_at(BASE, UNIT).kept, 1);
    EXPECT(fr_small_enter(&claims, A, 0, UNIT, 0));
    fr_small_freeing(BASE, UNIT);
    EXPECT_EQ(fr_small_leave(&claims, BASE + G, UNIT).missing, 0);
    EXPECT_EQ(small_at(BASE, UNIT).kept, 1); /* the same address */
    fr_small_freed(A, BASE, UNIT, &back, &object);
    EXPECT_EQ(back, 0);
    freed(BASE, UNIT, 1);
    freed(BASE + G, UNIT, 1);
}

static void what_the_driver_takes_without_reason_is_missing_until_it_is_reserved(void)
{
    struct fr_small claims;
    EXPECT_EQ(small_at(BASE, UNIT).kept, 1);
    EXPECT(fr_small_enter(&claims, A, 0, UNIT, 0));
    EXPECT_EQ(fr_small_leave(&claims, BASE + 5 * G, UNIT).missing, 1);
    claims.own = 1;
    struct fr_small_end end = fr_small_leave(&claims, BASE + 5 * G, UNIT);
    EXPECT_EQ(end.missing, 0);
    EXPECT_EQ(end.kept, 1);
    freed(BASE, UNIT, 1);
    freed(BASE + 5 * G, UNIT, 1);
}

static void another_contexts_hole_is_no_hole(void)
{
    struct fr_small s;
    EXPECT_EQ(small_at(BASE, UNIT).kept, 1);
    EXPECT(!fr_small_enter(&s, (CUcontext)(uintptr_t)32, 0, UNIT, 0));
    int object;
    fr_small_rename(A, (CUcontext)(uintptr_t)33);
    EXPECT(!sure(UNIT));
    EXPECT(fr_small_drop((CUcontext)(uintptr_t)33, &object));
    EXPECT_EQ(object, FR_NO_OBJECT);
    EXPECT(!fr_small_drop((CUcontext)(uintptr_t)33, &object));
}

int main(void)
{
    fr_look(); /* this is a new process: what is remembered begins now */
    RUN(a_granule_is_kept_with_its_first_piece_and_goes_back_with_its_last);
    RUN(a_piece_booked_where_one_is_being_freed_is_not_forgotten);
    RUN(a_hole_is_sure_only_for_all_that_are_on_their_way_together);
    RUN(what_is_on_its_way_may_lie_in_the_middle_of_a_hole);
    RUN(who_is_pushed_out_of_a_hole_gets_the_granule_of_who_took_it);
    RUN(what_nobody_needed_in_the_end_goes_back);
    RUN(a_last_piece_freed_while_others_are_on_their_way_leaves_its_granule_to_them);
    RUN(a_granule_that_the_driver_dropped_already_pays_for_the_next_one);
    RUN(of_two_granules_that_are_being_dropped_the_first_that_is_pays);
    RUN(a_granule_that_comes_again_after_its_charge_was_taken_over_is_charged_again);
    RUN(what_the_driver_takes_without_reason_is_missing_until_it_is_reserved);
    RUN(another_contexts_hole_is_no_hole);
    FINISH;
}
