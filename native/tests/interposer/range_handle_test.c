/* Descriptors of a range of addresses (dma-buf): what they keep after a free stays charged. */
#include "container.h"

#include <pthread.h>
#include <stdatomic.h>

CUresult cuMemGetHandleForAddressRange(void *, CUdeviceptr, size_t, int, unsigned long long);
CUresult cuIpcGetMemHandle(CUipcMemHandle *, CUdeviceptr);
CUresult cuCtxGetCurrent(CUcontext *);

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

/* 512 MiB that were just released, of which a descriptor is open. */
static void is_charged_until_closed(int fd)
{
    CUdeviceptr q;
    EXPECT_EQ(held(CARD_A) >= 768 * MIB, true);
    EXPECT_EQ(cuMemAlloc_v2(&q, 300 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    close(fd);
    EXPECT_EQ(fits(700 * MIB), true);
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
}

static void freed_memory_stays_charged_while_its_descriptor_is_open(void)
{
    context_on(0);
    CUdeviceptr p = allocation(512 * MIB);
    int fd = descriptor(p, 512 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    is_charged_until_closed(fd);
}

static void so_does_unmapped_memory(void)
{
    context_on(0);
    CUdeviceptr p = mapping(512 * MIB);
    int fd = descriptor(p + 2 * MIB, 4 * MIB);
    EXPECT_EQ(cuMemUnmap(p, 512 * MIB), CUDA_SUCCESS);
    is_charged_until_closed(fd);
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

static void memory_with_another_handle_is_charged_as_long(void)
{
    CUipcMemHandle h;
    context_on(0);
    CUdeviceptr p = allocation(512 * MIB), q;
    EXPECT_EQ(cuIpcGetMemHandle(&h, p), CUDA_SUCCESS);
    int fd = descriptor(p, 512 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&q, 300 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    close(fd);
    EXPECT_EQ(fits(700 * MIB), true);
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
}

/* The descriptor outlives the process: other processes of the container pay for the object. */
static void memory_with_another_handle_is_charged_when_its_maker_has_ended(void)
{
    int ends[2];
    char ready;
    EXPECT_EQ(pipe(ends), 0);
    pid_t maker = fork();
    if (!maker) {
        CUipcMemHandle h;
        context_on(0);
        CUdeviceptr p = allocation(512 * MIB);
        EXPECT_EQ(cuIpcGetMemHandle(&h, p), CUDA_SUCCESS);
        (void)descriptor(p, 512 * MIB);
        pid_t keeper = fork(); /* has the descriptor, and closes it a second later */
        if (!keeper) close(ends[1]), sleep(1), _exit(0);
        EXPECT_EQ(write(ends[1], "x", 1), 1);
        _exit(ok_so_far ? 0 : 1);
    }
    EXPECT_EQ(read(ends[0], &ready, 1), 1);
    int status;
    waitpid(maker, &status, 0);
    EXPECT_EQ(status, 0);
    CUdeviceptr p;
    context_on(0);
    for (int i = 0; i < 20; i++) (void)cuMemAlloc_v2(&p, 40 * MIB);
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
}

static atomic_bool over;

static void *allocates_at_one_address(void *context)
{
    CUdeviceptr p;
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    while (!atomic_load(&over))
        if (!cuMemAlloc_v2(&p, 100 * MIB)) (void)cuMemFree_v2(p);
    return NULL;
}

/* Handles of all kinds, made while another thread frees the memory: each byte is given back once. */
static void exports_beside_frees_give_nothing_back_twice(void)
{
    pthread_t thread;
    CUcontext context;
    CUdeviceptr p;
    CUipcMemHandle h;
    context_on(0);
    EXPECT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&p, 100 * MIB), CUDA_SUCCESS); /* where the other thread's next allocations will lie */
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(pthread_create(&thread, NULL, allocates_at_one_address, context), 0);
    for (int i = 0; i < 20000; i++) {
        int fd = -1;
        (void)cuIpcGetMemHandle(&h, p);
        if (i % 8 == 0 && !cuMemGetHandleForAddressRange(&fd, p, 100 * MIB, 1, 0)) close(fd);
    }
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    EXPECT_EQ(fits(700 * MIB), true);
    EXPECT_EQ(used(), CONTEXT);
    while (!cuMemAlloc_v2(&p, 32 * MIB)) {}
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
}

static CUdeviceptr place;

static void *maps_another(void *unused)
{
    CUmemAllocationProp on_card = {.type = 1, .location = {1, 0}};
    CUmemGenericAllocationHandle small, large;
    EXPECT_EQ(cuMemCreate(&small, 2 * MIB, &on_card, 0), CUDA_SUCCESS);
    while (!atomic_load(&over)) {
        if (cuMemCreate(&large, 200 * MIB, &on_card, 0)) continue;
        (void)cuMemUnmap(place, 2 * MIB);
        (void)cuMemMap(place, 200 * MIB, 0, large, 0);
        (void)cuMemUnmap(place, 200 * MIB);
        (void)cuMemMap(place, 2 * MIB, 0, small, 0);
        (void)cuMemRelease(large);
    }
    return unused;
}

static void a_range_that_is_mapped_again_meanwhile_is_charged_for_what_the_driver_saw(void)
{
    pthread_t thread;
    context_on(0);
    EXPECT_EQ(cuMemAddressReserve(&place, 200 * MIB, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(pthread_create(&thread, NULL, maps_another, NULL), 0);
    for (int i = 0; i < 20000 && peak(CARD_A) <= GIB; i += 50) {
        int fds[50];
        for (int k = 0; k < 50; k++) fds[k] = -1, (void)cuMemGetHandleForAddressRange(&fds[k], place, 2 * MIB, 1, 0);
        for (int k = 0; k < 50; k++)
            if (fds[k] >= 0) close(fds[k]);
    }
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    EXPECT_EQ(peak(CARD_A) <= GIB, true);
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
    EXPECT_EQ(cuMemGetHandleForAddressRange(&fd, p, ~0ull - p, 1, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemGetHandleForAddressRange(NULL, p, MIB, 1, 0) != CUDA_SUCCESS, true);
}

int main(void)
{
    static const char quota[] = CARD_A "=1GiB,context=256MiB";
    IN(quota, freed_memory_stays_charged_while_its_descriptor_is_open);
    IN(quota, so_does_unmapped_memory);
    IN(quota, two_descriptors_of_an_allocation_are_counted_once);
    IN(quota, memory_with_another_handle_is_charged_as_long);
    IN(quota, memory_with_another_handle_is_charged_when_its_maker_has_ended);
    IN(quota, exports_beside_frees_give_nothing_back_twice);
    IN(quota, a_range_that_is_mapped_again_meanwhile_is_charged_for_what_the_driver_saw);
    IN(quota, small_allocations_and_many_in_turn_are_never_above);
    IN(quota, memory_of_which_nothing_is_known_has_no_descriptor);
    FINISH;
}
