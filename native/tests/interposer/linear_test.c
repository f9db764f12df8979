/* Linear, pitched and managed memory under a quota: never a byte beyond it, and no request is refused that would have fitted. */
#include "container.h"

#include <pthread.h>

#define QUOTA (512 * MIB)

static void a_quota_holds_to_the_granule(void)
{
    CUdeviceptr p, q;
    context_on(0);
    EXPECT_EQ(free_bytes(), 256 * MIB);
    EXPECT_EQ(cuMemAlloc_v2(&p, 256 * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc_v2(&p, 254 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&q, 3 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc_v2(&q, 2 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes(), 0);
    EXPECT_EQ(held(CARD_A), QUOTA);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes(), 254 * MIB);
    EXPECT_EQ(cuMemFree_v2(q), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), CONTEXT);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(peak(CARD_A), QUOTA);
}

static void all_that_is_called_free_can_be_taken_at_once_as_tensorflow_does(void)
{
    CUdeviceptr p;
    context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 5000), CUDA_SUCCESS);
    size_t all = free_bytes();
    EXPECT_EQ(all, 255 * MIB / 2 / MIB * 2 * MIB); /* the quota is 513 MiB: only half of its last granule is within it */
    EXPECT_EQ(cuMemAlloc_v2(&p, all), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes(), 0);
    EXPECT(peak(CARD_A) <= 513 * MIB);
}

static void a_program_that_is_refused_and_frees_can_ask_again_as_pytorch_does(void)
{
    CUdeviceptr cache[64], p;
    int n = 0;
    context_on(0);
    while (cuMemAlloc_v2(&cache[n], 20 * MIB) == CUDA_SUCCESS) n++;
    EXPECT_EQ(n, 12);
    EXPECT_EQ(cuMemAlloc_v2(&p, 40 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    for (int i = 0; i < n; i++) EXPECT_EQ(cuMemFree_v2(cache[i]), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&p, 256 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), QUOTA);
}

static void small_allocations_share_granules_that_are_charged_once(void)
{
    CUdeviceptr p[8192];
    context_on(0);
    for (int i = 0; i < 8192; i++) EXPECT_EQ(cuMemAlloc_v2(&p[i], 512), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB);
    EXPECT_EQ(held(CARD_A), CONTEXT + 4 * MIB);
    for (int i = 1; i < 8192; i += 2) EXPECT_EQ(cuMemFree_v2(p[i]), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB);
    for (int i = 0; i < 4096; i += 2) EXPECT_EQ(cuMemFree_v2(p[i]), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 2 * MIB);
    for (int i = 4096; i < 8192; i += 2) EXPECT_EQ(cuMemFree_v2(p[i]), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(held(CARD_A), CONTEXT);
}

static void with_a_full_quota_a_small_allocation_still_finds_the_last_hole(void)
{
    CUdeviceptr p[4096], large, more;
    context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&large, 254 * MIB), CUDA_SUCCESS);
    int n = 0;
    while (n < 4096 && cuMemAlloc_v2(&p[n], 4096) == CUDA_SUCCESS) n++;
    EXPECT_EQ(n, 512);
    EXPECT_EQ(cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemFree_v2(p[100]), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(p[300]), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&more, 4097), CUDA_ERROR_OUT_OF_MEMORY); /* two holes do not make one */
    EXPECT_EQ(cuMemAlloc_v2(&more, 4096), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&more, 513), CUDA_SUCCESS);
    EXPECT_EQ(peak(CARD_A), QUOTA);
}

/* Many threads near the quota: each knows how many of its pieces must fit. */
enum { THREADS = 6 };

static CUcontext shared_context;
static _Atomic int refused;

static void *churn_pieces(void *seed_at)
{
    unsigned seed = *(unsigned *)seed_at;
    CUdeviceptr mine[200];
    EXPECT_EQ(cuCtxSetCurrent(shared_context), CUDA_SUCCESS);
    for (int round = 0; round < 20; round++) {
        int n = 0;
        for (; n < 200; n++) {
            size_t size = 1 + (unsigned)rand_r(&seed) % 1024;
            if (cuMemAlloc_v2(&mine[n], size) != CUDA_SUCCESS) break;
        }
        if (n < 200) refused++;
        while (n) {
            CUdeviceptr *p = &mine[(unsigned)rand_r(&seed) % (unsigned)n];
            EXPECT_EQ(cuMemFree_v2(*p), CUDA_SUCCESS);
            *p = mine[--n];
        }
    }
    return NULL;
}

