/* Contexts: their cost, and that everything in them is refunded when they are destroyed, and not before. */
#include "container.h"

#include <pthread.h>
#include <unistd.h>

CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuCtxCreate_v4(CUcontext *, void *, unsigned, CUdevice);

CUresult cuCtxPopCurrent_v2(CUcontext *);
CUresult cuFuncLoad(CUfunction);

static void a_context_is_charged_when_it_is_made_and_refunded_when_it_goes(void)
{
    CUcontext b, a = context_on(0);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuCtxCreate_v4(&b, NULL, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), 2 * CONTEXT);
    EXPECT_EQ(held(CARD_A), 2 * CONTEXT);
    EXPECT_EQ(cuCtxDestroy_v2(b), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(a), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuCtxDestroy_v2(b), CUDA_ERROR_INVALID_CONTEXT); /* a second time: nothing is refunded */
    EXPECT_EQ(used(), CONTEXT);
}

static void a_quota_below_the_size_of_a_context_refuses_it_and_the_program_goes_on(void)
{
    CUcontext c = NULL;
    size_t total = 0;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&c, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuDeviceTotalMem_v2(&total, 0), CUDA_SUCCESS);
    EXPECT_EQ(total, 200 * MIB);
    EXPECT_EQ(peak(CARD_A), 0);
}

static void a_quota_of_zero_refuses_everything(void)
{
    CUcontext c = NULL;
    CUdeviceptr p;
    size_t total = 1;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc_v2(&p, 1), 201); /* no context: the driver's own error */
    EXPECT_EQ(cuDeviceTotalMem_v2(&total, 0), CUDA_SUCCESS);
    EXPECT_EQ(total, 0);
}

static void a_context_takes_all_that_was_in_it_along(void)
{
    CUdeviceptr p, small[100];
    CUcontext b, a = context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 10 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&b, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&p, 20 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAllocManaged(&p, 6 * MIB, 1), CUDA_SUCCESS);
    for (int i = 0; i < 100; i++) EXPECT_EQ(cuMemAlloc_v2(&small[i], 50000), CUDA_SUCCESS);
    EXPECT_EQ(used(), 2 * CONTEXT + 42 * MIB);
    EXPECT_EQ(held(CARD_A), 2 * CONTEXT + 42 * MIB);
    EXPECT_EQ(cuCtxDestroy_v2(b), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(a), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 10 * MIB);
    EXPECT_EQ(cuMemFree_v2(small[3]), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(used(), CONTEXT + 10 * MIB);
    EXPECT_EQ(held(CARD_A), CONTEXT + 10 * MIB);
}

static void the_primary_context_is_charged_once_and_counted_by_its_holders(void)
{
    CUcontext a, b;
    CUdeviceptr p;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&a, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&b, 0), CUDA_SUCCESS); /* with a quota for one */
    EXPECT(a == b);
    EXPECT_EQ(cuCtxSetCurrent(a), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&p, 30 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 30 * MIB);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 30 * MIB);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
    EXPECT(cuDevicePrimaryCtxRelease_v2(0) != CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&a, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(a), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuMemAlloc_v2(&p, 44 * MIB), CUDA_SUCCESS); /* everything is refunded */
    EXPECT_EQ(peak(CARD_A), 300 * MIB);
}

static void a_reset_of_the_primary_context_gives_all_back_for_all_holders(void)
{
    CUcontext c;
    CUdeviceptr p;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(cuDevicePrimaryCtxRetain(&c, 0), CUDA_SUCCESS);
        EXPECT_EQ(cuDevicePrimaryCtxRetain(&c, 0), CUDA_SUCCESS);
        EXPECT_EQ(cuCtxSetCurrent(c), CUDA_SUCCESS);
        EXPECT_EQ(cuMemAlloc_v2(&p, 40 * MIB), CUDA_SUCCESS);
        EXPECT_EQ(cuMemAlloc_v2(&p, 40), CUDA_SUCCESS);
        EXPECT_EQ(used(), CONTEXT + 42 * MIB);
        EXPECT_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
        EXPECT_EQ(held(CARD_A), 0);
    }
    EXPECT_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS); /* there is no primary context */
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&c, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(c), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void *hold_and_let_go(void *failures)
{
    CUcontext c;
    CUdeviceptr p;
    for (int i = 0; i < 300; i++) {
        if (cuDevicePrimaryCtxRetain(&c, 0) != CUDA_SUCCESS) {
            ++*(_Atomic int *)failures;
            continue;
        }
        if (cuCtxSetCurrent(c) == CUDA_SUCCESS && cuMemAlloc_v2(&p, 4096) == CUDA_SUCCESS) cuMemFree_v2(p);
        cuCtxSetCurrent(NULL);
        EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    }
    return NULL;
}

