/* Cases that other libraries of this kind handled wrongly, and the errors that the application gets. */
#include "container.h"

CUresult cuMemAlloc(unsigned *, unsigned);
CUresult cuMemFree(unsigned);
CUresult cuMemAllocPitch(unsigned *, unsigned *, unsigned, unsigned, unsigned);
CUresult cuImportExternalMemory(CUexternalMemory *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *);
CUresult cuDestroyExternalMemory(CUexternalMemory);
CUresult cuGreenCtxCreate(CUgreenCtx *, void *, CUdevice, unsigned);
CUresult cuMemHostRegister_v2(void *, size_t, unsigned);
CUresult cuMemHostUnregister(void *);

static void out_of_memory_is_error_2_whatever_was_asked_for(void)
{
    CUdeviceptr p;
    CUarray a;
    CUcontext c;
    CUmodule m;
    size_t pitch;
    CUDA_ARRAY_DESCRIPTOR d = {1024, 1024, 0x20, 4};
    CUDA_ARRAY3D_DESCRIPTOR d3 = {1024, 1024, 1, 0x20, 4, 0};
    context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 4 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&p, 1), 2);
    EXPECT_EQ(cuMemAlloc_v2(&p, 1 * MIB), 2);
    EXPECT_EQ(cuMemAlloc_v2(&p, SIZE_MAX), 2);
    EXPECT_EQ(cuMemAlloc_v2(&p, 1ull << 63), 2);
    EXPECT_EQ(cuMemAllocManaged(&p, 1, 1), 2);
    EXPECT_EQ(cuMemAllocManaged(&p, SIZE_MAX, 1), 2);
    EXPECT_EQ(cuMemAllocPitch_v2(&p, &pitch, 100, 100, 4), 2);
    EXPECT_EQ(cuMemAllocPitch_v2(&p, &pitch, SIZE_MAX, SIZE_MAX, 4), 2);
    EXPECT_EQ(cuArrayCreate_v2(&a, &d), 2);
    EXPECT_EQ(cuArray3DCreate_v2(&a, &d3), 2);
    EXPECT_EQ(cuMipmappedArrayCreate(&a, &d3, 3), 2);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), 2);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&c, 0), 2);
    EXPECT_EQ(cuCtxSetLimit(2, 100 * MIB), 2);
    EXPECT_EQ(cuModuleLoadData(&m, spin_ptx), 2);
    EXPECT_EQ(peak(CARD_A), 260 * MIB);
    EXPECT_EQ(used(), 260 * MIB);
}

