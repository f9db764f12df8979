/* What keeps memory alive, in the steps of two threads: the driver's calls are between the steps. */
#include "check.h"

#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "memory/holding.h"

#include "cuda_abi.h"

#define SIZE (8 * MIB)

static struct fr_memory *create(CUmemGenericAllocationHandle number)
{
    struct fr_op op;
    EXPECT_EQ(fr_op_begin(&op, 0, SIZE), CUDA_SUCCESS);
    struct fr_memory *m = fr_memory_new(0, SIZE, FR_NO_OBJECT);
    EXPECT(fr_handle_add(number, &m));
    fr_memory_unpin(m);
    fr_op_end(&op, SIZE);
    return m;
}

static void retain(CUmemGenericAllocationHandle number, struct fr_memory *m)
{
    EXPECT(fr_handle_add(number, &m));
}

static void of_two_that_drop_the_last_two_references_the_last_to_end_gives_back(void)
{
    struct fr_release one, other;
    struct fr_memory *m = create(7);
    retain(7, m);
    fr_release_begin(&one), fr_release_begin(&other);
    EXPECT(fr_handle_remove(&one, 7) == m);
    EXPECT(fr_handle_remove(&other, 7) == m);
    fr_handle_removed(&other, 7, m, true); /* its driver call is over, the other thread's has not begun */
    fr_release_end(&other);
    EXPECT_EQ(fr_used_here(0), SIZE);
    fr_handle_removed(&one, 7, m, true);
    fr_release_end(&one);
    EXPECT_EQ(fr_used_here(0), 0);
}

static void a_number_that_the_driver_gives_again_is_another_allocation(void)
{
    struct fr_release g;
    struct fr_memory *old = create(7);
    fr_release_begin(&g);
    EXPECT(fr_handle_remove(&g, 7) == old);
    struct fr_memory *new = create(7); /* by another thread, before the first has seen that its call succeeded */
    EXPECT(new != old);
    fr_handle_removed(&g, 7, old, true);
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), SIZE);
    fr_release_begin(&g);
    EXPECT(fr_handle_remove(&g, 7) == new);
    fr_handle_removed(&g, 7, new, true);
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), 0);
}

static void an_address_that_is_mapped_again_is_another_mapping(void)
{
    struct fr_release g, release;
    struct fr_memory *first = create(1), *second = create(2);
    EXPECT(fr_mapping_add((struct fr_mapping){.place = 64 * MIB, .size = SIZE, .memory = first}));
    fr_release_begin(&release);
    fr_handle_removed(&release, 1, fr_handle_remove(&release, 1), true);
    fr_release_end(&release);
    fr_release_begin(&g);
    fr_mappings_remove(&g, 0, 0, 64 * MIB, SIZE);
    struct fr_memory *ending = fr_memory_pin_at(64 * MIB); /* the driver may still have it */
    EXPECT(ending == first);
    fr_memory_unpin(ending);
    EXPECT(fr_mapping_add((struct fr_mapping){.place = 64 * MIB, .size = SIZE, .memory = second}));
    struct fr_memory *there = fr_memory_pin_at(65 * MIB);
    EXPECT(there == second);
    fr_memory_unpin(there);
    fr_mappings_removed(&g, 0, 0, 64 * MIB, SIZE, true);
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), SIZE);
    fr_release_begin(&g);
    fr_mappings_remove(&g, 0, 0, 64 * MIB, SIZE);
    fr_mappings_removed(&g, 0, 0, 64 * MIB, SIZE, true);
    fr_handle_removed(&g, 2, fr_handle_remove(&g, 2), true);
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), 0);
}

/* One thread unmaps, and before the library has recorded that, other threads have mapped the place twice: the driver has only one of the
 * recorded mappings. */
static void of_two_mappings_at_one_place_the_one_stays_that_the_driver_has(void)
{
    struct fr_release g;
    struct fr_memory *first = create(1), *second = create(2);
    EXPECT(fr_mapping_add((struct fr_mapping){.place = 64 * MIB, .size = SIZE, .memory = first}));
    EXPECT(fr_mapping_add((struct fr_mapping){.place = 64 * MIB, .size = SIZE, .memory = second}));
    fr_release_begin(&g);
    fr_handle_removed(&g, 1, fr_handle_remove(&g, 1), true);
    fr_handle_removed(&g, 2, fr_handle_remove(&g, 2), true);
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), 2 * SIZE);
    fr_release_begin(&g);
    fr_mappings_keep_one(&g, 64 * MIB, 3); /* it is neither of them: both stay */
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), 2 * SIZE);
    fr_release_begin(&g);
    fr_mappings_keep_one(&g, 64 * MIB, 2);
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), SIZE);
    struct fr_memory *there = fr_memory_pin_at(64 * MIB);
    EXPECT(there == second);
    fr_memory_unpin(there);
    fr_release_begin(&g);
    fr_mappings_remove(&g, 0, 0, 64 * MIB, SIZE);
    fr_mappings_removed(&g, 0, 0, 64 * MIB, SIZE, true);
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), 0);
}