static void threads_that_hold_the_primary_context_in_turn_are_charged_for_one(void)
{
    pthread_t threads[4];
    _Atomic int failures = 0;
    CUcontext c;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, hold_and_let_go, &failures);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    EXPECT_EQ(failures, 0);
    EXPECT_EQ(held(CARD_A), 0);
    EXPECT(peak(CARD_A) <= 300 * MIB);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&c, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(c), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

/* Allocated memory is freed with the context, at the last release. Which release is the last is not known before. */
static void *hold_allocate_and_let_go(void *unused)
{
    CUcontext c;
    CUdeviceptr p;
    for (int i = 0; i < 2000; i++) {
        if (cuDevicePrimaryCtxRetain(&c, 0) != CUDA_SUCCESS) continue;
        if (cuCtxSetCurrent(c) == CUDA_SUCCESS) cuMemAlloc_v2(&p, 2 * MIB);
        cuCtxSetCurrent(NULL);
        EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    }
    return unused;
}

static void what_threads_left_in_the_primary_context_is_counted_off_with_it(void)
{
    pthread_t threads[3];
    CUcontext c;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, hold_allocate_and_let_go, NULL);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    EXPECT_EQ(held(CARD_A), 0);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&c, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(c), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

/* A thread is delayed while it destroys a context. Meanwhile other threads destroy hundreds of contexts with memory at the same addresses. */
static _Atomic bool enough;
static void *make_and_destroy(void *unused)
{
    CUcontext c;
    CUdeviceptr p;
    while (!enough) {
        if (cuCtxCreate_v2(&c, 0, 0) != CUDA_SUCCESS) continue;
        for (int i = 0; i < 3; i++) cuMemAlloc_v2(&p, 2 * MIB);
        EXPECT_EQ(cuCtxDestroy_v2(c), CUDA_SUCCESS);
    }
    return unused;
}

static void *allocate_beside_them(void *context)
{
    CUdeviceptr p;
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    while (!enough)
        if (cuMemAlloc_v2(&p, 2 * MIB) == CUDA_SUCCESS) EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    return NULL;
}

static void contexts_that_end_at_the_same_time_take_their_own_memory_along(void)
{
    pthread_t threads[4];
    CUcontext c = context_on(0);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, i & 1 ? make_and_destroy : allocate_beside_them, c);
    usleep(1500000);
    enough = true;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    EXPECT_EQ(cuCtxSetCurrent(c), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(held(CARD_A), CONTEXT);
}

static pthread_barrier_t both;

static void *destroy_with_another(void *context)
{
    pthread_barrier_wait(&both);
    return (void *)(uintptr_t)cuCtxDestroy_v2(context);
}

static void a_context_that_two_threads_destroy_at_the_same_moment_is_counted_off(void)
{
    CUcontext c, popped;
    pthread_t t[2];
    context_on(0);
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < 300 && ok_so_far; i++) {
        void *result[2];
        EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_SUCCESS);
        EXPECT_EQ(cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
        for (int k = 0; k < 2; k++) pthread_create(&t[k], NULL, destroy_with_another, c);
        for (int k = 0; k < 2; k++) pthread_join(t[k], &result[k]);
        EXPECT(!result[0] || !result[1]);
    }
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(held(CARD_A), CONTEXT);
}

enum { ENTRIES = 200 };
#ifdef __SANITIZE_ADDRESS__
#define WITH_SANITIZER true
#else
#define WITH_SANITIZER false
#endif

