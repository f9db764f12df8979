/* Threads allocate and free in the primary context while another thread resets it: nothing stays charged, and the quota is not exceeded. */
#include "container.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

CUresult cuArrayCreate_v2(CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
CUresult cuArrayDestroy(CUarray);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuLibraryLoadData(CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned);
CUresult cuCtxGetCurrent(CUcontext *);
CUresult cuLibraryUnload(CUlibrary);
CUresult cuLibraryGetKernel(CUkernel *, CUlibrary, const char *);
CUresult cuKernelGetAttribute(int *, int, CUkernel, CUdevice);

#define QUOTA (1024 * MIB)

static _Atomic bool enough;
static CUresult (*take)(CUdeviceptr *);
static CUresult (*give)(CUdeviceptr); /* NULL: freed by the reset */

static CUresult take_large(CUdeviceptr *p) { return cuMemAlloc_v2(p, 2 * MIB); }
static CUresult take_small(CUdeviceptr *p) { return cuMemAlloc_v2(p, 100000); }
static CUresult take_array(CUdeviceptr *p)
{
    CUDA_ARRAY_DESCRIPTOR d = {.Width = 1024, .Height = 1024, .Format = 0x20, .NumChannels = 1};
    return cuArrayCreate_v2((CUarray *)p, &d);
}
static const char TEXT[] = ".version 7.0\n.target sm_50\n.address_size 64\n.global .align 4 .b8 big[4000000];\n.visible .entry k() { ret; }\n";
static CUresult take_module(CUdeviceptr *p) { return cuModuleLoadData((CUmodule *)p, TEXT); }

static CUresult take_limit(CUdeviceptr *unused) { return (void)unused, cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048); }

static CUlibrary library;
static CUkernel kernel;
static CUresult take_kernel(CUdeviceptr *unused) { return (void)unused, cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); }
static CUresult take_attribute(CUdeviceptr *unused)
{
    int value;
    (void)unused;
    return cuKernelGetAttribute(&value, 0, kernel, 0);
}
static void load_library(void)
{
    EXPECT_EQ(cuInit(0) + cuLibraryLoadData(&library, TEXT, NULL, NULL, 0, NULL, NULL, 0) + cuLibraryGetKernel(&kernel, library, "k"), CUDA_SUCCESS);
}

static void *work(void *unused)
{
    CUcontext c;
    while (!enough) {
        CUdeviceptr p;
        if (cuDevicePrimaryCtxRetain(&c, 0) != CUDA_SUCCESS) continue;
        cuCtxSetCurrent(c);
        if (take(&p) == CUDA_SUCCESS && give) give(p);
        cuDevicePrimaryCtxRelease_v2(0);
    }
    return unused;
}

static void *reset(void *unused)
{
    while (!enough) {
        cuDevicePrimaryCtxReset_v2(0);
        usleep(20 + (unsigned)rand() % 400);
    }
    return unused;
}

/* Each round creates the primary context and resets it. */
static void *reset_for_a_while(void *unused)
{
    CUcontext c;
    while (!enough)
        if (!cuDevicePrimaryCtxRetain(&c, 0)) cuDevicePrimaryCtxReset_v2(0), cuDevicePrimaryCtxRelease_v2(0);
    return unused;
}

static unsigned long long without_primary(void)
{
    CUcontext c = context_on(0);
    unsigned long long bytes = free_bytes();
    EXPECT_EQ(cuCtxDestroy_v2(c), CUDA_SUCCESS);
    return bytes;
}

static void race(void)
{
    pthread_t threads[4];
    unsigned long long before = without_primary();
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, i ? work : reset, NULL);
    usleep(1500000);
    enough = true;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    cuDevicePrimaryCtxReset_v2(0);
    EXPECT_EQ(without_primary(), before);
    EXPECT(peak(CARD_A) <= QUOTA);
}

static void large_pieces_that_go_with_a_reset(void) { take = take_large, race(); }
static void large_pieces_that_are_freed_meanwhile(void) { take = take_large, give = cuMemFree_v2, race(); }
static void small_pieces_that_go_with_a_reset(void) { take = take_small, race(); }
static void arrays_that_go_with_a_reset(void) { take = take_array, race(); }
static void modules_that_go_with_a_reset(void) { take = take_module, race(); }

static void limits_that_are_set_in_one_that_is_reset(void) { take = take_limit, race(); }
static void kernels_of_a_library_that_are_launched_in_one_that_is_reset(void) { load_library(), take = take_kernel, race(); }
static void kernels_of_a_library_that_are_asked_about_in_one_that_is_reset(void) { load_library(), take = take_attribute, race(); }

