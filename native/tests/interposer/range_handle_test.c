/* Descriptors of a range of addresses (dma-buf): what they keep after a free stays charged. */
#include "container.h"

CUresult cuMemGetHandleForAddressRange(void *, CUdeviceptr, size_t, int, unsigned long long);
CUresult cuIpcGetMemHandle(CUipcMemHandle *, CUdeviceptr);

#define GIB (1024 * MIB)

static CUdeviceptr allocation(size_t bytes)
{
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAlloc_v2(&p, bytes), CUDA_SUCCESS);
    return p;
}

static int descriptor(CUdeviceptr p, size_t bytes)
{
    int fd = -1;
    EXPECT_EQ(cuMemGetHandleForAddressRange(&fd, p, bytes, 1, 0), CUDA_SUCCESS);
    return fd;
}

static CUdeviceptr mapping(size_t bytes)
{
    CUmemAllocationProp on_card = {.type = 1, .location = {1, 0}};
    CUmemGenericAllocationHandle h;
    CUdeviceptr va = 0;
    EXPECT_EQ(cuMemCreate(&h, bytes, &on_card, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressReserve(&va, bytes, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(va, bytes, 0, h, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    return va;
}

/* Whether so much can be had within two seconds: a descriptor that was closed is noticed at the next look. */
static bool fits(size_t bytes)
{
    CUdeviceptr p;
    for (int i = 0; i < 100; i++) {
        if (!cuMemAlloc_v2(&p, bytes)) return cuMemFree_v2(p) == CUDA_SUCCESS;
        usleep(20000);
    }
    return false;
}

static void freed_memory_stays_charged_while_its_descriptor_is_open(void)
{
    context_on(0);
    CUdeviceptr p = allocation(512 * MIB), q;
    int fd = descriptor(p, 512 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A) >= 768 * MIB, true);
    EXPECT_EQ(cuMemAlloc_v2(&q, 300 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    close(fd);
    EXPECT_EQ(fits(700 * MIB), true);
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
}

static void so_does_unmapped_memory(void)
{
    context_on(0);
    CUdeviceptr p = mapping(512 * MIB), q;
    int fd = descriptor(p + 2 * MIB, 4 * MIB);
    EXPECT_EQ(cuMemUnmap(p, 512 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A) >= 768 * MIB, true);
    EXPECT_EQ(cuMemAlloc_v2(&q, 300 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    close(fd);
    EXPECT_EQ(fits(700 * MIB), true);
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
}

static void two_descriptors_of_an_allocation_are_counted_once(void)
{
    context_on(0);
    CUdeviceptr p = allocation(512 * MIB);
    int one = descriptor(p, 2 * MIB), other = descriptor(p + 2 * MIB, 2 * MIB);
    EXPECT_EQ(used(), 768 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    close(one);
    EXPECT_EQ(held(CARD_A) >= 768 * MIB, true);
    EXPECT_EQ(cuMemAlloc_v2(&p, 300 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    close(other);
    EXPECT_EQ(fits(700 * MIB), true);
}

static void memory_with_another_handle_stays_charged(void)
{
    CUipcMemHandle h;
    context_on(0);
    CUdeviceptr p = allocation(512 * MIB), q;
    EXPECT_EQ(cuIpcGetMemHandle(&h, p), CUDA_SUCCESS);
    int fd = descriptor(p, 512 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&q, 300 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
    close(fd);
}

static void small_allocations_and_many_in_turn_are_never_above(void)
{
    context_on(0);
    CUdeviceptr p;
    for (int i = 0; i < 300 && !cuMemAlloc_v2(&p, i & 1 ? MIB / 2 : 8 * MIB); i++) {
        int fd = -1;
        (void)cuMemGetHandleForAddressRange(&fd, p, 65536, 1, 0);
        EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    }
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
}

static void memory_of_which_nothing_is_known_has_no_descriptor(void)
{
    int fd = -1;
    CUdeviceptr p;
    context_on(0);
    EXPECT_EQ(cuMemAllocAsync(&p, 8 * MIB, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemGetHandleForAddressRange(&fd, p, 8 * MIB, 1, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuMemGetHandleForAddressRange(&fd, 0, 0, 1, 0) != CUDA_SUCCESS, true);
    EXPECT_EQ(cuMemGetHandleForAddressRange(NULL, p, MIB, 1, 0) != CUDA_SUCCESS, true);
}

int main(void)
{
    static const char quota[] = CARD_A "=1GiB,context=256MiB";
    IN(quota, freed_memory_stays_charged_while_its_descriptor_is_open);
    IN(quota, so_does_unmapped_memory);
    IN(quota, two_descriptors_of_an_allocation_are_counted_once);
    IN(quota, memory_with_another_handle_stays_charged);
    IN(quota, small_allocations_and_many_in_turn_are_never_above);
    IN(quota, memory_of_which_nothing_is_known_has_no_descriptor);
    FINISH;
}
