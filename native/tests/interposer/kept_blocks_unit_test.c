/* Blocks that were freed near the quota and kept must be given back to the driver before a capture may begin, even if another thread is just
 * doing that. Here the test acts as the driver. */
#include "check.h"
#include "resolve/real.h"
#include "ledger/process.h"
#include "memory/api_pool.h"
#include "memory/kept_blocks.h"
#include "memory/pool.h"

#include "cuda_abi.h"

#include <pthread.h>
#include <unistd.h>

#define POOL ((CUmemoryPool)(uintptr_t)0x1000)
#define STREAM ((CUstream)(uintptr_t)0x2000)
#define BLOCK 0x200000000000ull
#define SIZE (4 * MIB)
#define CONTEXT_OF_STREAM ((CUcontext)(uintptr_t)0x3000)

static _Atomic bool slow, inside;
static _Atomic uint32_t given, freed_without_stream;
static _Thread_local CUcontext current;
static _Atomic bool gone; /* the stream's context */

static CUresult pointer_attribute(void *out, int what, CUdeviceptr p) { return (void)what, (void)p, *(CUmemoryPool *)out = POOL, CUDA_SUCCESS; }
static CUresult address_range(CUdeviceptr *base, size_t *size, CUdeviceptr p) { return *base = p, *size = SIZE, CUDA_SUCCESS; }
static CUresult stream_id(CUstream s, unsigned long long *id) { return *id = (uintptr_t)s, CUDA_SUCCESS; }
static CUresult pool_attribute(CUmemoryPool p, int what, void *out) { return (void)p, (void)what, *(uint64_t *)out = 0, CUDA_SUCCESS; }
static CUresult stream_query(CUstream s) { return (void)s, CUDA_SUCCESS; }

static CUresult stream_context(CUstream s, CUcontext *out) { return *out = CONTEXT_OF_STREAM, s == STREAM ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
static CUresult push(CUcontext c) { return gone ? CUDA_ERROR_INVALID_CONTEXT : (current = c, CUDA_SUCCESS); }
static CUresult pop(CUcontext *out) { return *out = current, current = NULL, CUDA_SUCCESS; }
static CUresult free_now(CUdeviceptr p)
{
    if (p == BLOCK) freed_without_stream++;
    return p == BLOCK ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult free_async(CUdeviceptr p, CUstream s)
{
    if (current != CONTEXT_OF_STREAM) return CUDA_ERROR_INVALID_CONTEXT;
    inside = true;
    if (slow) usleep(30000);
    given++;
    return p >= BLOCK && s == STREAM ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#define FAKE(name, function) fr_real[FR_##name] = (void *)(function)
static void be_the_driver(void)
{
    FAKE(cuPointerGetAttribute, pointer_attribute);
    FAKE(cuMemGetAddressRange_v2, address_range);
    FAKE(cuStreamGetId, stream_id);
    FAKE(cuMemPoolGetAttribute, pool_attribute);
    FAKE(cuStreamQuery, stream_query);
    FAKE(cuMemFreeAsync, free_async);
    FAKE(cuStreamGetCtx, stream_context);
    FAKE(cuCtxPushCurrent_v2, push);
    FAKE(cuCtxPopCurrent_v2, pop);
    FAKE(cuMemFree_v2, free_now);
}

static void keep(CUdeviceptr p)
{
    fr_room_was_short();
    EXPECT_EQ(fr_kept_block_put(p, STREAM), FR_KEPT);
}

static struct fr_pool *pool;
static CUdeviceptr take(size_t size)
{
    CUdeviceptr at = 0;
    struct fr_pool_request q = {.pool = pool, .size = size, .stream = STREAM, .out = &at};
    return fr_kept_block_take(&q) ? at : 0;
}

static void a_block_is_kept_once_and_used_again(void)
{
    keep(BLOCK);
    EXPECT_EQ(fr_kept_block_put(BLOCK, STREAM), FR_KEPT_BEFORE);
    EXPECT_EQ(take(SIZE + 1), 0);
    EXPECT_EQ(take(MIB), BLOCK);
    EXPECT_EQ(take(MIB), 0);
    EXPECT_EQ(fr_kept_block_count, 0);
}

static void all_go_to_the_driver_on_request(void)
{
    given = 0;
    for (uint32_t i = 0; i < 3; i++) keep(BLOCK + i * SIZE);
    fr_kept_blocks_free();
    EXPECT_EQ(given, 3);
    EXPECT_EQ(fr_kept_block_count, 0);
}

static void what_is_freed_in_a_threads_own_stream_is_not_kept(void)
{
    fr_room_was_short();
    EXPECT_EQ(fr_kept_block_put(BLOCK, CU_STREAM_PER_THREAD), FR_NOT_KEPT);
    EXPECT_EQ(fr_kept_block_count, 0);
}

/* The pool outlives the stream. */
static void a_block_whose_context_has_gone_is_freed_all_the_same(void)
{
    given = freed_without_stream = 0;
    keep(BLOCK);
    gone = true;
    fr_kept_blocks_free();
    EXPECT_EQ(given, 0);
    EXPECT_EQ(freed_without_stream, 1);
    gone = false;
}

static void *gives(void *unused)
{
    fr_kept_blocks_free();
    return unused;
}

/* Otherwise the capture that begins next would record the free. */
static void a_thread_that_asks_while_another_gives_a_block_waits_for_it(void)
{
    pthread_t other;
    given = 0;
    keep(BLOCK);
    slow = true;
    inside = false;
    EXPECT_EQ(pthread_create(&other, NULL, gives, NULL), 0);
    while (!inside) {}
    fr_kept_blocks_free();
    EXPECT_EQ(given, 1);
    pthread_join(other, NULL);
    slow = false;
}

int main(void)
{
    be_the_driver();
    if (fr_process_state() != FR_ENFORCE) return puts("0 passed, 1 failed"), 1;
    pool = fr_pool_adopt(POOL, 0, 0);
    RUN(a_block_is_kept_once_and_used_again);
    RUN(all_go_to_the_driver_on_request);
    RUN(what_is_freed_in_a_threads_own_stream_is_not_kept);
    RUN(a_block_whose_context_has_gone_is_freed_all_the_same);
    RUN(a_thread_that_asks_while_another_gives_a_block_waits_for_it);
    FINISH;
}
