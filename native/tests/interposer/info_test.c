/* The memory information that programs get: the container's quota looks like the card. */
#include "container.h"

CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDeviceGetByPCIBusId(CUdevice *, const char *);
CUresult cuDeviceGetPCIBusId(char *, int, CUdevice);
CUresult cuDeviceTotalMem(unsigned *, CUdevice);
CUresult cuMemGetInfo(unsigned *, unsigned *);

static size_t total_bytes(void)
{
    size_t f = 0, t = 0;
    EXPECT_EQ(cuMemGetInfo_v2(&f, &t), CUDA_SUCCESS);
    return t;
}

static size_t total_of(CUdevice device)
{
    size_t t = 0;
    EXPECT_EQ(cuDeviceTotalMem_v2(&t, device), CUDA_SUCCESS);
    return t;
}

static void the_quota_is_the_size_of_the_card(void)
{
    context_on(0);
    EXPECT_EQ(total_of(0), 512 * MIB);
    EXPECT_EQ(total_bytes(), 512 * MIB);
    EXPECT_EQ(free_bytes(), 256 * MIB);
    unsigned f = 0, t = 0;
    EXPECT_EQ(cuMemGetInfo(&f, &t), CUDA_SUCCESS); /* of CUDA 3.1 */
    EXPECT_EQ(t, 512 * MIB);
    EXPECT_EQ(f, 256 * MIB);
    EXPECT_EQ(cuDeviceTotalMem(&t, 0), CUDA_SUCCESS);
    EXPECT_EQ(t, 512 * MIB);
}