static void an_unknown_pointer_is_the_drivers_to_judge(void)
{
    CUdeviceptr p;
    context_on(0);
    EXPECT_EQ(cuMemFree_v2(12345), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFree_v2(0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&p, 4 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(p + 512), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuArrayDestroy(NULL) == CUDA_SUCCESS, false);
    EXPECT_EQ(cuMipmappedArrayDestroy(NULL) == CUDA_SUCCESS, false);
    EXPECT_EQ(held(CARD_A), CONTEXT);
}

/* Memory that the driver does not free stays charged. */
static void a_free_that_the_driver_refuses_refunds_nothing(void)
{
    CUdeviceptr p, q;
    CUcontext c = context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 4 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&q, 4096), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemFree_v2(q), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuCtxSetCurrent(c), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(q), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void no_pointer_and_wrong_arguments_get_the_drivers_answers_even_with_a_full_quota(void)
{
    CUdeviceptr p;
    size_t pitch;
    EXPECT_EQ(cuMemAlloc_v2(&p, 1), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(cuMemFree_v2(1), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemAllocManaged(&p, 1, 1), CUDA_ERROR_INVALID_CONTEXT);
    context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 4 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(NULL, 16), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAlloc_v2(&p, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAllocManaged(NULL, 16, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAllocManaged(&p, 16, 77), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAllocManaged(&p, 0, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAllocPitch_v2(NULL, &pitch, 16, 16, 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAllocPitch_v2(&p, NULL, 16, 16, 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAllocPitch_v2(&p, &pitch, 16, 16, 5), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuArrayCreate_v2(NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuArray3DCreate_v2(NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMipmappedArrayCreate(NULL, NULL, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuModuleLoadData(NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == CUDA_SUCCESS, false);
    EXPECT_EQ(used(), 260 * MIB);
}

static void what_the_driver_does_not_have_answers_as_the_driver_does(void)
{
    CUexternalMemory memory;
    CUgreenCtx green;
    unsigned p = 0, pitch = 0;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC d = {.type = 1, .size = 2 * MIB};
    context_on(0);
    EXPECT_EQ(cuImportExternalMemory(&memory, &d), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuDestroyExternalMemory(NULL), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuGreenCtxCreate(&green, &d, 0, 1), CUDA_ERROR_OUT_OF_MEMORY); /* there is room for one context */
    EXPECT_EQ(cuMemAlloc(&p, 4096), CUDA_ERROR_INVALID_CONTEXT); /* the 32-bit form: no context supports it */
    EXPECT_EQ(cuMemAllocPitch(&p, &pitch, 4096, 2, 4), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(used(), CONTEXT);
    d.size = 300 * MIB;
    EXPECT_EQ(cuImportExternalMemory(&memory, &d), CUDA_ERROR_OUT_OF_MEMORY); /* made by Vulkan, charged to the importer */
}

static void host_memory_is_never_charged_nor_refused(void)
{
    static char page[1 << 20];
    CUdeviceptr p;
    void *h;
    context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 4 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemHostAlloc(&h, 64 * MIB, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemHostRegister_v2(page, sizeof page, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), 260 * MIB);
    EXPECT_EQ(cuMemHostUnregister(page), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeHost(h), CUDA_SUCCESS);
}

/* 600 + 600 MiB under a limit of 1024: another library granted both in one round of five. */
enum { RACERS = 4, ROUNDS = 50 };

static void race(int go, int said)
{
    CUdeviceptr p;
    char byte;
    context_on(0);
    EXPECT_EQ(write(said, "r", 1), 1);
    for (int round = 0; round < ROUNDS; round++) {
        EXPECT_EQ(read(go, &byte, 1), 1);
        bool mine = cuMemAlloc_v2(&p, 600 * MIB) == CUDA_SUCCESS;
        EXPECT_EQ(write(said, mine ? "y" : "n", 1), 1);
        EXPECT_EQ(read(go, &byte, 1), 1);
        if (mine) EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
        EXPECT_EQ(write(said, "d", 1), 1);
    }
    fflush(NULL);
    _exit(!ok_so_far);
}

static int all_say(int go[RACERS], int said[RACERS], bool tell)
{
    int yes = 0;
    char byte = 0;
    for (int i = 0; i < RACERS && tell; i++) EXPECT_EQ(write(go[i], "g", 1), 1);
    for (int i = 0; i < RACERS; i++) {
        EXPECT_EQ(read(said[i], &byte, 1), 1);
        yes += byte == 'y';
    }
    return yes;
}

static void processes_that_ask_at_once_never_get_more_than_the_quota_together(void)
{
    int go[RACERS], said[RACERS];
    fflush(NULL);
    for (int i = 0; i < RACERS; i++) {
        int down[2], up[2];
        EXPECT(pipe(down) == 0 && pipe(up) == 0);
        if (fork() == 0) race(down[0], up[1]);
        go[i] = down[1];
        said[i] = up[0];
    }
    all_say(go, said, false);
    for (int round = 0; round < ROUNDS; round++) {
        EXPECT_EQ(all_say(go, said, true), 1); /* never two, and never zero */
        all_say(go, said, true);
    }
    for (int i = 0, status; i < RACERS; i++) EXPECT(wait(&status) > 0 && status == 0);
    EXPECT(context_on(0) && peak(CARD_A) <= 2048 * MIB);
}

static void switched_off_it_counts_and_refuses_nothing(void)
{
    CUdeviceptr p;
    shell("%s create %s --replace --off --card " CARD_A "=300MiB,context=256MiB >/dev/null", getenv("SLICE"), container_directory);
    context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 1000 * MIB), CUDA_SUCCESS);
    for (int i = 0; i < 100; i++) EXPECT_EQ(cuMemAlloc_v2(&p, 500000), CUDA_SUCCESS);
    size_t f, t;
    EXPECT_EQ(cuMemGetInfo_v2(&f, &t), CUDA_SUCCESS);
    EXPECT_EQ(t, 4096 * MIB);
    EXPECT_EQ(t - f, held(CARD_A));
}

int main(void)
{
    static const char tight[] = CARD_A "=260MiB,context=256MiB";
    IN(tight, out_of_memory_is_error_2_whatever_was_asked_for);
    IN(CARD_A "=512MiB,context=256MiB", an_unknown_pointer_is_the_drivers_to_judge);
    IN(CARD_A "=512MiB,context=256MiB", a_free_that_the_driver_refuses_refunds_nothing);
    IN(tight, no_pointer_and_wrong_arguments_get_the_drivers_answers_even_with_a_full_quota);
    IN(CARD_A "=512MiB,context=256MiB", what_the_driver_does_not_have_answers_as_the_driver_does);
    IN(tight, host_memory_is_never_charged_nor_refused);
    IN(CARD_A "=2048MiB,context=256MiB", processes_that_ask_at_once_never_get_more_than_the_quota_together);
    IN(CARD_A "=512MiB,context=256MiB", switched_off_it_counts_and_refuses_nothing);
    FINISH;
}
