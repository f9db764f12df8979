/* The library's predictions of how long kernels take. */
#include "check.h"

#include "pacing/predict.h"

static struct fr_prediction *fresh(void)
{
    static uint64_t function = 1000;
    return fr_prediction_of(function++, 1);
}

static void an_unknown_kernel_takes_what_is_taken_for_unknown_ones(void) { EXPECT_EQ(fr_prediction_ns(fresh()), FR_UNKNOWN_NS); }

static void the_first_measurement_is_believed(void)
{
    struct fr_prediction *g = fresh();
    fr_prediction_learn(g, 1, 5000, false);
    EXPECT_EQ(fr_prediction_ns(g), 5000);
}

static void one_function_has_a_prediction_per_shape(void)
{
    EXPECT(fr_prediction_of(7, 1) != fr_prediction_of(7, 2));
    EXPECT(fr_prediction_of(7, 1) == fr_prediction_of(7, 1));
}

static void a_kernel_that_got_slower_is_known_to_after_a_few_batches(void)
{
    struct fr_prediction *g = fresh();
    for (int i = 0; i < 100; i++) fr_prediction_learn(g, 64, 10000, false);
    for (int i = 0; i < 8; i++) fr_prediction_learn(g, 64, 100000, false);
    EXPECT(fr_prediction_ns(g) > 90000);
}

static void a_kernel_that_got_faster_is_known_to_in_the_end(void)
{
    struct fr_prediction *g = fresh();
    for (int i = 0; i < 100; i++) fr_prediction_learn(g, 64, 100000, false);
    for (int i = 0; i < 40; i++) fr_prediction_learn(g, 64, 10000, false);
    EXPECT(fr_prediction_ns(g) < 11000);
}

/* 200 ms every fiftieth time, otherwise 5 us: after forty short kernels in a row the next one may still be long. */
static void rare_long_ones_are_not_forgotten_between_them(void)
{
    struct fr_prediction *g = fresh();
    for (int i = 1; i <= 490; i++) fr_prediction_learn(g, 1, i % 50 ? 5000 : 200000000, false);
    EXPECT(fr_prediction_ns(g) > 2000000);
    EXPECT(fr_prediction_ns(g) < 8000000);
}

static void kernels_that_ran_among_others_are_corrected_by_what_all_took(void)
{
    struct fr_prediction *g = fresh();
    fr_prediction_learn(g, 1, 10000, false);
    for (int i = 0; i < 60; i++) fr_prediction_correct(g, 16, 50000.0 / (double)fr_prediction_ns(g), false);
    EXPECT(fr_prediction_ns(g) > 40000 && fr_prediction_ns(g) < 60000);
}

static void what_is_measured_out_of_all_bounds_stays_a_time(void)
{
    struct fr_prediction *g = fresh();
    fr_prediction_learn(g, 1, UINT64_MAX, false);
    EXPECT(fr_prediction_ns(g) <= 4000000000ull);
    fr_prediction_correct(g, 1, 0, false);
    EXPECT(fr_prediction_ns(g) >= 1);
}

static void a_full_table_still_answers(void)
{
    for (uint64_t i = 0; i < 20000; i++) {
        struct fr_prediction *g = fr_prediction_of(i, i);
        EXPECT(g != NULL);
        fr_prediction_learn(g, 1, 1000, false);
    }
}

static void what_was_measured_beside_others_work_is_replaced_by_the_first_time_without_it(void)
{
    struct fr_prediction *g = fr_prediction_of(77, 77);
    fr_prediction_bound(g, 1, 4000000);
    EXPECT_EQ(fr_prediction_ns(g), 4000000);
    fr_prediction_bound(g, 1, 9000000); /* not less than the prediction: no information */
    EXPECT_EQ(fr_prediction_ns(g), 4000000);
    fr_prediction_learn(g, 1, 100000, false);
    EXPECT_EQ(fr_prediction_ns(g), 100000);
    fr_prediction_bound(g, 8, 5000000); /* known now: other containers' work does not make it longer */
    EXPECT_EQ(fr_prediction_ns(g), 100000);
    EXPECT_EQ(g->samples, 11);
}

/* A measurement may contain a slice of another container's work, and then counts little. If the kernel is always that long, it is believed. */
static void one_run_with_anothers_slice_in_it_says_little_and_many_are_believed(void)
{
    struct fr_prediction *g = fresh();
    for (int i = 0; i < 100; i++) fr_prediction_learn(g, 1, 500000, false);
    fr_prediction_learn(g, 1, 2500000, true);
    EXPECT(fr_prediction_ns(g) < 650000);
    for (int i = 0; i < 60; i++) fr_prediction_learn(g, 1, 2500000, true);
    EXPECT(fr_prediction_ns(g) > 2000000);
}

static void anothers_slice_makes_a_kernel_less_steady_by_little(void)
{
    struct fr_prediction *g = fresh(), *h = fresh();
    for (int i = 0; i < 16; i++) fr_prediction_check(g, 500000, 500000, false), fr_prediction_check(h, 500000, 500000, false);
    uint32_t steady = g->steady;
    fr_prediction_check(g, 500000, 2500000, true);
    fr_prediction_check(h, 2500000, 500000, false); /* shorter: other containers' work does not explain that */
    EXPECT_EQ(g->steady, steady - 1);
    EXPECT(h->steady < steady - 1);
}

int main(void)
{
    RUN(what_was_measured_beside_others_work_is_replaced_by_the_first_time_without_it);
    RUN(an_unknown_kernel_takes_what_is_taken_for_unknown_ones);
    RUN(the_first_measurement_is_believed);
    RUN(one_function_has_a_prediction_per_shape);
    RUN(a_kernel_that_got_slower_is_known_to_after_a_few_batches);
    RUN(a_kernel_that_got_faster_is_known_to_in_the_end);
    RUN(rare_long_ones_are_not_forgotten_between_them);
    RUN(kernels_that_ran_among_others_are_corrected_by_what_all_took);
    RUN(what_is_measured_out_of_all_bounds_stays_a_time);
    RUN(one_run_with_anothers_slice_in_it_says_little_and_many_are_believed);
    RUN(anothers_slice_makes_a_kernel_less_steady_by_little);
    RUN(a_full_table_still_answers);
    FINISH;
}
