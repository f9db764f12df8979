/* Stacks, heaps and buffers of contexts are charged for the most that they can take, before the driver takes it, whatever its policy. */
#include "container.h"

CUresult cuCtxGetLimit(size_t *, int);
CUresult cuFuncGetAttribute(int *, int, CUfunction);

enum { STACK, PRINTF, HEAP, SYNC_DEPTH, PENDING };
#define THREADS (108ull * 2048) /* threads of card A */
#define STACK_OF(bytes) ((bytes) * THREADS)

static const char deep_ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                               ".visible .entry flat()\n{\n .local .align 8 .b8 __local_depot0[64];\n ret;\n}\n"
                               ".visible .entry deep()\n{\n .local .align 8 .b8 __local_depot1[3000];\n ret;\n}\n";

static CUresult launch(CUfunction f) { return cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL); }

static CUfunction kernel(CUmodule m, const char *name)
{
    CUfunction f = NULL;
    EXPECT_EQ(cuModuleGetFunction(&f, m, name), CUDA_SUCCESS);
    return f;
}

static void a_larger_heap_is_charged_and_goes_with_its_context(void)
{
    size_t heap;
    CUcontext b, a = context_on(0);
    EXPECT_EQ(cuCtxGetLimit(&heap, HEAP), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetLimit(HEAP, heap), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetLimit(HEAP, 1), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT); /* up to the default it is part of the context */
    EXPECT_EQ(cuCtxSetLimit(HEAP, heap + 64 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 72 * MIB);
    EXPECT_EQ(cuCtxSetLimit(PRINTF, 5 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 78 * MIB);
    EXPECT_EQ(held(CARD_A), CONTEXT + 68 * MIB);
    EXPECT_EQ(cuCtxSetLimit(HEAP, heap + 32 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 78 * MIB); /* it is not documented whether the driver frees any memory */
    EXPECT_EQ(cuCtxSetLimit(HEAP, 1024 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuCtxSetLimit(HEAP, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuCtxGetLimit(&heap, HEAP), CUDA_SUCCESS);
    EXPECT_EQ(heap, 40 * MIB); /* the driver was not called */
    EXPECT_EQ(used(), CONTEXT + 78 * MIB);
    EXPECT_EQ(cuCtxSetLimit(99, 1), CUDA_ERROR_UNSUPPORTED_LIMIT);
    EXPECT_EQ(cuCtxDestroy_v2(a), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
    EXPECT_EQ(cuCtxCreate_v2(&b, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT(peak(CARD_A) <= 600 * MIB);
}

static void a_larger_stack_is_charged_for_every_thread_that_the_card_can_hold(void)
{
    CUcontext a = context_on(0);
    EXPECT_EQ(cuCtxSetLimit(STACK, 1024), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuCtxSetLimit(STACK, 1025), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + STACK_OF(1536));
    EXPECT_EQ(cuCtxSetLimit(STACK, 1536), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + STACK_OF(1536));
    EXPECT_EQ(cuCtxSetLimit(STACK, 8192), CUDA_ERROR_OUT_OF_MEMORY); /* 1728 MiB */
    EXPECT(held(CARD_A) <= used());
    EXPECT_EQ(cuCtxSetLimit(STACK, 512), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + STACK_OF(1536));
    EXPECT_EQ(cuCtxDestroy_v2(a), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
    context_on(0);
    EXPECT_EQ(used(), CONTEXT);
}

static void the_limits_of_kernels_that_launch_kernels_are_charged(void)
{
    context_on(0);
    EXPECT_EQ(cuCtxSetLimit(SYNC_DEPTH, 3), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 450 * MIB);
    EXPECT_EQ(cuCtxSetLimit(PENDING, 4096), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 594 * MIB);
    EXPECT(held(CARD_A) > CONTEXT && held(CARD_A) <= used());
    EXPECT_EQ(cuCtxSetLimit(SYNC_DEPTH, 24), CUDA_ERROR_OUT_OF_MEMORY);
}

static void a_kernel_with_more_local_memory_than_stack_is_charged_before_its_first_launch(void)
{
    CUmodule m;
    int local = 0;
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, deep_ptx), CUDA_SUCCESS);
    CUfunction flat = kernel(m, "flat"), deep = kernel(m, "deep");
    EXPECT_EQ(cuFuncGetAttribute(&local, 3, deep), CUDA_SUCCESS);
    EXPECT_EQ(local, 3000);
    EXPECT_EQ(launch(flat), CUDA_SUCCESS);
    unsigned long long before = used();
    EXPECT(before <= CONTEXT + 2 * MIB);
    EXPECT_EQ(launch(deep), CUDA_SUCCESS);
    EXPECT_EQ(used(), before + STACK_OF(3072));
    EXPECT(held(CARD_A) > before + STACK_OF(1024));
    EXPECT_EQ(launch(deep), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetLimit(STACK, 1536), CUDA_ERROR_OUT_OF_MEMORY); /* two may exist during the call */
    EXPECT_EQ(cuCtxSetLimit(STACK, 1000), CUDA_SUCCESS);
    EXPECT_EQ(used(), before + STACK_OF(3072)); /* the same stack */
    EXPECT(held(CARD_A) <= used());
    EXPECT(peak(CARD_A) <= 1000 * MIB);
}

static void a_launch_whose_stack_does_not_fit_is_refused_and_the_next_one_goes(void)
{
    CUmodule m;
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, deep_ptx), CUDA_SUCCESS);
    EXPECT_EQ(launch(kernel(m, "deep")), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(used() <= CONTEXT + 2 * MIB);
    EXPECT_EQ(launch(kernel(m, "deep")), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(launch(kernel(m, "flat")), CUDA_SUCCESS);
    EXPECT(peak(CARD_A) <= CONTEXT + 2 * MIB);
}

/* Under drivers that take buffers early or late, in part or in full, and with or without the old buffer beside the new one. */
static void no_limit_brings_the_container_above_its_quota(void)
{
    CUmodule m;
    unsigned seed = 7, set = 0;
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, deep_ptx), CUDA_SUCCESS);
    CUfunction flat = kernel(m, "flat"), deep = kernel(m, "deep");
    for (int i = 0; i < 150; i++) {
        static const size_t most[] = {3000, 40 * MIB, 90 * MIB, 4, 5000};
        unsigned at = rand_r(&seed), size = rand_r(&seed);
        if (at % 7 < 5) set += cuCtxSetLimit((int)(at % 7), size % most[at % 7]) == CUDA_SUCCESS;
        else launch(at % 7 == 5 ? flat : deep);
        if (i % 15 == 0) EXPECT(held(CARD_A) <= used());
    }
    EXPECT(peak(CARD_A) <= 1400 * MIB);
    EXPECT(set > 40 && set < 200);
}

static void the_same_limit_once_more_and_a_lower_one_stay_within_the_quota(void)
{
    context_on(0);
    EXPECT_EQ(cuCtxSetLimit(STACK, 4096), CUDA_SUCCESS);
    for (int i = 0; i < 3; i++) EXPECT_EQ(cuCtxSetLimit(STACK, 4096), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + STACK_OF(4096));
    EXPECT_EQ(cuCtxSetLimit(STACK, 3000), CUDA_ERROR_OUT_OF_MEMORY); /* a driver may take the new one before it frees the old one */
    EXPECT_EQ(cuCtxSetLimit(STACK, 1024), CUDA_SUCCESS);
    EXPECT(peak(CARD_A) <= 1400 * MIB);
}

int main(void)
{
    static const char some[] = CARD_A "=600MiB,context=256MiB", more[] = CARD_A "=1000MiB,context=256MiB";
    IN(some, a_larger_heap_is_charged_and_goes_with_its_context);
    IN(more, a_larger_stack_is_charged_for_every_thread_that_the_card_can_hold);
    IN(more, the_limits_of_kernels_that_launch_kernels_are_charged);
    IN(more, a_kernel_with_more_local_memory_than_stack_is_charged_before_its_first_launch);
    IN(some, a_launch_whose_stack_does_not_fit_is_refused_and_the_next_one_goes);
    for (int seed = 0; seed <= 20; seed++) {
        char text[16];
        snprintf(text, sizeof text, "%d", seed);
        setenv("SIMGPU_POLICY", text, 1);
        IN(CARD_A "=1400MiB,context=256MiB", the_same_limit_once_more_and_a_lower_one_stay_within_the_quota);
        IN(CARD_A "=1400MiB,context=256MiB", no_limit_brings_the_container_above_its_quota);
    }
    FINISH;
}
