/* Stream-ordered memory near the quota. The judge is simgpu's ledger. The container has 1 GiB, of which its context takes 256 MiB. */
#include "judge.h"

#include <pthread.h>

#define ROUNDS 2000

static CUstream stream;

static void a_pool_is_charged_what_it_reserves(void)
{
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAllocAsync(&p, 1000, stream), 0);
    EXPECT_BOTH(CHUNK);
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    EXPECT_BOTH(CHUNK); /* a free piece stays in the pool */
    EXPECT_EQ(cuStreamSynchronize(stream), 0);
    EXPECT_BOTH(0);
}

static void beyond_the_quota_is_out_of_memory_and_nothing_else(void)
{
    CUdeviceptr p = 7;
    EXPECT_EQ(cuMemAllocAsync(&p, 2 * QUOTA, stream), OOM);
    EXPECT_EQ(cuMemAllocAsync(&p, QUOTA - CONTEXT + 1, stream), OOM);
    EXPECT_EQ(cuMemAllocAsync(&p, 1ull << 60, stream), OOM);
    EXPECT_EQ(cuMemAllocAsync(&p, SIZE_MAX, stream), OOM);
    EXPECT_BOTH(0);
    EXPECT_EQ(cuMemAllocAsync(&p, QUOTA - CONTEXT, stream), 0);
    EXPECT_BOTH(QUOTA - CONTEXT);
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    EXPECT_EQ(cuStreamSynchronize(stream), 0);
    EXPECT_BOTH(0);
}

static void wrong_arguments_get_the_drivers_own_errors(void)
{
    CUdeviceptr p;
    EXPECT_EQ(cuMemAllocAsync(NULL, 10, stream), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAllocAsync(&p, 0, stream), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 10, NULL, stream), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuMemFreeAsync(0x1234, stream), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFreeAsync(0, stream), 0);
    EXPECT_BOTH(0);
}

static int loop(size_t size, CUstream s, int rounds, bool synchronise)
{
    int refused = 0;
    for (int i = 0; i < rounds; i++) {
        CUdeviceptr p;
        if (cuMemAllocAsync(&p, size, s)) {
            refused++;
            continue;
        }
        cuMemFreeAsync(p, s);
        if (synchronise) cuStreamSynchronize(s);
    }
    return refused;
}

static void an_endless_loop_near_the_quota_is_never_refused(void)
{
    CUdeviceptr rest = leave_only(40 * MIB);
    EXPECT_EQ(loop(20 * MIB, stream, ROUNDS, false), 0);
    EXPECT_EQ(loop(20 * MIB, stream, ROUNDS / 10, true), 0);
    EXPECT_EQ(loop(40 * MIB, stream, ROUNDS / 10, true), 0); /* does not fit with the pool's steps, but fits into the quota */
    EXPECT_EQ(cuMemFree_v2(rest), 0);
    cuStreamSynchronize(stream);
    EXPECT_BOTH(0);
}

/* An ordinary pool is used only if there is room for it to grow, however much unused memory it has. */
static void with_a_full_quota_a_pool_that_could_grow_gives_nothing(void)
{
    CUdeviceptr held, rest;
    EXPECT_EQ(cuMemAllocAsync(&held, 5 * MIB, stream), 0); /* keeps its chunk in the pool */
    rest = leave_only(0);
    EXPECT_EQ(loop(20 * MIB, stream, 5, false), 5);
    EXPECT_EQ(cuMemFree_v2(rest), 0);
    EXPECT_EQ(loop(20 * MIB, stream, 5, false), 0);
    EXPECT_EQ(cuMemFreeAsync(held, stream), 0);
    cuStreamSynchronize(stream);
    EXPECT_BOTH(0);
}

static void many_pieces_of_a_full_pool_are_given_again(void)
{
    enum { N = 60 };
    CUdeviceptr p[N], rest = leave_only(2 * CHUNK);
    for (int i = 0; i < N; i++) EXPECT_EQ(cuMemAllocAsync(&p[i], MIB, stream), 0);
    EXPECT_BOTH(QUOTA - CONTEXT);
    for (int round = 0; round < 20; round++) {
        for (int i = round % 3; i < N; i += 3) EXPECT_EQ(cuMemFreeAsync(p[i], stream), 0);
        for (int i = round % 3; i < N; i += 3) EXPECT_EQ(cuMemAllocAsync(&p[i], MIB, stream), 0);
    }
    EXPECT_BOTH(QUOTA - CONTEXT);
    for (int i = 0; i < N; i++) EXPECT_EQ(cuMemFreeAsync(p[i], stream), 0);
    cuMemFree_v2(rest);
    cuStreamSynchronize(stream);
    EXPECT_BOTH(0);
}

static void when_no_chunk_fits_the_bare_request_is_served(void)
{
    CUdeviceptr p, small, rest = leave_only(10 * MIB);
    EXPECT_EQ(cuMemAllocAsync(&p, 8 * MIB, stream), 0);
    EXPECT_EQ(left(), 2 * MIB);
    EXPECT_EQ(cuMemAllocAsync(&small, 100, stream), 0);
    EXPECT_EQ(left(), 0);
    EXPECT_EQ(cuMemFreeAsync(small, stream), 0);
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    EXPECT_EQ(cuStreamSynchronize(stream), 0);
    EXPECT_EQ(left(), 10 * MIB);
    cuMemFree_v2(rest);
    EXPECT_BOTH(0);
}

