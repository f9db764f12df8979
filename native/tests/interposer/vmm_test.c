/* Virtual memory management inside a container: memory is charged when it is created, and refunded when nothing holds it any more, both in simgpu's
 * ledger and in the container's. */
#include "container.h"

#include <pthread.h>
#include <unistd.h>

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *, const CUmulticastObjectProp *);
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice);
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t, unsigned long long);
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t, unsigned long long);
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle, CUdevice, size_t, size_t);
CUresult cuMemMapArrayAsync(CUarrayMapInfo *, unsigned, CUstream);
CUresult cuMemGetAllocationGranularity(size_t *, const CUmemAllocationProp *, int);

typedef CUmemGenericAllocationHandle handle;

static const CUmemAllocationProp on_card = {.type = 1, .requestedHandleTypes = 9, .location = {1, 0}};

static CUdeviceptr reserve(size_t size)
{
    CUdeviceptr va = 0;
    EXPECT_EQ(cuMemAddressReserve(&va, size, 0, 0, 0), CUDA_SUCCESS);
    return va;
}

/* The driver holds this many bytes for the container, and the container's ledger agrees, both without the context. */
#define HOLDS(mib)                                                        \
    do {                                                                  \
        EXPECT_EQ(held(CARD_A), CONTEXT + (mib) * MIB);                   \
        EXPECT_EQ(1024 * MIB - free_bytes(), CONTEXT + (mib) * MIB);      \
    } while (0)

