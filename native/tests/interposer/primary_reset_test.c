/* Threads that allocate and free in the primary context while another resets it: nothing stays charged, and nothing is too much. */
#include "container.h"

#include <pthread.h>
#include <unistd.h>

CUresult cuArrayCreate_v2(CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
CUresult cuArrayDestroy(CUarray);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);

#define QUOTA (1024 * MIB)

static _Atomic bool enough;
static CUresult (*take)(CUdeviceptr *);
static CUresult (*give)(CUdeviceptr); /* NULL: left to the reset */

static CUresult take_large(CUdeviceptr *p) { return cuMemAlloc_v2(p, 2 * MIB); }
static CUresult take_small(CUdeviceptr *p) { return cuMemAlloc_v2(p, 100000); }
static CUresult take_array(CUdeviceptr *p)
{
    CUDA_ARRAY_DESCRIPTOR d = {.Width = 1024, .Height = 1024, .Format = 0x20, .NumChannels = 1};
    return cuArrayCreate_v2((CUarray *)p, &d);
}
static CUresult take_module(CUdeviceptr *p)
{
    return cuModuleLoadData((CUmodule *)p, ".version 7.0\n.target sm_50\n.address_size 64\n.global .align 4 .b8 big[4000000];\n.visible .entry k() { ret; }\n");
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
        usleep(200);
    }
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

#define CARDS CARD_A "=1024MiB,context=256MiB"

int main(void)
{
    IN(CARDS, large_pieces_that_go_with_a_reset);
    IN(CARDS, large_pieces_that_are_freed_meanwhile);
    IN(CARDS, small_pieces_that_go_with_a_reset);
    IN(CARDS, arrays_that_go_with_a_reset);
    IN(CARDS, modules_that_go_with_a_reset);
    FINISH;
}