static void several_streams_near_the_quota_are_never_refused(void)
{
    CUstream s[4];
    CUdeviceptr rest = leave_only(4 * CHUNK), p[4] = {0}; /* each of the other three may keep a step of its pool */
    int refused = 0;
    for (int i = 0; i < 4; i++) cuStreamCreate(&s[i], 1);
    for (int i = 0; i < ROUNDS; i++) {
        int k = i % 4;
        if (p[k]) cuMemFreeAsync(p[k], s[k]);
        if (i % 7 == 0) cuStreamSynchronize(s[(i / 7) % 4]);
        p[k] = 0;
        refused += cuMemAllocAsync(&p[k], (1 + i * 7 % 20) * MIB, s[k]) != 0;
    }
    EXPECT_EQ(refused, 0);
    for (int i = 0; i < 4; i++) cuMemFreeAsync(p[i], s[i]);
    cuCtxSynchronize();
    cuMemFree_v2(rest);
    EXPECT_BOTH(0);
}

static void memory_of_a_pool_can_be_freed_by_cuMemFree(void)
{
    CUdeviceptr held, p, rest;
    EXPECT_EQ(cuMemAllocAsync(&held, MIB, stream), 0);
    rest = leave_only(CHUNK);
    for (int i = 0; i < 200; i++) {
        EXPECT_EQ(cuMemAllocAsync(&p, 20 * MIB, stream), 0);
        EXPECT_EQ(cuMemFree_v2(p), 0);
    }
    EXPECT_EQ(cuMemFree_v2(held), 0);
    cuStreamSynchronize(stream);
    EXPECT_EQ(left(), 2 * CHUNK);
    cuMemFree_v2(rest);
    EXPECT_BOTH(0);
}

static void the_threads_own_default_stream_is_another_stream(void)
{
    CUdeviceptr held, p, rest;
    EXPECT_EQ(cuMemAllocAsync_ptsz(&held, MIB, NULL), 0);
    rest = leave_only(CHUNK);
    for (int i = 0; i < 200; i++) {
        EXPECT_EQ(cuMemAllocAsync_ptsz(&p, 20 * MIB, NULL), 0);
        EXPECT_EQ(cuMemFreeAsync_ptsz(p, NULL), 0);
    }
    EXPECT_EQ(cuMemFreeAsync_ptsz(held, NULL), 0);
    cuMemFree_v2(rest);
    cuCtxSynchronize();
    EXPECT_BOTH(0);
}

/* ---- threads ---- */

static CUcontext context;
static _Atomic int refused_to_threads;

static void *allocate_and_free(void *seed)
{
    unsigned random = (unsigned)(uintptr_t)seed;
    CUstream s;
    cuCtxSetCurrent(context);
    cuStreamCreate(&s, 1);
    for (int i = 0; i < 1500; i++) {
        CUdeviceptr p;
        if (cuMemAllocAsync(&p, 1 + rand_r(&random) % (20 * MIB), s)) {
            refused_to_threads++;
            continue;
        }
        cuMemFreeAsync(p, s);
        if (rand_r(&random) % 16 == 0) cuStreamSynchronize(s);
    }
    cuStreamSynchronize(s);
    return NULL;
}

static void threads_at_the_quota_are_neither_refused_nor_charged_twice(void)
{
    pthread_t t[6];
    CUdeviceptr rest = leave_only(6 * CHUNK);
    for (uintptr_t i = 0; i < 6; i++) pthread_create(&t[i], NULL, allocate_and_free, (void *)(i + 1));
    for (int i = 0; i < 6; i++) pthread_join(t[i], NULL);
    EXPECT_EQ(refused_to_threads, 0);
    cuCtxSynchronize();
    cuMemFree_v2(rest);
    EXPECT_BOTH(0);
    EXPECT_NEVER_OVER;
}

int main(void)
{
    cuInit(0);
    cuCtxCreate_v2(&context, 0, 0);
    cuStreamCreate(&stream, 1);
    RUN(a_pool_is_charged_what_it_reserves);
    RUN(beyond_the_quota_is_out_of_memory_and_nothing_else);
    RUN(wrong_arguments_get_the_drivers_own_errors);
    RUN(an_endless_loop_near_the_quota_is_never_refused);
    RUN(with_a_full_quota_a_pool_that_could_grow_gives_nothing);
    RUN(many_pieces_of_a_full_pool_are_given_again);
    RUN(when_no_chunk_fits_the_bare_request_is_served);
    RUN(several_streams_near_the_quota_are_never_refused);
    RUN(memory_of_a_pool_can_be_freed_by_cuMemFree);
    RUN(the_threads_own_default_stream_is_another_stream);
    RUN(threads_at_the_quota_are_neither_refused_nor_charged_twice);
    EXPECT_NEVER_OVER;
    FINISH;
}
