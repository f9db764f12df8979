/* Green contexts: each is charged as a context beside the primary context that it holds, and everything is refunded in the end. */
#include "container.h"

#include <pthread.h>
#include <unistd.h>

typedef struct { int type; unsigned char padding[92]; unsigned sms; unsigned char rest[44]; } resource;
CUresult cuDeviceGetDevResource(CUdevice, resource *, int);
CUresult cuDevSmResourceSplitByCount(resource *, unsigned *, const resource *, resource *, unsigned, unsigned);
CUresult cuDevResourceGenerateDesc(void **, const resource *, unsigned);
CUresult cuGreenCtxCreate(CUgreenCtx *, void *, CUdevice, unsigned);
CUresult cuGreenCtxDestroy(CUgreenCtx);
CUresult cuCtxFromGreenCtx(CUcontext *, CUgreenCtx);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuLibraryLoadData(CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned);
CUresult cuLibraryGetKernel(CUkernel *, CUlibrary, const char *);
CUresult cuLibraryUnload(CUlibrary);
CUresult cuKernelGetFunction(CUfunction *, CUkernel);
CUresult cuGreenCtxStreamCreate(CUstream *, CUgreenCtx, unsigned, int);

static CUcontext primary;

static void *half_of_the_card(void)
{
    resource all, half[2];
    unsigned groups = 2;
    void *description = NULL;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGetDevResource(0, &all, 1), CUDA_SUCCESS);
    EXPECT_EQ(all.sms, 108);
    EXPECT_EQ(cuDevSmResourceSplitByCount(half, &groups, &all, NULL, 0, 54), CUDA_SUCCESS);
    EXPECT_EQ(groups, 2);
    EXPECT_EQ(cuDevResourceGenerateDesc(&description, &half[0], 1), CUDA_SUCCESS);
    return description;
}