static void threads_that_share_the_last_granule_never_pass_the_quota(void)
{
    CUdeviceptr large, anchor;
    pthread_t threads[THREADS];
    unsigned seeds[THREADS];
    shared_context = context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&large, 254 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&anchor, 1), CUDA_SUCCESS); /* the granule stays; 6 threads x 200 x 2 units fit beside it */
    for (unsigned i = 0; i < THREADS; i++) seeds[i] = i + 1, pthread_create(&threads[i], NULL, churn_pieces, &seeds[i]);
    for (unsigned i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    EXPECT_EQ(peak(CARD_A), QUOTA);
    EXPECT_EQ(held(CARD_A), QUOTA);
    EXPECT_EQ(used(), QUOTA);
    EXPECT_EQ(refused, 0); /* a hole as large as all calls in progress stays free all the time */
}

static void *churn_granules(void *seed_at)
{
    unsigned seed = *(unsigned *)seed_at;
    CUdeviceptr mine[40];
    EXPECT_EQ(cuCtxSetCurrent(shared_context), CUDA_SUCCESS);
    for (int round = 0; round < 60; round++) {
        int n = 0;
        while (n < 40 && cuMemAlloc_v2(&mine[n], 1 + (unsigned)rand_r(&seed) % (1100 * 1024)) == CUDA_SUCCESS) n++;
        while (n) {
            CUdeviceptr *p = &mine[(unsigned)rand_r(&seed) % (unsigned)n];
            EXPECT_EQ(cuMemFree_v2(*p), CUDA_SUCCESS);
            *p = mine[--n];
        }
    }
    return NULL;
}

static void threads_that_take_and_empty_granules_leave_nothing_behind(void)
{
    CUdeviceptr large;
    pthread_t threads[THREADS];
    unsigned seeds[THREADS];
    shared_context = context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&large, 226 * MIB), CUDA_SUCCESS);
    for (unsigned i = 0; i < THREADS; i++) seeds[i] = i + 11, pthread_create(&threads[i], NULL, churn_granules, &seeds[i]);
    for (unsigned i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    EXPECT(peak(CARD_A) <= QUOTA);
    EXPECT_EQ(used(), CONTEXT + 226 * MIB);
    EXPECT_EQ(held(CARD_A), CONTEXT + 226 * MIB);
    EXPECT_EQ(cuMemAlloc_v2(&large, 30 * MIB), CUDA_SUCCESS);
}

static void *churn_the_margin(void *seed_at)
{
    unsigned seed = *(unsigned *)seed_at;
    CUdeviceptr mine[8];
    EXPECT_EQ(cuCtxSetCurrent(shared_context), CUDA_SUCCESS);
    for (int round = 0; round < 2000; round++) {
        int n = 0;
        while (n < 8 && cuMemAlloc_v2(&mine[n], 1 + (unsigned)rand_r(&seed) % (900 * 1024)) == CUDA_SUCCESS) n++;
        while (n) {
            CUdeviceptr *p = &mine[(unsigned)rand_r(&seed) % (unsigned)n];
            EXPECT_EQ(cuMemFree_v2(*p), CUDA_SUCCESS);
            *p = mine[--n];
        }
    }
    return NULL;
}

static void threads_that_live_on_holes_of_all_sizes_never_pass_the_quota(void)
{
    CUdeviceptr large;
    pthread_t threads[THREADS];
    unsigned seeds[THREADS];
    shared_context = context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&large, 246 * MIB), CUDA_SUCCESS); /* five granules are left for some twenty pieces */
    for (unsigned i = 0; i < THREADS; i++) seeds[i] = i + 11, pthread_create(&threads[i], NULL, churn_the_margin, &seeds[i]);
    for (unsigned i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    EXPECT_EQ(peak(CARD_A), QUOTA);
    EXPECT_EQ(used(), CONTEXT + 246 * MIB);
    EXPECT_EQ(held(CARD_A), CONTEXT + 246 * MIB);
}