static void a_second_process_sees_free_as_limit_less_used(void)
{
    CUdeviceptr p;
    int ready[2], done[2];
    char byte;
    EXPECT(pipe(ready) == 0 && pipe(done) == 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        context_on(0);
        EXPECT_EQ(cuMemAlloc_v2(&p, 100 * MIB), CUDA_SUCCESS);
        EXPECT_EQ(write(ready[1], "x", 1), 1);
        _exit(read(done[0], &byte, 1) != 1 || !ok_so_far);
    }
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    context_on(0);
    EXPECT_EQ(total_bytes(), 700 * MIB);
    EXPECT_EQ(free_bytes(), 700 * MIB - 2 * CONTEXT - 100 * MIB);
    EXPECT_EQ(cuMemAlloc_v2(&p, 100 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc_v2(&p, 88 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes(), 0);
    EXPECT_EQ(write(done[1], "x", 1), 1);
    waitpid(child, NULL, 0);
    double since = seconds();
    while (free_bytes() != 700 * MIB - CONTEXT - 88 * MIB && seconds() - since < 1) usleep(2000);
    EXPECT(seconds() - since < soon());
}

static void no_pointer_at_all_is_treated_as_the_driver_does(void)
{
    size_t f = 77, t = 77;
    EXPECT_EQ(cuMemGetInfo_v2(&f, &t), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemGetInfo_v2(&f, &t), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(f == 77 && t == 77);
    context_on(0);
    EXPECT_EQ(cuMemGetInfo_v2(NULL, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemGetInfo_v2(&f, NULL), CUDA_SUCCESS);
    EXPECT_EQ(f, 256 * MIB);
    EXPECT_EQ(cuMemGetInfo_v2(NULL, &t), CUDA_SUCCESS);
    EXPECT_EQ(t, 512 * MIB);
    EXPECT_EQ(cuDeviceTotalMem_v2(NULL, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuDeviceTotalMem_v2(&t, 55), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuDeviceGetCount(NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuDeviceGet(NULL, 0), CUDA_ERROR_INVALID_VALUE);
}

static void a_quota_above_the_card_shows_the_card(void)
{
    CUdeviceptr p;
    context_on(0);
    EXPECT_EQ(total_of(0), 4096 * MIB);
    EXPECT_EQ(total_bytes(), 4096 * MIB);
    EXPECT_EQ(free_bytes(), 4096 * MIB - CONTEXT);
    EXPECT_EQ(cuMemAlloc_v2(&p, 4096 * MIB), CUDA_ERROR_OUT_OF_MEMORY); /* refused by the card */
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuMemAlloc_v2(&p, 4096 * MIB - CONTEXT), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes(), 0);
}

static void free_is_never_more_than_the_card_has_when_neighbours_fill_it(void)
{
    CUdeviceptr p;
    int ready[2];
    char byte;
    EXPECT(pipe(ready) == 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) { /* another container with a large quota of its own */
        new_container(CARD_A "=4GiB,context=256MiB");
        context_on(0);
        EXPECT_EQ(cuMemAlloc_v2(&p, 3600 * MIB), CUDA_SUCCESS);
        EXPECT_EQ(write(ready[1], "x", 1), 1);
        pause();
    }
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    CUcontext c = NULL;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_OUT_OF_MEMORY); /* 240 MiB are left on the card */
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    context_on(0);
    EXPECT_EQ(free_bytes(), 256 * MIB);
}

static void using_more_than_the_quota_never_shows_terabytes_free(void)
{
    CUdeviceptr p;
    context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 200 * MIB), CUDA_SUCCESS);
    shell("%s set %s --card " CARD_A "=300MiB,context=256MiB >/dev/null", getenv("SLICE"), container_directory);
    EXPECT_EQ(total_bytes(), 300 * MIB);
    EXPECT_EQ(free_bytes(), 0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes(), 44 * MIB);
    shell("%s set %s --card " CARD_A "=1GiB,context=256MiB >/dev/null", getenv("SLICE"), container_directory);
    EXPECT_EQ(free_bytes(), 768 * MIB);
    EXPECT_EQ(cuMemAlloc_v2(&p, 768 * MIB), CUDA_SUCCESS);
}

/* ---- several cards ---- */

static void each_card_has_its_own_limit(void)
{
    CUdeviceptr p;
    context_on(0);
    EXPECT_EQ(total_bytes(), 512 * MIB);
    EXPECT_EQ(cuMemAlloc_v2(&p, 300 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    context_on(1);
    EXPECT_EQ(total_of(1), 900 * MIB);
    EXPECT_EQ(total_bytes(), 900 * MIB);
    EXPECT_EQ(free_bytes(), 800 * MIB); /* a context costs 100 there */
    EXPECT_EQ(cuMemAlloc_v2(&p, 802 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc_v2(&p, 800 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), CONTEXT);
    EXPECT_EQ(held(CARD_B), 900 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_B), 100 * MIB);
    EXPECT_EQ(total_of(0), 512 * MIB);
}

static void a_subset_by_cuda_visible_devices_keeps_each_cards_own_limit(void)
{
    CUdeviceptr p;
    int count;
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
    EXPECT_EQ(count, 1);
    context_on(0); /* the second card */
    EXPECT_EQ(total_bytes(), 900 * MIB);
    EXPECT_EQ(cuMemAlloc_v2(&p, 802 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc_v2(&p, 800 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(peak(CARD_B), 900 * MIB);
    EXPECT_EQ(peak(CARD_A), 0);
}

static void an_order_by_uuids_keeps_each_cards_own_limit(void)
{
    setenv("CUDA_VISIBLE_DEVICES", CARD_B "," CARD_A, 1);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(total_of(0), 900 * MIB);
    EXPECT_EQ(total_of(1), 512 * MIB);
    context_on(1);
    EXPECT_EQ(free_bytes(), 256 * MIB);
    context_on(0);
    EXPECT_EQ(free_bytes(), 800 * MIB);
}

static void a_card_that_is_not_in_the_limits_is_not_shown_and_gives_nothing(void)
{
    CUcontext c = NULL;
    CUdevice device = -1;
    CUdeviceptr p;
    char id[32];
    int count;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
    EXPECT_EQ(count, 1);
    EXPECT_EQ(cuDeviceGet(&device, 0), CUDA_SUCCESS);
    EXPECT_EQ(device, 1); /* the driver's own number for it */
    EXPECT_EQ(cuDeviceGet(&device, 1), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuDeviceGetPCIBusId(id, sizeof id, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGetByPCIBusId(&device, id), CUDA_SUCCESS);
    EXPECT_EQ(device, 1);
    EXPECT_EQ(cuDeviceGetPCIBusId(id, sizeof id, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGetByPCIBusId(&device, id), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(total_of(0), 0);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_OUT_OF_MEMORY); /* guessing the number does not help */
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&c, 0), CUDA_ERROR_OUT_OF_MEMORY);
    context_on(1);
    EXPECT_EQ(cuMemAlloc_v2(&p, 800 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(peak(CARD_A), 0);
}

static void without_limits_every_allocation_is_out_of_memory(void)
{
    CUcontext c = NULL;
    CUdeviceptr p = 0;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&c, 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(total_of(0), 0);
    EXPECT(cuMemAlloc_v2(&p, 1) != CUDA_SUCCESS);
    EXPECT_EQ(peak(CARD_A) + peak(CARD_B), 0);
}

int main(void)
{
    static const char one[] = CARD_A "=512MiB,context=256MiB";
    static const char both[] = CARD_A "=512MiB,context=256MiB " CARD_B "=900MiB,context=100MiB";
    IN(one, the_quota_is_the_size_of_the_card);
    IN(CARD_A "=700MiB,context=256MiB", a_second_process_sees_free_as_limit_less_used);
    IN(one, no_pointer_at_all_is_treated_as_the_driver_does);
    IN(CARD_A "=100GiB,context=256MiB", a_quota_above_the_card_shows_the_card);
    IN(one, free_is_never_more_than_the_card_has_when_neighbours_fill_it);
    IN(one, using_more_than_the_quota_never_shows_terabytes_free);
    IN(both, each_card_has_its_own_limit);
    IN(both, a_subset_by_cuda_visible_devices_keeps_each_cards_own_limit);
    IN(both, an_order_by_uuids_keeps_each_cards_own_limit);
    IN(CARD_B "=900MiB,context=100MiB", a_card_that_is_not_in_the_limits_is_not_shown_and_gives_nothing);
    IN("", without_limits_every_allocation_is_out_of_memory);
    FINISH;
}