static void what_the_driver_refuses_to_drop_is_held_as_before(void)
{
    struct fr_release g;
    struct fr_memory *m = create(3);
    EXPECT(fr_mapping_add((struct fr_mapping){.place = 64 * MIB, .size = SIZE, .memory = m}));
    fr_release_begin(&g);
    fr_mappings_remove(&g, 0, 0, 0, 1024 * MIB);
    fr_handle_removed(&g, 3, fr_handle_remove(&g, 3), false);
    fr_mappings_removed(&g, 0, 0, 0, 1024 * MIB, false);
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), SIZE);
    fr_release_begin(&g);
    fr_mappings_remove(&g, 0, 0, 64 * MIB + 1, SIZE); /* not the whole mapping: nothing is removed */
    fr_mappings_removed(&g, 0, 0, 64 * MIB + 1, SIZE, true);
    fr_handle_removed(&g, 3, fr_handle_remove(&g, 3), true);
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), SIZE);
    fr_release_begin(&g);
    fr_mappings_remove(&g, 0, 0, 0, UINT64_MAX);
    fr_mappings_removed(&g, 0, 0, 0, UINT64_MAX, true);
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), 0);
}

static void what_is_being_mapped_outlives_the_release_of_its_handle(void)
{
    struct fr_release g;
    create(4);
    struct fr_memory *m = fr_memory_pin(4); /* cuMemMap begins */
    fr_release_begin(&g);
    fr_handle_removed(&g, 4, fr_handle_remove(&g, 4), true);
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), SIZE);
    EXPECT(fr_mapping_add((struct fr_mapping){.place = 64 * MIB, .size = SIZE, .memory = m}));
    fr_memory_unpin(m);
    EXPECT_EQ(fr_used_here(0), SIZE);
    fr_release_begin(&g);
    fr_mappings_remove(&g, 0, 0, 64 * MIB, SIZE);
    fr_mappings_removed(&g, 0, 0, 64 * MIB, SIZE, true);
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), 0);
}

/* cuMemUnmap queries the driver about a mapping that another thread has just made there, and holds the memory meanwhile. */
static void what_is_asked_about_stays_charged_until_the_answer_is_there(void)
{
    struct fr_release g;
    struct fr_mapping asked;
    struct fr_memory *m = create(6);
    EXPECT(fr_mapping_add((struct fr_mapping){.place = 64 * MIB, .size = SIZE, .memory = m}));
    EXPECT(fr_mapping_next(64 * MIB, SIZE, 64 * MIB, &asked) && asked.memory == m);
    fr_release_begin(&g);
    fr_handle_removed(&g, 6, fr_handle_remove(&g, 6), true);
    fr_mappings_remove(&g, 0, 0, 64 * MIB, SIZE);
    fr_mappings_removed(&g, 0, 0, 64 * MIB, SIZE, true);
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), SIZE);
    fr_memory_unpin(m);
    EXPECT_EQ(fr_used_here(0), 0);
}

static void of_two_that_unmap_the_same_range_one_gives_it_back(void)
{
    struct fr_release one, other;
    struct fr_memory *m = create(5);
    EXPECT(fr_mapping_add((struct fr_mapping){.place = 64 * MIB, .size = SIZE, .memory = m}));
    fr_release_begin(&one), fr_release_begin(&other);
    fr_handle_removed(&one, 5, fr_handle_remove(&one, 5), true);
    fr_mappings_remove(&one, 0, 0, 64 * MIB, SIZE);
    fr_mappings_remove(&other, 0, 0, 64 * MIB, SIZE);
    fr_mappings_removed(&other, 0, 0, 64 * MIB, SIZE, false); /* the driver reported that it came too late */
    fr_release_end(&other);
    EXPECT_EQ(fr_used_here(0), SIZE);
    fr_mappings_removed(&one, 0, 0, 64 * MIB, SIZE, true);
    fr_release_end(&one);
    EXPECT_EQ(fr_used_here(0), 0);
}

static void thousands_of_mappings_are_found_in_any_order(void)
{
    enum { N = 40000 };
    struct fr_release g;
    struct fr_memory *m = create(9);
    for (uint64_t i = 0; i < N; i++) EXPECT(fr_mapping_add((struct fr_mapping){.place = i * 7919 % N * SIZE, .size = SIZE, .memory = m}));
    for (uint64_t i = 0; i < N; i++) {
        struct fr_memory *at = fr_memory_pin_at(i * SIZE + SIZE - 1);
        EXPECT(at == m);
        fr_memory_unpin(at);
    }
    EXPECT(fr_memory_pin_at(N * SIZE) == NULL);
    fr_release_begin(&g);
    fr_mappings_remove(&g, 0, 0, 0, N * SIZE);
    fr_mappings_removed(&g, 0, 0, 0, N * SIZE, true);
    fr_handle_removed(&g, 9, fr_handle_remove(&g, 9), true);
    fr_release_end(&g);
    EXPECT_EQ(fr_used_here(0), 0);
}

int main(void)
{
    RUN(of_two_that_drop_the_last_two_references_the_last_to_end_gives_back);
    RUN(a_number_that_the_driver_gives_again_is_another_allocation);
    RUN(an_address_that_is_mapped_again_is_another_mapping);
    RUN(of_two_mappings_at_one_place_the_one_stays_that_the_driver_has);
    RUN(what_the_driver_refuses_to_drop_is_held_as_before);
    RUN(what_is_being_mapped_outlives_the_release_of_its_handle);
    RUN(what_is_asked_about_stays_charged_until_the_answer_is_there);
    RUN(of_two_that_unmap_the_same_range_one_gives_it_back);
    RUN(thousands_of_mappings_are_found_in_any_order);
    FINISH;
}