static CUcontext green(CUgreenCtx *g)
{
    CUcontext c = NULL;
    EXPECT_EQ(cuGreenCtxCreate(g, half_of_the_card(), 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxFromGreenCtx(&c, *g), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(c), CUDA_SUCCESS);
    return c;
}

static void a_green_context_is_charged_as_one_beside_the_primary_one(void)
{
    CUgreenCtx a, b;
    green(&a);
    EXPECT_EQ(used(), 2 * CONTEXT);
    EXPECT_EQ(held(CARD_A), 2 * CONTEXT);
    green(&b);
    EXPECT_EQ(used(), 3 * CONTEXT);
    EXPECT_EQ(cuGreenCtxDestroy(b), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 2 * CONTEXT);
    EXPECT(cuGreenCtxDestroy(b) != CUDA_SUCCESS);
    EXPECT_EQ(cuGreenCtxDestroy(a), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
    context_on(0);
    EXPECT_EQ(used(), CONTEXT);
}

static void what_is_allocated_in_it_stays_with_the_primary_one(void)
{
    CUgreenCtx g;
    CUdeviceptr p, small;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
    green(&g);
    EXPECT_EQ(cuMemAlloc_v2(&p, 100 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&small, 1000), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetLimit(2, 40 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(used(), 2 * CONTEXT + 142 * MIB);
    EXPECT_EQ(cuGreenCtxDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(primary), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 102 * MIB);
    EXPECT_EQ(held(CARD_A), CONTEXT + 102 * MIB);
    EXPECT_EQ(cuMemFree_v2(small), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 100 * MIB);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
    context_on(0);
    EXPECT_EQ(used(), CONTEXT);
}

/* Made before the primary context: then the call makes both. */
static void a_kernel_counts_once_for_the_primary_one_and_for_it(void)
{
    CUcontext c;
    CUgreenCtx g;
    CUlibrary l;
    CUkernel k;
    c = green(&g);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(primary), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryLoadData(&l, spin_ptx, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryGetKernel(&k, l, "spin"), CUDA_SUCCESS);
    for (int i = 0; i < 2; i++) EXPECT_EQ(spin_in((CUfunction)k, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(used(), held(CARD_A));
    EXPECT_EQ(cuCtxSetCurrent(c), CUDA_SUCCESS);
    for (int i = 0; i < 2; i++) EXPECT_EQ(spin_in((CUfunction)k, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(used(), held(CARD_A));
    EXPECT_EQ(used(), 2 * CONTEXT + 6 * MIB);
}

/* ---- objects made in a green context belong to the primary one, and can be freed there ---- */

#define ROUNDS 6

static const char large[] = ".version 7.0\n.target sm_50\n.address_size 64\n.global .align 16 .b8 big[20971520];\n.visible .entry k() { ret; }\n";
static const char deep[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry k() { .local .align 4 .b8 buf[2048]; ret; }\n";
static void hold_the_primary_one(void)
{
    EXPECT_EQ(cuInit(0) + cuDevicePrimaryCtxRetain(&primary, 0) + cuCtxSetCurrent(primary), CUDA_SUCCESS);
}

static void end(CUgreenCtx g)
{
    EXPECT_EQ(cuCtxSynchronize() + cuCtxSetCurrent(primary) + cuGreenCtxDestroy(g), CUDA_SUCCESS);
    NEVER_BELOW;
}

static CUkernel kernel_of(const char *text, CUlibrary *l)
{
    CUkernel k = NULL;
    EXPECT_EQ(cuLibraryLoadData(l, text, NULL, NULL, 0, NULL, NULL, 0) + cuLibraryGetKernel(&k, *l, "k"), CUDA_SUCCESS);
    return k;
}

static CUresult run(CUfunction f, CUstream s)
{
    CUresult r = cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL);
    NEVER_BELOW;
    return r;
}

static void what_a_library_loads_in_one_goes_with_the_library(void)
{
    CUgreenCtx g;
    CUlibrary l;
    CUfunction f;
    hold_the_primary_one();
    struct accounts before = accounts_now();
    for (int round = 0; round < ROUNDS; round++) {
        green(&g);
        CUkernel k = kernel_of(large, &l);
        EXPECT_EQ(run((CUfunction)k, NULL), CUDA_SUCCESS);
        EXPECT_EQ(cuKernelGetFunction(&f, k) + run(f, NULL), CUDA_SUCCESS);
        end(g);
        EXPECT(held(CARD_A) >= before.held + 20 * MIB);
        EXPECT_EQ(cuLibraryUnload(l), CUDA_SUCCESS);
        AS_BEFORE(before);
    }
}

/* The program never queries the context of this stream. */
static void what_runs_in_its_stream_goes_with_the_library_too(void)
{
    CUgreenCtx g;
    CUlibrary l;
    CUstream s;
    hold_the_primary_one();
    void *half = half_of_the_card();
    struct accounts before = accounts_now();
    for (int round = 0; round < ROUNDS; round++) {
        EXPECT_EQ(cuGreenCtxCreate(&g, half, 0, 1) + cuGreenCtxStreamCreate(&s, g, 1, 0), CUDA_SUCCESS);
        EXPECT_EQ(run((CUfunction)kernel_of(large, &l), s) + cuStreamSynchronize(s), CUDA_SUCCESS);
        end(g);
        EXPECT_EQ(cuLibraryUnload(l), CUDA_SUCCESS);
        AS_BEFORE(before);
    }
}

/* Green contexts that are made and destroyed load no more of a library than one of them does. */
static void a_library_that_stays_is_loaded_once(void)
{
    CUgreenCtx g;
    CUlibrary l;
    hold_the_primary_one();
    CUkernel k = kernel_of(large, &l);
    EXPECT_EQ(run((CUfunction)k, NULL), CUDA_SUCCESS);
    struct accounts before = accounts_now();
    for (int round = 0; round < ROUNDS; round++) {
        green(&g);
        EXPECT_EQ(run((CUfunction)k, NULL), CUDA_SUCCESS);
        end(g);
        AS_BEFORE(before);
    }
}

static void a_module_that_was_loaded_in_one_outlives_it_until_it_is_unloaded(void)
{
    CUgreenCtx g;
    CUmodule m;
    CUfunction f;
    hold_the_primary_one();
    struct accounts before = accounts_now();
    for (int round = 0; round < ROUNDS; round++) {
        green(&g);
        EXPECT_EQ(cuModuleLoadData(&m, large) + cuModuleGetFunction(&f, m, "k") + run(f, NULL), CUDA_SUCCESS);
        end(g);
        EXPECT_EQ(run(f, NULL) + cuCtxSynchronize(), CUDA_SUCCESS);
        EXPECT(held(CARD_A) >= before.held + 20 * MIB);
        EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
        AS_BEFORE(before);
    }
}

/* A module's function runs in the primary context, wherever it was launched first; a kernel runs where it is launched. */
static void the_stack_of_a_function_is_charged_where_it_stays(void)
{
    CUgreenCtx g;
    CUmodule m;
    CUlibrary l;
    CUfunction f, of_kernel;
    hold_the_primary_one();
    for (int round = 0; round < 2; round++) {
        green(&g);
        CUkernel k = kernel_of(deep, &l);
        EXPECT_EQ(run((CUfunction)k, NULL) + cuKernelGetFunction(&of_kernel, k) + run(of_kernel, NULL), CUDA_SUCCESS);
        EXPECT_EQ(cuModuleLoadData(&m, deep) + cuModuleGetFunction(&f, m, "k") + run(f, NULL), CUDA_SUCCESS);
        end(g);
        EXPECT_EQ(run((CUfunction)k, NULL) + run(of_kernel, NULL) + run(f, NULL), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
}

static void arrays_that_were_made_in_one_outlive_it(void)
{
    CUgreenCtx g;
    CUarray a;
    CUmipmappedArray m;
    CUDA_ARRAY3D_DESCRIPTOR d = {4096, 4096, 0, 8, 4, 0}, of_levels = {2048, 2048, 0, 8, 4, 0};
    hold_the_primary_one();
    struct accounts before = accounts_now();
    for (int round = 0; round < ROUNDS; round++) {
        green(&g);
        EXPECT_EQ(cuArray3DCreate_v2(&a, &d) + cuMipmappedArrayCreate(&m, &of_levels, 3), CUDA_SUCCESS);
        end(g);
        EXPECT(held(CARD_A) >= before.held + 84 * MIB);
        EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
        EXPECT_EQ(cuMipmappedArrayDestroy(m), CUDA_SUCCESS);
        AS_BEFORE(before);
    }
}

static void what_is_not_given_back_ends_with_the_primary_one(void)
{
    CUgreenCtx g;
    CUarray a;
    CUmodule m;
    CUlibrary l;
    CUDA_ARRAY3D_DESCRIPTOR d = {4096, 4096, 0, 8, 4, 0};
    hold_the_primary_one();
    green(&g);
    EXPECT_EQ(cuArray3DCreate_v2(&a, &d) + cuModuleLoadData(&m, large) + run((CUfunction)kernel_of(large, &l), NULL), CUDA_SUCCESS);
    end(g);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
    EXPECT(cuArrayDestroy(a) != CUDA_SUCCESS);
    context_on(0);
    EXPECT(used() <= CONTEXT);
    EXPECT_EQ(cuLibraryUnload(l), CUDA_SUCCESS);
    EXPECT(used() <= CONTEXT);
}

static void without_room_for_both_it_is_refused_and_nothing_stays(void)
{
    CUgreenCtx g;
    void *half = half_of_the_card();
    double start = seconds();
    EXPECT_EQ(cuGreenCtxCreate(&g, half, 0, 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(seconds() - start < 0.5); /* there is no other call to wait for */
    EXPECT_EQ(peak(CARD_A), 0);
    context_on(0);
    EXPECT_EQ(used(), CONTEXT);
}

/* ---- several processes ---- */

static void ask_until(double end)
{
    CUgreenCtx g;
    usleep(500000); /* by then the other process has its context */
    void *half = half_of_the_card();
    while (seconds() < end) EXPECT_EQ(cuGreenCtxCreate(&g, half, 0, 1), CUDA_ERROR_OUT_OF_MEMORY);
    fflush(NULL);
    _exit(ok_so_far ? 0 : 1);
}

/* There would be room for the green context, but not for the primary one as well. */
static void one_that_cannot_have_both_delays_no_process(void)
{
    allocate_beside(ask_until);
}

#define OFTEN 30

static void make_often(double end)
{
    CUgreenCtx g;
    void *half = half_of_the_card();
    double longest = 0;
    int made = 0;
    while (made < OFTEN && seconds() < end) {
        double start = seconds();
        CUresult r = cuGreenCtxCreate(&g, half, 0, 1);
        if (seconds() - start > longest) longest = seconds() - start;
        if (!r && cuGreenCtxDestroy(g) == CUDA_SUCCESS) made++;
        usleep(500);
    }
    EXPECT_EQ(made, OFTEN);
    EXPECT(longest < 1);
    fflush(NULL);
    _exit(ok_so_far ? 0 : 1);
}

/* There is room for both contexts of one process at a time. If each process waited while it held one context, neither would get the other. */
static void processes_that_both_need_both_take_turns(void)
{
    int status, failed_ones = 0;
    double end = seconds() + 20;
    for (int i = 0; i < 2; i++)
        if (fork() == 0) make_often(end);
    for (int i = 0; i < 2; i++) {
        EXPECT(wait(&status) > 0);
        failed_ones += status != 0;
    }
    EXPECT_EQ(failed_ones, 0);
    EXPECT(peak(CARD_A) <= 600 * MIB);
}

static void in_a_quota_for_two_of_them_neither_is_ever_refused(void)
{
    CUgreenCtx g;
    int status;
    pid_t child = fork();
    void *half = half_of_the_card();
    for (int i = 0; i < 200; i++) {
        EXPECT_EQ(cuGreenCtxCreate(&g, half, 0, 1), CUDA_SUCCESS);
        EXPECT_EQ(cuGreenCtxDestroy(g), CUDA_SUCCESS);
    }
    fflush(NULL);
    if (child == 0) _exit(ok_so_far ? 0 : 1);
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT(peak(CARD_A) <= 4 * CONTEXT);
}

static void by_every_policy_it_stays_within_the_quota(void)
{
    CUgreenCtx g[4];
    CUdeviceptr p;
    green(&g[0]);
    unsigned made = 1;
    void *half = half_of_the_card();
    while (made < 4 && cuGreenCtxCreate(&g[made], half, 0, 1) == CUDA_SUCCESS) made++;
    EXPECT_EQ(made, 2);
    while (cuMemAlloc_v2(&p, 10 * MIB) == CUDA_SUCCESS) {}
    EXPECT(peak(CARD_A) <= 900 * MIB);
    while (made > 0) EXPECT_EQ(cuGreenCtxDestroy(g[--made]), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
}

/* ---- a reset of the primary context ---- */

static void with_the_primary_one_all_of_it_ends(void)
{
    CUgreenCtx g;
    CUdeviceptr p;
    CUcontext c = green(&g), again;
    EXPECT_EQ(cuMemAlloc_v2(&p, 100 * MIB) + cuMemAlloc_v2(&p, 1000), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 2 * CONTEXT + 102 * MIB);
    EXPECT_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
    EXPECT(cuMemAlloc_v2(&p, 2 * MIB) != CUDA_SUCCESS);
    EXPECT(cuCtxFromGreenCtx(&again, g) != CUDA_SUCCESS);
    EXPECT(cuCtxSetCurrent(c) != CUDA_SUCCESS);
    EXPECT_EQ(cuGreenCtxDestroy(g), CUDA_SUCCESS);
    EXPECT(cuGreenCtxDestroy(g) != CUDA_SUCCESS);
    context_on(0);
    EXPECT_EQ(used(), CONTEXT);
}

/* The charge for the green context stays until it is destroyed. That does not affect the charges of the new primary context. */
static void a_primary_one_made_after_the_reset_is_another(void)
{
    CUgreenCtx g;
    CUdeviceptr p;
    green(&g);
    EXPECT_EQ(cuMemAlloc_v2(&p, 100 * MIB) + cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&primary, 0) + cuCtxSetCurrent(primary) + cuMemAlloc_v2(&p, 50 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), CONTEXT + 50 * MIB);
    EXPECT_EQ(used(), 2 * CONTEXT + 50 * MIB);
    EXPECT_EQ(cuGreenCtxDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 50 * MIB);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
    context_on(0);
    EXPECT_EQ(used(), CONTEXT);
}

static _Atomic bool enough;

static void *allocate_in_green_ones(void *description)
{
    CUgreenCtx g;
    while (!enough) {
        CUcontext c;
        CUdeviceptr p;
        if (cuGreenCtxCreate(&g, description, 0, 1) != CUDA_SUCCESS) continue;
        if (cuCtxFromGreenCtx(&c, g) == CUDA_SUCCESS && cuCtxSetCurrent(c) == CUDA_SUCCESS)
            for (int i = 0; i < 4; i++) cuMemAlloc_v2(&p, 2 * MIB);
        cuGreenCtxDestroy(g);
    }
    return NULL;
}

static void resets_meanwhile_take_no_more_than_was_charged_and_leave_nothing(void)
{
    pthread_t threads[2];
    void *description = half_of_the_card();
    for (int i = 0; i < 2; i++) EXPECT_EQ(pthread_create(&threads[i], NULL, allocate_in_green_ones, description), 0);
    for (int i = 0; i < 3000; i++) {
        cuDevicePrimaryCtxReset_v2(0);
        usleep(300);
    }
    enough = true;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    cuDevicePrimaryCtxReset_v2(0);
    EXPECT(peak(CARD_A) <= 1200 * MIB);
    EXPECT_EQ(held(CARD_A), 0);
    context_on(0);
    EXPECT_EQ(used(), CONTEXT);
}

/* The driver may reuse the handles of its functions for functions of the next context, where their stack is not taken yet. */
static void functions_of_one_that_has_ended_are_charged_again_in_the_next(void)
{
    CUgreenCtx g;
    CUmodule m;
    CUfunction f;
    EXPECT_EQ(cuInit(0) + cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
    for (int round = 0; round < 8; round++) {
        green(&g);
        EXPECT_EQ(cuModuleLoadData(&m, deep) + cuModuleGetFunction(&f, m, "k"), CUDA_SUCCESS);
        EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
        EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
        EXPECT(used() >= held(CARD_A));
        EXPECT_EQ(cuCtxSetCurrent(primary) + cuModuleUnload(m) + cuGreenCtxDestroy(g), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
}

/* The last small pieces of the quota are in pools, which do not end with a context. */
static void the_last_small_pieces_of_one_go_with_it(void)
{
    CUgreenCtx g;
    CUdeviceptr p;
    for (int round = 0; round < 3; round++) {
        green(&g);
        unsigned pieces = 0;
        while (!cuMemAlloc_v2(&p, 300000)) pieces++;
        EXPECT(pieces > 60);
        EXPECT_EQ(cuGreenCtxDestroy(g), CUDA_SUCCESS);
        EXPECT_EQ(held(CARD_A), 0);
    }
    context_on(0);
    EXPECT_EQ(used(), CONTEXT);
}

int main(void)
{
    IN(CARD_A "=900MiB,context=256MiB", a_green_context_is_charged_as_one_beside_the_primary_one);
    IN(CARD_A "=700MiB,context=256MiB", what_is_allocated_in_it_stays_with_the_primary_one);
    IN(CARD_A "=900MiB,context=256MiB", a_kernel_counts_once_for_the_primary_one_and_for_it);
    IN_POLICIES(CARD_A "=900MiB,context=256MiB", what_a_library_loads_in_one_goes_with_the_library);
    IN_POLICIES(CARD_A "=900MiB,context=256MiB", what_runs_in_its_stream_goes_with_the_library_too);
    IN_POLICIES(CARD_A "=900MiB,context=256MiB", a_library_that_stays_is_loaded_once);
    IN_POLICIES(CARD_A "=900MiB,context=256MiB", a_module_that_was_loaded_in_one_outlives_it_until_it_is_unloaded);
    IN_POLICIES(CARD_A "=3GiB,context=256MiB", the_stack_of_a_function_is_charged_where_it_stays);
    IN_POLICIES(CARD_A "=900MiB,context=256MiB", arrays_that_were_made_in_one_outlive_it);
    IN_POLICIES(CARD_A "=900MiB,context=256MiB", what_is_not_given_back_ends_with_the_primary_one);
    IN(CARD_A "=400MiB,context=256MiB", without_room_for_both_it_is_refused_and_nothing_stays);
    IN(CARD_A "=600MiB,context=256MiB", one_that_cannot_have_both_delays_no_process);
    IN(CARD_A "=600MiB,context=256MiB", processes_that_both_need_both_take_turns);
    IN(CARD_A "=1024MiB,context=256MiB", in_a_quota_for_two_of_them_neither_is_ever_refused);
    IN(CARD_A "=700MiB,context=256MiB", with_the_primary_one_all_of_it_ends);
    IN(CARD_A "=700MiB,context=256MiB", a_primary_one_made_after_the_reset_is_another);
    IN(CARD_A "=3GiB,context=256MiB", functions_of_one_that_has_ended_are_charged_again_in_the_next);
    IN(CARD_A "=600MiB,context=256MiB", the_last_small_pieces_of_one_go_with_it);
    IN(CARD_A "=1200MiB,context=256MiB", resets_meanwhile_take_no_more_than_was_charged_and_leave_nothing);
    IN_POLICIES(CARD_A "=900MiB,context=256MiB", by_every_policy_it_stays_within_the_quota);
    FINISH;
}
