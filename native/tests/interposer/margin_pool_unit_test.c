/* Pools for the last bytes of the quota, in an order that threads rarely produce. Here the test acts as the driver: one that keeps the memory of
 * an empty pool until it is trimmed. */
#include "check.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/process.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/margin_pool.h"
#include "memory/pool.h"

#include "cuda_abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define CARD "\0\0\0\0\0\0\x40\0\x80\0\0\0\0\0\0\1" /* GPU-00000000-0000-4000-8000-000000000001 */
#define POOLS 8
#define BASE 0x200000000000ull

static struct { _Atomic uint64_t reserved, used; } pools[POOLS];
static _Atomic int made;
static void (*_Atomic meanwhile)(void);
static pthread_t second;

/* ---- the driver ---- */

static size_t number(CUmemoryPool p) { return (uintptr_t)p - 1; }

static CUresult attribute(CUmemoryPool p, int what, void *out)
{
    void (*others)(void) = what == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? atomic_exchange(&meanwhile, NULL) : NULL;
    *(uint64_t *)out = what == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pools[number(p)].reserved : what == CU_MEMPOOL_ATTR_USED_MEM_CURRENT ? pools[number(p)].used : 0;
    if (others) others();
    return CUDA_SUCCESS;
}

static CUresult create(CUmemoryPool *out, const CUmemPoolProps *props)
{
    EXPECT(props->maxSize);
    *out = (CUmemoryPool)(uintptr_t)(atomic_fetch_add(&made, 1) + 1);
    return made <= POOLS ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate(CUdeviceptr *out, size_t size, CUmemoryPool p, CUstream s)
{
    (void)s;
    *out = BASE + number(p);
    pools[number(p)].used += size;
    pools[number(p)].reserved += 2 * MIB;
    return CUDA_SUCCESS;
}

static CUresult trim(CUmemoryPool p, size_t keep)
{
    EXPECT_EQ(keep, 0);
    if (!pools[number(p)].used) pools[number(p)].reserved = 0;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUmemoryPool p)
{
    EXPECT_EQ(pools[number(p)].reserved, 0);
    return CUDA_SUCCESS;
}

static CUresult version(int *out) { return *out = 12080, CUDA_SUCCESS; }
static CUresult uuid(CUuuid *out, CUdevice d) { return memcpy(out, CARD, 16), d ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; }

#define FAKE(name, function) fr_real[FR_##name] = (void *)(function)
static void be_the_driver(void)
{
    FAKE(cuMemPoolGetAttribute, attribute);
    FAKE(cuMemPoolCreate, create);
    FAKE(cuMemAllocFromPoolAsync, allocate);
    FAKE(cuMemPoolTrimTo, trim);
    FAKE(cuMemPoolDestroy, destroy);
    FAKE(cuDriverGetVersion, version);
    FAKE(cuDeviceGetUuid, uuid);
    FAKE(cuDeviceGetUuid_v2, uuid);
}

/* ---- */

static CUdeviceptr take(void)
{
    CUdeviceptr at = 0;
    struct fr_pool where = {.device = 0, .card = 0};
    struct fr_pool_request q = {.pool = &where, .size = MIB, .out = &at};
    EXPECT(fr_margin_allocate(&q));
    return at;
}

static void *takes(void *at) { return *(CUdeviceptr *)at = take(), NULL; }

static CUdeviceptr of_the_second;
static void another_takes_too(void)
{
    EXPECT_EQ(pthread_create(&second, NULL, takes, &of_the_second), 0);
    usleep(20000); /* it may wait for this call */
}

/* A thread that looks for a place drops empty pools, even one from which another thread is about to allocate. */
static void a_pool_that_was_dropped_while_a_thread_allocated_from_it_gives_all_back(void)
{
    meanwhile = another_takes_too;
    CUdeviceptr first = take();
    pthread_join(second, NULL);
    EXPECT_EQ(first, BASE);
    EXPECT_EQ(of_the_second, BASE + 1);
    EXPECT_EQ(fr_used_here(0), 4 * MIB);
    pools[0].used = pools[1].used = 0;
    fr_margin_tidy(0);
    EXPECT_EQ(pools[0].reserved, 0);
    EXPECT_EQ(pools[1].reserved, 0);
    EXPECT_EQ(fr_used_here(0), 0);
}

int main(void)
{
    be_the_driver();
    if (fr_process_state() != FR_ENFORCE) return puts("0 passed, 1 failed"), 1;
    RUN(a_pool_that_was_dropped_while_a_thread_allocated_from_it_gives_all_back);
    FINISH;
}
