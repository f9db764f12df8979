/* The charges of calls that load code while other calls are in progress: units that may still be given back are announced as slack, so that a
 * call that is short of room waits for them. Here the test acts as the driver. */
#include "ledger_check.h"

#include "ledger/own_account.h"
#include "ledger/shared.h"
#include "memory/context.h"
#include "memory/image.h"
#include "memory/loaded.h"

#include "cuda_abi.h"
#include "region.h"

#include <stdatomic.h>

#define IN_CONTEXT ((CUcontext)(uintptr_t)0x5500)
#define BLOCK (2 * MIB)
#define MODULE 0x7700ull

static const struct fr_image small = {.code = 64 * KIB, .first = 64 * KIB}, half = {.code = 1000 * KIB, .first = 1000 * KIB};
static const struct fr_place here = {.card = 0, .context = IN_CONTEXT};

static uint64_t slack(void) { return atomic_load(&fr_own_account(0)->slack) * FR_UNIT_BYTES; }

static struct fr_load begin(const struct fr_image *image)
{
    struct fr_load l;
    EXPECT_EQ(fr_load_begin_image(&l, &here, image, FR_CODE, NULL), CUDA_SUCCESS);
    return l;
}

static void end_with_nothing(struct fr_load *l) { fr_load_end(l, 0, (struct fr_count){0}); }

static void end_with_code(struct fr_load *l, uint64_t handle, const struct fr_image *image)
{
    EXPECT(fr_module_add(handle, IN_CONTEXT, image));
    l->handle = handle;
    fr_load_end(l, FR_CODE, (struct fr_count){0, true});
}

static void unload(uint64_t handle)
{
    struct fr_unload u;
    fr_unload_begin(&u, handle);
    fr_unload_end(&u, CUDA_SUCCESS);
}

static void expect(uint64_t used, uint64_t of_it_slack)
{
    EXPECT_EQ(fr_used(0), used);
    EXPECT_EQ(slack(), of_it_slack);
}

static void what_another_call_may_still_need_is_slack_until_it_ends(void)
{
    make_container(64 * MIB, 1, 16);
    struct fr_load one = begin(&small), other = begin(&small);
    expect(BLOCK, BLOCK);
    end_with_nothing(&one);
    expect(BLOCK, BLOCK);
    end_with_nothing(&other);
    expect(0, 0);
}

static void what_was_loaded_meanwhile_is_none(void)
{
    make_container(64 * MIB, 1, 16);
    struct fr_load one = begin(&small), other = begin(&small);
    end_with_nothing(&one);
    end_with_code(&other, MODULE, &small);
    expect(BLOCK, 0);
    unload(MODULE);
    expect(0, 0);
}

static void what_loads_first_leaves_nothing_that_may_come_back(void)
{
    make_container(64 * MIB, 1, 16);
    struct fr_load one = begin(&small), other = begin(&small);
    end_with_code(&one, MODULE, &small);
    expect(BLOCK, 0);
    end_with_nothing(&other);
    expect(BLOCK, 0);
}

static void a_second_block_that_only_a_call_on_its_way_needs_is_slack(void)
{
    make_container(64 * MIB, 1, 16);
    struct fr_load one = begin(&half), other = begin(&small), third = begin(&small);
    expect(2 * BLOCK, 2 * BLOCK);
    end_with_nothing(&other);
    end_with_code(&one, MODULE, &half);
    expect(2 * BLOCK, BLOCK);
    unload(MODULE);
    expect(BLOCK, BLOCK);
    end_with_nothing(&third);
    expect(0, 0);
}

static void the_slack_goes_with_its_context(void)
{
    struct fr_op op;
    make_container(64 * MIB, 1, 16);
    struct fr_load one = begin(&small), other = begin(&small);
    end_with_nothing(&one);
    fr_free_begin(&op, 0);
    fr_free_end(&op, fr_context_reclaim(IN_CONTEXT, 0));
    expect(0, 0);
    end_with_nothing(&other);
    expect(0, 0);
}

static void the_slack_stays_under_another_name_of_the_context(void)
{
    CUcontext renamed = (CUcontext)(uintptr_t)0x5600;
    make_container(64 * MIB, 1, 16);
    struct fr_load one = begin(&small), other = begin(&small);
    end_with_nothing(&one);
    fr_context_restore(IN_CONTEXT, renamed);
    expect(BLOCK, BLOCK);
    fr_context_restore(renamed, IN_CONTEXT);
    expect(BLOCK, BLOCK);
    end_with_nothing(&other);
    expect(0, 0);
}

/* A green context is destroyed while other threads load code in it: the primary context takes over the code that they have loaded. */
static void calls_on_their_way_end_where_they_began_and_their_blocks_follow(void)
{
    struct fr_op op;
    CUcontext primary = (CUcontext)(uintptr_t)0x5600;
    make_container(64 * MIB, 1, 16);
    struct fr_load one = begin(&small), other = begin(&small), third = begin(&half);
    end_with_code(&one, MODULE, &small);
    expect(2 * BLOCK, BLOCK);
    fr_context_merge(IN_CONTEXT, primary);
    expect(2 * BLOCK, BLOCK);
    end_with_code(&third, MODULE + 2, &half);
    end_with_nothing(&other);
    expect(2 * BLOCK, 0);
    fr_context_merge(IN_CONTEXT, primary);
    fr_free_begin(&op, 0);
    fr_free_end(&op, fr_context_reclaim(primary, 0));
    expect(0, 0);
}

static void a_request_that_does_not_fit_waits_for_the_call_that_may_need_less(void)
{
    struct fr_op op;
    make_container(4 * MIB, 1, 16);
    struct fr_load one = begin(&small), other = begin(&small);
    end_with_nothing(&one);
    double from = seconds();
    EXPECT_EQ(fr_op_begin(&op, 0, 4 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(seconds() - from > 1.5); /* the other call never ends, so it gives up at last */
    end_with_nothing(&other);
    EXPECT_EQ(fr_op_begin(&op, 0, 4 * MIB), CUDA_SUCCESS);
}

static int tests(void)
{
    RUN_ALONE(what_another_call_may_still_need_is_slack_until_it_ends);
    RUN_ALONE(what_was_loaded_meanwhile_is_none);
    RUN_ALONE(what_loads_first_leaves_nothing_that_may_come_back);
    RUN_ALONE(a_second_block_that_only_a_call_on_its_way_needs_is_slack);
    RUN_ALONE(the_slack_goes_with_its_context);
    RUN_ALONE(the_slack_stays_under_another_name_of_the_context);
    RUN_ALONE(calls_on_their_way_end_where_they_began_and_their_blocks_follow);
    RUN_ALONE(a_request_that_does_not_fit_waits_for_the_call_that_may_need_less);
    FINISH;
}

int main(void) { return with_directory(tests); }