static CUcontext doomed;
static void *destroy(void *unused) { return cuCtxDestroy_v2(doomed), unused; }

static void in_a_context_that_another_thread_has_destroyed_nothing_is_charged(void)
{
    pthread_t thread;
    load_library();
    for (int i = 0; i < 8; i++) {
        EXPECT_EQ(cuCtxCreate_v2(&doomed, 0, 0), CUDA_SUCCESS);
        pthread_create(&thread, NULL, destroy, NULL);
        pthread_join(thread, NULL);
        take_attribute(NULL);
        EXPECT_EQ(cuCtxSetCurrent(NULL), CUDA_SUCCESS);
        context_on(0);
        EXPECT_EQ(QUOTA - free_bytes(), CONTEXT);
        CUcontext c;
        EXPECT_EQ(cuCtxGetCurrent(&c) + cuCtxDestroy_v2(c), CUDA_SUCCESS);
    }
}

/* Each call that may load something counts the context in which it is loaded: here more often than the 16 bits for a library's contexts can
 * hold. */
static void a_kernel_that_is_asked_about_very_often_is_charged_once(void)
{
    CUcontext c, other;
    load_library();
    c = context_on(0);
    take_attribute(NULL);
    unsigned long long one = QUOTA - free_bytes() - CONTEXT;
    for (int i = 0; i < 140000; i++) EXPECT_EQ(take_attribute(NULL), CUDA_SUCCESS);
    EXPECT_EQ(QUOTA - free_bytes(), CONTEXT + one);
    other = context_on(0);
    take_attribute(NULL);
    EXPECT_EQ(QUOTA - free_bytes(), 2 * (CONTEXT + one));
    EXPECT_EQ(cuCtxDestroy_v2(c), CUDA_SUCCESS);
    EXPECT_EQ(QUOTA - free_bytes(), CONTEXT + one);
    EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
    EXPECT_EQ(QUOTA - free_bytes(), CONTEXT);
    EXPECT_EQ(cuCtxDestroy_v2(other), CUDA_SUCCESS);
}

/* No code of them is loaded yet: the driver loads code at its first use. */
static void modules_in_another_context_are_charged_as_without_it(void)
{
    static const char head[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry k() {", tail[] = "ret; }\n";
    static char text[3000000];
    pthread_t thread;
    CUmodule modules[20];
    memset(text, ' ', sizeof text - 1);
    memcpy(text, head, sizeof head - 1);
    memcpy(text + sizeof text - sizeof tail, tail, sizeof tail);
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&modules[0], text), CUDA_SUCCESS);
    unsigned long long one = QUOTA - free_bytes() - CONTEXT;
    pthread_create(&thread, NULL, reset_for_a_while, NULL);
    for (int i = 1; i < 20; i++) EXPECT_EQ(cuModuleLoadData(&modules[i], text), CUDA_SUCCESS);
    enough = true;
    pthread_join(thread, NULL);
    EXPECT_EQ(QUOTA - free_bytes(), CONTEXT + one);
}

static void a_primary_context_that_the_driver_destroys_is_charged_no_longer(void)
{
    CUcontext own = context_on(0), primary;
    CUdeviceptr p;
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
        EXPECT_EQ(cuCtxSetCurrent(primary), CUDA_SUCCESS);
        EXPECT_EQ(cuMemAlloc_v2(&p, 200 * MIB), CUDA_SUCCESS);
        cuCtxDestroy_v2(primary); /* a driver may also refuse this */
        EXPECT_EQ(cuCtxSetCurrent(own), CUDA_SUCCESS);
        EXPECT_EQ(QUOTA - free_bytes(), held(CARD_A));
    }
}

#define CARDS CARD_A "=1024MiB,context=256MiB"

int main(void)
{
    IN(CARDS, large_pieces_that_go_with_a_reset);
    IN(CARDS, large_pieces_that_are_freed_meanwhile);
    IN(CARDS, small_pieces_that_go_with_a_reset);
    IN(CARDS, arrays_that_go_with_a_reset);
    IN(CARDS, modules_that_go_with_a_reset);
    IN(CARDS, limits_that_are_set_in_one_that_is_reset);
    IN(CARDS, kernels_of_a_library_that_are_launched_in_one_that_is_reset);
    IN(CARDS, kernels_of_a_library_that_are_asked_about_in_one_that_is_reset);
    IN(CARDS, a_kernel_that_is_asked_about_very_often_is_charged_once);
    IN(CARDS, in_a_context_that_another_thread_has_destroyed_nothing_is_charged);
    IN(CARDS, a_primary_context_that_the_driver_destroys_is_charged_no_longer);
    IN(CARDS, modules_in_another_context_are_charged_as_without_it);
    FINISH;
}