static void memory_is_charged_at_creation_and_refunded_when_nothing_holds_it(void)
{
    handle h, again;
    context_on(0);
    CUdeviceptr va = reserve(64 * MIB);
    HOLDS(0);
    EXPECT_EQ(cuMemCreate(&h, 8 * MIB, &on_card, 0), CUDA_SUCCESS);
    HOLDS(8);
    EXPECT_EQ(cuMemMap(va, 8 * MIB, 0, h, 0) + cuMemMap(va + 32 * MIB, 8 * MIB, 0, h, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    HOLDS(8);
    EXPECT_EQ(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(va + 33 * MIB)), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(va, 8 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(va + 32 * MIB, 8 * MIB), CUDA_SUCCESS);
    HOLDS(8);
    EXPECT_EQ(cuMemRelease(again), CUDA_SUCCESS);
    HOLDS(0);
    EXPECT(cuMemRelease(again) != CUDA_SUCCESS);
    HOLDS(0);
    EXPECT_EQ(cuMemAddressFree(va, 64 * MIB), CUDA_SUCCESS);
}

static void one_unmapping_ends_many_mappings_and_a_partial_one_ends_none(void)
{
    handle h[4];
    context_on(0);
    CUdeviceptr va = reserve(32 * MIB);
    for (int i = 0; i < 4; i++)
        EXPECT_EQ(cuMemCreate(&h[i], 4 * MIB, &on_card, 0) + cuMemMap(va + (unsigned)i * 8 * MIB, 4 * MIB, 0, h[i], 0) + cuMemRelease(h[i]), 0);
    HOLDS(16);
    EXPECT_EQ(cuMemUnmap(va, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    HOLDS(16);
    EXPECT_EQ(cuMemUnmap(va + 8 * MIB, 16 * MIB), CUDA_SUCCESS);
    HOLDS(8);
    EXPECT_EQ(cuMemUnmap(va, 32 * MIB), CUDA_SUCCESS);
    HOLDS(0);
}

static void the_quota_is_met_to_the_granule(void)
{
    handle h[400], one;
    int n = 0;
    context_on(0);
    while (n < 400 && cuMemCreate(&h[n], 2 * MIB, &on_card, 0) == CUDA_SUCCESS) n++;
    EXPECT_EQ(n, 384); /* 1024 MiB without the context */
    EXPECT_EQ(cuMemCreate(&one, 2 * MIB, &on_card, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(peak(CARD_A), 1024 * MIB);
    for (int i = 0; i < n; i++) EXPECT_EQ(cuMemRelease(h[i]), CUDA_SUCCESS);
    EXPECT_EQ(cuMemCreate(&one, 768 * MIB, &on_card, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(one), CUDA_SUCCESS);
    HOLDS(0);
}

static void memory_of_the_host_is_never_charged_nor_refused(void)
{
    context_on(0);
    for (int type = 2; type <= 4; type++) {
        handle h;
        CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 1, .location = {type, type == 3 ? 0 : 77}};
        EXPECT_EQ(cuMemCreate(&h, 2048 * MIB, &prop, 0), CUDA_SUCCESS); /* more than the quota */
        HOLDS(0);
        CUdeviceptr va = reserve(2048 * MIB);
        EXPECT_EQ(cuMemMap(va, 2048 * MIB, 0, h, 0) + cuMemUnmap(va, 2048 * MIB), CUDA_SUCCESS);
        EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    }
    HOLDS(0);
}

static void an_odd_device_index_gets_the_drivers_own_answer(void)
{
    handle h = 1;
    context_on(0);
    for (int id = -3; id < 100000; id = id < 2 ? id + 1 : id * 7) {
        CUmemAllocationProp prop = {.type = 1, .location = {1, id}};
        if (id == 0 || id == 1) continue;
        EXPECT_EQ(cuMemCreate(&h, 2 * MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    }
    HOLDS(0);
}

static void each_card_has_its_own_limit_whatever_the_current_context(void)
{
    handle h;
    CUmemAllocationProp second = {.type = 1, .location = {1, 1}};
    context_on(0);
    EXPECT_EQ(cuMemCreate(&h, 200 * MIB, &second, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemCreate(&h, 100 * MIB, &second, 0), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_B), 100 * MIB);
    HOLDS(0);
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_B), 0);
}

static void a_card_that_is_not_the_containers_has_nothing_to_give(void)
{
    handle h;
    CUmemAllocationProp second = {.type = 1, .location = {1, 1}};
    context_on(0);
    EXPECT_EQ(cuMemCreate(&h, 2 * MIB, &second, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(held(CARD_B), 0);
}

static void without_limits_nothing_is_created_on_a_card_and_the_host_is_free(void)
{
    handle h;
    CUmemAllocationProp host = {.type = 1, .location = {3, 0}};
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemCreate(&h, 2 * MIB, &on_card, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemCreate(&h, 2 * MIB, &host, 0) + cuMemRelease(h), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
}

static void wrong_arguments_get_the_drivers_own_answer(void)
{
    handle h;
    CUmemAllocationProp wrong = {.type = 7, .location = {1, 0}};
    context_on(0);
    CUdeviceptr va = reserve(8 * MIB);
    EXPECT_EQ(cuMemCreate(NULL, 2 * MIB, &on_card, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemCreate(&h, 2 * MIB, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemCreate(&h, 0, &on_card, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemCreate(&h, MIB, &on_card, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemCreate(&h, 5000 * MIB + 1, &on_card, 0), CUDA_ERROR_INVALID_VALUE); /* beyond the quota, and wrong */
    EXPECT_EQ(cuMemCreate(&h, 2 * MIB, &wrong, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemCreate(&h, ~0ull, &on_card, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemRelease(12345), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemMap(va, 2 * MIB, 0, 12345, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemUnmap(va, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemUnmap(0, ~0ull), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemRetainAllocationHandle(&h, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemRetainAllocationHandle(NULL, (void *)(uintptr_t)va), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemExportToShareableHandle(NULL, 12345, 1, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)-1, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)2, 1), CUDA_ERROR_INVALID_VALUE); /* stderr */
    EXPECT_EQ(cuMemImportFromShareableHandle(&h, NULL, 8), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemImportFromShareableHandle(NULL, NULL, 77), CUDA_ERROR_INVALID_VALUE);
    HOLDS(0);
}

/* Like an allocator with expandable segments: one large range, filled and emptied at its end. */
static void segments_that_grow_and_shrink_cost_what_is_mapped(void)
{
    context_on(0);
    CUdeviceptr va = reserve(1024 * MIB);
    for (int round = 0; round < 3; round++) {
        unsigned n = 0;
        handle h;
        while (cuMemCreate(&h, 20 * MIB, &on_card, 0) == CUDA_SUCCESS) {
            EXPECT_EQ(cuMemMap(va + n * 20 * MIB, 20 * MIB, 0, h, 0) + cuMemRelease(h), 0);
            n++;
        }
        EXPECT_EQ(n, 38);
        HOLDS(760);
        EXPECT_EQ(cuMemUnmap(va + 20 * 20 * MIB, 18 * 20 * MIB), CUDA_SUCCESS);
        HOLDS(400);
        EXPECT_EQ(cuMemUnmap(va, 400 * MIB), CUDA_SUCCESS);
        HOLDS(0);
    }
    EXPECT_EQ(peak(CARD_A), CONTEXT + 760 * MIB);
}

static void *create_map_unmap_release(void *base)
{
    CUdeviceptr va = (CUdeviceptr)(uintptr_t)base;
    for (int i = 0; i < 2000; i++) {
        handle h, again;
        if (cuMemCreate(&h, 4 * MIB, &on_card, 0)) continue;
        if (cuMemMap(va, 4 * MIB, 0, h, 0)) return "map";
        if (cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)va)) return "retain";
        if (cuMemRelease(h) || cuMemUnmap(va, 4 * MIB) || cuMemRelease(again)) return "release";
    }
    return NULL;
}

static void threads_that_are_given_each_others_handle_numbers_lose_no_byte(void)
{
    pthread_t t[4];
    void *failed_at;
    context_on(0);
    CUdeviceptr va = reserve(64 * MIB);
    for (unsigned i = 0; i < 4; i++) EXPECT_EQ(pthread_create(&t[i], NULL, create_map_unmap_release, (void *)(uintptr_t)(va + i * 16 * MIB)), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], &failed_at);
        if (failed_at) fprintf(stderr, "%s\n", (char *)failed_at), ok_so_far = false;
    }
    HOLDS(0);
}

static void a_forked_child_holds_nothing_of_its_parents(void)
{
    handle h;
    int status;
    context_on(0);
    EXPECT_EQ(cuMemCreate(&h, 8 * MIB, &on_card, 0), CUDA_SUCCESS);
    pid_t pid = fork();
    if (pid == 0) _exit(cuMemRelease(h) == CUDA_ERROR_NOT_INITIALIZED && cuMemUnmap(0, 1) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    HOLDS(8);
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    HOLDS(0);
}

/* ---- numbers of handles that other threads release, and that the driver reuses ---- */

enum { PLACES = 24 };
static _Atomic handle number;
static _Atomic bool enough;
static CUdeviceptr places;

static void *create_and_release(void *unused)
{
    for (unsigned i = 0; !enough; i++) {
        handle h;
        if (cuMemCreate(&h, (i % 2 ? 4 : 8) * MIB, &on_card, 0)) continue;
        number = h;
        cuMemRelease(h);
    }
    return unused;
}

static void *map_what_others_release(void *unused)
{
    for (unsigned n = 0, i = 0; n < PLACES; i++)
        if (cuMemMap(places + n * 8 * MIB, (i % 2 ? 4 : 8) * MIB, 0, number, 0) == CUDA_SUCCESS) n++;
    return unused;
}

static void *release_what_others_create(void *unused)
{
    while (!enough) cuMemRelease(number);
    return unused;
}

static void *export_what_others_release(void *unused)
{
    for (unsigned n = 0; n < PLACES;) {
        int fd;
        handle h;
        if (cuMemExportToShareableHandle(&fd, number, 1, 0)) continue;
        if (cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, 1) == CUDA_SUCCESS) {
            unsigned long long at = places + n * 8 * MIB;
            if (cuMemMap(at, 4 * MIB, 0, h, 0) == CUDA_SUCCESS || cuMemMap(at, 8 * MIB, 0, h, 0) == CUDA_SUCCESS) n++;
            cuMemRelease(h);
        }
        close(fd);
    }
    return unused;
}

static void race(void *(*user)(void *), void *(*other)(void *))
{
    pthread_t t[4];
    context_on(0);
    places = reserve(PLACES * 8 * MIB);
    for (int i = 1; i < 4; i++) EXPECT_EQ(pthread_create(&t[i], NULL, i == 3 ? other : create_and_release, NULL), 0);
    EXPECT_EQ(pthread_create(&t[0], NULL, user, NULL), 0);
    pthread_join(t[0], NULL);
    enough = true;
    for (int i = 1; i < 4; i++) pthread_join(t[i], NULL);
    EXPECT_EQ(1024 * MIB - free_bytes(), held(CARD_A));
    EXPECT_EQ(cuMemUnmap(places, PLACES * 8 * MIB), CUDA_SUCCESS);
    HOLDS(0);
}

static void what_is_mapped_while_another_thread_releases_it_is_counted(void) { race(map_what_others_release, release_what_others_create); }
static void what_is_exported_while_another_thread_releases_it_is_counted(void) { race(export_what_others_release, create_and_release); }

/* A released handle is retained again by its mapping's address, while another thread unmaps that mapping, the last to hold the memory. */
static void *unmap(void *unused)
{
    while (!enough) cuMemUnmap(places, 8 * MIB);
    return unused;
}

static void what_is_retained_while_another_thread_unmaps_it_is_counted(void)
{
    pthread_t t;
    handle h, kept[PLACES];
    unsigned n = 0;
    context_on(0);
    places = reserve(8 * MIB);
    EXPECT_EQ(pthread_create(&t, NULL, unmap, NULL), 0);
    for (int i = 0; i < 20000 && n < PLACES; i++) {
        if (cuMemCreate(&h, 8 * MIB, &on_card, 0)) continue;
        bool mapped = cuMemMap(places, 8 * MIB, 0, h, 0) == CUDA_SUCCESS;
        cuMemRelease(h);
        if (mapped && cuMemRetainAllocationHandle(&kept[n], (void *)(uintptr_t)places) == CUDA_SUCCESS) n++;
    }
    enough = true;
    pthread_join(t, NULL);
    cuMemUnmap(places, 8 * MIB);
    EXPECT_EQ(1024 * MIB - free_bytes(), held(CARD_A));
    while (n > 0) EXPECT_EQ(cuMemRelease(kept[--n]), CUDA_SUCCESS);
    HOLDS(0);
}

/* ---- multicast, tiles ---- */

static void a_multicast_team_is_charged_as_the_driver_charges_it(void)
{
    CUmulticastObjectProp p = {.numDevices = 2, .size = 8 * MIB};
    handle team, h, other;
    CUmemAllocationProp second = {.type = 1, .location = {1, 1}};
    context_on(0);
    EXPECT_EQ(cuMulticastCreate(&team, &p) + cuMulticastAddDevice(team, 0) + cuMulticastAddDevice(team, 1), CUDA_SUCCESS);
    HOLDS(2);
    EXPECT_EQ(held(CARD_B), 2 * MIB);
    EXPECT_EQ(cuMulticastAddDevice(team, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMulticastAddDevice(team, 9), CUDA_ERROR_INVALID_DEVICE);
    HOLDS(2);
    EXPECT_EQ(cuMemCreate(&h, 8 * MIB, &on_card, 0) + cuMemCreate(&other, 8 * MIB, &second, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMulticastBindMem(team, 0, h, 0, 8 * MIB, 0) + cuMulticastBindMem(team, 0, other, 0, 8 * MIB, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(h) + cuMemRelease(other), CUDA_SUCCESS);
    HOLDS(10);
    EXPECT_EQ(cuMulticastUnbind(team, 0, 0, 8 * MIB), CUDA_SUCCESS);
    HOLDS(2);
    EXPECT_EQ(held(CARD_B), 10 * MIB);
    EXPECT_EQ(cuMemRelease(team), CUDA_SUCCESS);
    HOLDS(0);
    EXPECT_EQ(held(CARD_B), 0);
}

static void a_team_that_would_pass_the_quota_is_not_joined(void)
{
    CUmulticastObjectProp p = {.numDevices = 1, .size = 2 * MIB};
    handle team, h;
    context_on(0);
    EXPECT_EQ(cuMemCreate(&h, 768 * MIB, &on_card, 0) + cuMulticastCreate(&team, &p), CUDA_SUCCESS);
    EXPECT_EQ(cuMulticastAddDevice(team, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(peak(CARD_A), 1024 * MIB);
    EXPECT_EQ(cuMemRelease(h) + cuMulticastAddDevice(team, 0) + cuMemRelease(team), CUDA_SUCCESS);
    HOLDS(0);
}

static void memory_bound_by_address_is_held_by_the_team_alone(void)
{
    CUmulticastObjectProp p = {.numDevices = 1, .size = 4 * MIB};
    handle team, h;
    context_on(0);
    CUdeviceptr va = reserve(4 * MIB);
    EXPECT_EQ(cuMulticastCreate(&team, &p) + cuMulticastAddDevice(team, 0) + cuMemCreate(&h, 4 * MIB, &on_card, 0) + cuMemMap(va, 4 * MIB, 0, h, 0), 0);
    EXPECT_EQ(cuMulticastBindAddr(team, 0, va, 4 * MIB, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(va, 4 * MIB) + cuMemRelease(h), CUDA_SUCCESS);
    HOLDS(6);
    EXPECT_EQ(cuMulticastUnbind(team, 0, 0, 4 * MIB), CUDA_SUCCESS);
    HOLDS(2);
    EXPECT_EQ(cuMemRelease(team), CUDA_SUCCESS);
    HOLDS(0);
}

static void a_tile_of_a_sparse_array_holds_its_memory(void)
{
    CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 1024, .Height = 1024, .Format = 1, .NumChannels = 4, .Flags = 0x40};
    handle h, other;
    CUarray a;
    context_on(0);
    EXPECT_EQ(cuArray3DCreate_v2(&a, &d) + cuMemCreate(&h, 4 * MIB, &on_card, 0) + cuMemCreate(&other, 2 * MIB, &on_card, 0), 0);
    CUarrayMapInfo i[2] = {{.memOperationType = 1, .deviceBitMask = 1, .resource.array = a, .memHandle.memHandle = h}};
    i[1] = i[0];
    i[1].subresource.sparseLevel.offsetX = 256;
    EXPECT_EQ(cuMemMapArrayAsync(i, 2, NULL) + cuMemRelease(h), CUDA_SUCCESS);
    HOLDS(6);
    i[0].memHandle.memHandle = i[1].memHandle.memHandle = other;
    EXPECT_EQ(cuMemMapArrayAsync(&i[0], 1, NULL), CUDA_SUCCESS);
    HOLDS(6);
    EXPECT_EQ(cuMemMapArrayAsync(&i[1], 1, NULL) + cuMemRelease(other), CUDA_SUCCESS);
    HOLDS(2);
    i[1].memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
    EXPECT_EQ(cuMemMapArrayAsync(&i[1], 1, NULL), CUDA_SUCCESS);
    HOLDS(2);
    EXPECT_EQ(cuMemMapArrayAsync(NULL, 1, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
    HOLDS(0);
}

static void tiles_go_with_their_context(void)
{
    CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 1024, .Height = 1024, .Format = 1, .NumChannels = 4, .Flags = 0x40};
    handle h;
    CUarray a;
    CUcontext c = context_on(0);
    EXPECT_EQ(cuArray3DCreate_v2(&a, &d) + cuMemCreate(&h, 4 * MIB, &on_card, 0), 0);
    CUarrayMapInfo i = {.memOperationType = 1, .deviceBitMask = 1, .resource.array = a, .memHandle.memHandle = h};
    EXPECT_EQ(cuMemMapArrayAsync(&i, 1, NULL) + cuMemRelease(h), CUDA_SUCCESS);
    HOLDS(4);
    EXPECT_EQ(cuCtxDestroy_v2(c), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
    context_on(0);
    HOLDS(0);
}

#define A_GIGABYTE CARD_A "=1GiB,context=256MiB"

int main(void)
{
    IN(A_GIGABYTE, memory_is_charged_at_creation_and_refunded_when_nothing_holds_it);
    IN(A_GIGABYTE, one_unmapping_ends_many_mappings_and_a_partial_one_ends_none);
    IN(A_GIGABYTE, the_quota_is_met_to_the_granule);
    IN(A_GIGABYTE, memory_of_the_host_is_never_charged_nor_refused);
    IN(A_GIGABYTE, an_odd_device_index_gets_the_drivers_own_answer);
    IN(A_GIGABYTE " " CARD_B "=150MiB,context=100MiB", each_card_has_its_own_limit_whatever_the_current_context);
    IN(A_GIGABYTE, a_card_that_is_not_the_containers_has_nothing_to_give);
    IN("", without_limits_nothing_is_created_on_a_card_and_the_host_is_free);
    IN(A_GIGABYTE, wrong_arguments_get_the_drivers_own_answer);
    IN(A_GIGABYTE, segments_that_grow_and_shrink_cost_what_is_mapped);
    IN(A_GIGABYTE, threads_that_are_given_each_others_handle_numbers_lose_no_byte);
    IN(A_GIGABYTE, what_is_mapped_while_another_thread_releases_it_is_counted);
    IN(A_GIGABYTE, what_is_exported_while_another_thread_releases_it_is_counted);
    IN(A_GIGABYTE, what_is_retained_while_another_thread_unmaps_it_is_counted);
    IN(A_GIGABYTE, a_forked_child_holds_nothing_of_its_parents);
    IN(A_GIGABYTE " " CARD_B "=150MiB,context=100MiB", a_multicast_team_is_charged_as_the_driver_charges_it);
    IN(A_GIGABYTE, a_team_that_would_pass_the_quota_is_not_joined);
    IN(A_GIGABYTE, memory_bound_by_address_is_held_by_the_team_alone);
    IN(A_GIGABYTE, a_tile_of_a_sparse_array_holds_its_memory);
    IN(A_GIGABYTE, tiles_go_with_their_context);
    FINISH;
}