static void pitched_memory_is_charged_by_the_pitch_that_comes_back(void)
{
    CUdeviceptr p;
    size_t pitch;
    context_on(0);
    EXPECT_EQ(cuMemAllocPitch_v2(&p, &pitch, 513, 8192, 4), CUDA_SUCCESS);
    EXPECT_EQ(pitch, 1024);
    EXPECT_EQ(used(), CONTEXT + 8 * MIB);
    EXPECT_EQ(held(CARD_A), CONTEXT + 8 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAllocPitch_v2(&p, &pitch, 1, 100, 4), CUDA_SUCCESS); /* 100 rows of 512: a piece */
    EXPECT_EQ(used(), CONTEXT + 2 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuMemAllocPitch_v2(&p, &pitch, 1025, 200000, 4), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAllocPitch_v2(&p, &pitch, 1ull << 62, 1ull << 62, 4), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(peak(CARD_A), CONTEXT + 8 * MIB);
}

static void managed_memory_counts_in_full_and_host_memory_never(void)
{
    CUdeviceptr p, q;
    void *h;
    context_on(0);
    EXPECT_EQ(cuMemAllocManaged(&p, 10 * MIB + 1, 1), CUDA_SUCCESS);
    unsigned managed = 0;
    EXPECT_EQ(cuPointerGetAttribute(&managed, 8, p), CUDA_SUCCESS);
    EXPECT_EQ(managed, 1);
    *(volatile char *)(uintptr_t)p = 1;
    EXPECT_EQ(used(), CONTEXT + 12 * MIB);
    EXPECT_EQ(cuMemHostAlloc(&h, 1024 * MIB, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 12 * MIB);
    EXPECT_EQ(cuMemFreeHost(h), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAllocManaged(&p, 1, 1), CUDA_SUCCESS); /* managed memory is never packed */
    EXPECT_EQ(cuMemAllocManaged(&q, 1, 1), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB);
    EXPECT_EQ(held(CARD_A), CONTEXT + 4 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(q), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuMemAllocManaged(&p, 300 * MIB, 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(peak(CARD_A), CONTEXT + 12 * MIB);
}

static void memory_of_a_stopped_process_is_there_for_the_next_one(void)
{
    CUdeviceptr p;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        context_on(0);
        EXPECT_EQ(cuMemAlloc_v2(&p, 256 * MIB), CUDA_SUCCESS);
        raise(9);
    }
    waitpid(child, NULL, 0);
    double before = seconds();
    context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 256 * MIB), CUDA_SUCCESS);
    EXPECT(seconds() - before < soon());
    EXPECT_EQ(held(CARD_A), QUOTA);
}

#define FULL CARD_A "=512MiB,context=256MiB"

static void *fill_card(void *unused)
{
    CUdeviceptr p;
    CUcontext c = context_on(0);
    while (!cuMemAlloc_v2(&p, 16 * MIB)) {}
    while (!cuMemAllocAsync(&p, 100000, NULL)) {}
    EXPECT_EQ(cuCtxDestroy_v2(c), CUDA_SUCCESS);
    return unused;
}

/* A refusal looks at all processes of the container, which takes stack. */
static void a_thread_with_the_smallest_stack_is_refused_as_any_other(void)
{
    pthread_attr_t small;
    pthread_t thread;
    EXPECT_EQ(pthread_attr_init(&small) + pthread_attr_setstacksize(&small, 16384), 0);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(pthread_create(&thread, &small, fill_card, NULL), 0);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
}

int main(void)
{
    IN(FULL, a_quota_holds_to_the_granule);
    IN(CARD_A "=513MiB,context=256MiB", all_that_is_called_free_can_be_taken_at_once_as_tensorflow_does);
    IN(FULL, a_program_that_is_refused_and_frees_can_ask_again_as_pytorch_does);
    IN(FULL, small_allocations_share_granules_that_are_charged_once);
    IN(FULL, with_a_full_quota_a_small_allocation_still_finds_the_last_hole);
    IN(FULL, threads_that_share_the_last_granule_never_pass_the_quota);
    IN(FULL, threads_that_take_and_empty_granules_leave_nothing_behind);
    IN(FULL, threads_that_live_on_holes_of_all_sizes_never_pass_the_quota);
    IN(FULL, pitched_memory_is_charged_by_the_pitch_that_comes_back);
    IN(FULL, managed_memory_counts_in_full_and_host_memory_never);
    IN(FULL, memory_of_a_stopped_process_is_there_for_the_next_one);
    IN(FULL, a_thread_with_the_smallest_stack_is_refused_as_any_other);
    FINISH;
}