static char code_ptx[64 * ENTRIES + 100];

static void write_code(void)
{
    char *at = code_ptx + sprintf(code_ptx, ".version 7.0\n.target sm_50\n.address_size 64\n");
    for (int i = 0; i < ENTRIES; i++) at += sprintf(at, ".visible .entry k%d()\n{\n ret;\n}\n", i);
}

static _Atomic(CUcontext) loaded_into;

static void *load_code(void *own)
{
    CUmodule m;
    CUfunction f;
    char name[8];
    while (!enough) {
        CUcontext c = loaded_into;
        if (!c || cuCtxSetCurrent(c)) continue;
        CUresult r = cuModuleLoadData(&m, code_ptx);
        for (int i = 0; i < 20 && !r; i++) {
            snprintf(name, sizeof name, "k%d", i);
            r = cuModuleGetFunction(&f, m, name);
            if (!r) r = cuFuncLoad(f);
        }
        cuCtxSetCurrent(own);
    }
    return NULL;
}

/* The library queries the driver about the results of a call, but must not do so for a module that was destroyed with its context. The program
 * itself passes handles that are destroyed; simgpu reads them, so a sanitizer would end the program. */
static void a_context_may_be_destroyed_while_others_load_code_in_it(void)
{
    pthread_t t[3];
    CUcontext own = context_on(0), c, popped;
    enough = false;
    write_code();
    for (int i = 0; i < 3; i++) pthread_create(&t[i], NULL, load_code, own);
    for (double until = seconds() + 3; seconds() < until && ok_so_far;) {
        EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_SUCCESS);
        cuCtxPopCurrent_v2(&popped);
        loaded_into = c;
        usleep((unsigned)rand() % 2000);
        loaded_into = NULL;
        EXPECT_EQ(cuCtxDestroy_v2(c), CUDA_SUCCESS);
    }
    enough = true;
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    EXPECT(peak(CARD_A) <= 2048 * MIB);
}

static void without_the_agents_figure_a_context_is_measured(void)
{
    CUcontext b;
    context_on(0);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuCtxCreate_v2(&b, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), 2 * CONTEXT);
    EXPECT_EQ(held(CARD_A), 2 * CONTEXT);
}

static void wrong_arguments_get_the_drivers_answers(void)
{
    CUcontext c = NULL;
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(NULL, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 77), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, -1), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(NULL, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&c, 77), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(77), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(-1), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuDevicePrimaryCtxReset_v2(77), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuCtxDestroy_v2(NULL), CUDA_ERROR_INVALID_CONTEXT);
}

int main(void)
{
    static const char two[] = CARD_A "=600MiB,context=256MiB", one[] = CARD_A "=300MiB,context=256MiB", three[] = CARD_A "=900MiB,context=256MiB";
    IN(two, a_context_is_charged_when_it_is_made_and_refunded_when_it_goes);
    IN(CARD_A "=200MiB,context=256MiB", a_quota_below_the_size_of_a_context_refuses_it_and_the_program_goes_on);
    IN(CARD_A "=0MiB,context=256MiB", a_quota_of_zero_refuses_everything);
    IN(two, a_context_takes_all_that_was_in_it_along);
    IN(one, the_primary_context_is_charged_once_and_counted_by_its_holders);
    IN(one, a_reset_of_the_primary_context_gives_all_back_for_all_holders);
    IN(two, threads_that_hold_the_primary_context_in_turn_are_charged_for_one);
    IN(two, what_threads_left_in_the_primary_context_is_counted_off_with_it);
    IN(three, contexts_that_end_at_the_same_time_take_their_own_memory_along);
    IN(two, a_context_that_two_threads_destroy_at_the_same_moment_is_counted_off);
    setenv("SIMGPU_POLICY", "7", 1);
    if (!WITH_SANITIZER) IN(CARD_A "=2GiB,context=256MiB", a_context_may_be_destroyed_while_others_load_code_in_it);
    unsetenv("SIMGPU_POLICY");
    IN(CARD_A "=600MiB", without_the_agents_figure_a_context_is_measured);
    IN(two, wrong_arguments_get_the_drivers_answers);
    FINISH;
}
