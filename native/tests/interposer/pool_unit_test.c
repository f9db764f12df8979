/* The charges of pools and of graph memory, step by step in orders that threads rarely produce. Here the test acts as the driver: while one call
 * is inside it, `meanwhile` stands for another thread. At every step the ledger must have at least the bytes that the driver has. Calls that
 * have to wait for the turn run in threads. */
#include "check.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/process.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/pool.h"

#include "cuda_abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define CARD "\0\0\0\0\0\0\x40\0\x80\0\0\0\0\0\0\1" /* GPU-00000000-0000-4000-8000-000000000001 */
#define POOL ((CUmemoryPool)(uintptr_t)0x1000)
#define EXEC ((CUgraphExec)(uintptr_t)0x2000)
#define GRAPH ((CUgraph)(uintptr_t)0x3000)
#define NODE ((CUgraphNode)(uintptr_t)0x4000)
#define BASE 0x200000000000ull

static uint64_t reserved, graph_reserved, graph_used, graph_size;
static void (*meanwhile)(void);
static struct fr_pool *pool;

static void others(void)
{
    void (*f)(void) = meanwhile;
    meanwhile = NULL;
    if (f) f();
}

static bool covered(void) { return fr_used_here(0) >= reserved + graph_reserved; }

/* ---- the driver: its answers were true before `meanwhile` ran ---- */

static CUresult pool_attribute(CUmemoryPool p, int what, void *out)
{
    *(uint64_t *)out = what == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? reserved : 0;
    others();
    return p == POOL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static _Atomic uint64_t grows; /* while it is set, a second thread may be refused */
static CUresult pool_allocation; /* the driver's answer */

static CUresult pool_allocate(CUdeviceptr *out, size_t size, CUmemoryPool p, CUstream s)
{
    (void)size, (void)s;
    reserved += grows;
    grows = 0;
    EXPECT(covered());
    others();
    *out = BASE;
    return p == POOL ? pool_allocation : CUDA_ERROR_INVALID_VALUE;
}

static CUresult graph_attribute(CUdevice d, int what, void *out)
{
    *(uint64_t *)out = what == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? graph_reserved : graph_used;
    return d ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

static CUresult graph_trim(CUdevice d) { return graph_reserved = graph_used, d ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; }

static CUresult graph_launch(CUgraphExec e, CUstream s)
{
    (void)e, (void)s;
    others();
    graph_used += graph_size;
    if (graph_reserved < graph_used) graph_reserved = graph_used;
    EXPECT(covered());
    return CUDA_SUCCESS;
}

static CUresult graph_upload(CUgraphExec e, CUstream s) { return (void)e, (void)s, CUDA_SUCCESS; }
static CUresult uuid(CUuuid *out, CUdevice d) { return memcpy(out, CARD, 16), d ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; }
static CUresult instantiate(CUgraphExec *out, CUgraph g, unsigned long long f) { return (void)g, (void)f, *out = EXEC, CUDA_SUCCESS; }
static CUresult nodes(CUgraph g, CUgraphNode *out, size_t *n) { return (void)g, out ? (void)(*out = NODE) : (void)0, *n = 1, CUDA_SUCCESS; }
static CUresult type(CUgraphNode n, int *out) { return (void)n, *out = CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_SUCCESS; }
static CUresult params(CUgraphNode n, CUDA_MEM_ALLOC_NODE_PARAMS *out)
{
    *out = (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps.location = {CU_MEM_LOCATION_DEVICE, 0}, .bytesize = graph_size};
    return (void)n, CUDA_SUCCESS;
}
static CUresult destroy(CUgraphExec e) { return (void)e, others(), CUDA_SUCCESS; }

#define FAKE(name, function) fr_real[FR_##name] = (void *)(function)
static void be_the_driver(void)
{
    FAKE(cuMemPoolGetAttribute, pool_attribute);
    FAKE(cuMemAllocFromPoolAsync, pool_allocate);
    FAKE(cuDeviceGetGraphMemAttribute, graph_attribute);
    FAKE(cuDeviceGraphMemTrim, graph_trim);
    FAKE(cuGraphLaunch, graph_launch);
    FAKE(cuGraphUpload, graph_upload);
    FAKE(cuGraphInstantiateWithFlags, instantiate);
    FAKE(cuGraphExecDestroy, destroy);
    FAKE(cuGraphGetNodes, nodes);
    FAKE(cuGraphNodeGetType, type);
    FAKE(cuGraphMemAllocNodeGetParams, params);
    FAKE(cuDeviceGetUuid, uuid);
    FAKE(cuDeviceGetUuid_v2, uuid);
}

/* ---- pools ---- */

static CUresult allocate(size_t size, uint64_t by)
{
    CUdeviceptr at = 0;
    struct fr_pool_request q = {.pool = pool, .size = size, .out = &at, .result = CUDA_ERROR_OUT_OF_MEMORY};
    grows = by;
    bool asked = fr_pool_attempt(&q, false);
    grows = 0;
    return asked ? q.result : CUDA_ERROR_OUT_OF_MEMORY;
}

static void settled_to(uint64_t bytes)
{
    reserved = bytes;
    fr_pool_settle(pool);
    EXPECT_EQ(fr_used_here(0), bytes);
}

static void what_it_grows_by_is_charged_and_no_more(void)
{
    EXPECT_EQ(allocate(MIB, 2 * MIB), 0);
    EXPECT_EQ(fr_used_here(0), 2 * MIB);
    EXPECT_EQ(allocate(MIB, 0), 0);
    EXPECT_EQ(fr_used_here(0), 2 * MIB);
    EXPECT_EQ(allocate(33 * MIB, 64 * MIB), 0);
    EXPECT_EQ(fr_used_here(0), 66 * MIB);
    settled_to(0);
}

static void what_it_grew_by_in_a_call_that_failed_is_charged(void)
{
    pool_allocation = CUDA_ERROR_OUT_OF_MEMORY;
    EXPECT_EQ(allocate(MIB, 8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(fr_used_here(0), 8 * MIB);
    pool_allocation = CUDA_SUCCESS;
    settled_to(0);
}

static void more_than_the_most_that_is_known_is_charged_at_once(void)
{
    EXPECT_EQ(allocate(MIB, FR_POOL_STEP), 0);
    reserved += 7 * MIB; /* at a time when no call looks */
    fr_pool_settle(pool);
    EXPECT_EQ(fr_used_here(0), FR_POOL_STEP + 7 * MIB);
    settled_to(0);
}

/* Within the call: the driver frees memory before it allocates more. */
static void another_trims_the_pool(void)
{
    reserved -= FR_POOL_STEP;
    fr_pool_settle(pool);
}

static void a_pool_that_shrinks_while_a_call_has_its_turn_is_charged_less_when_that_ends(void)
{
    EXPECT_EQ(allocate(MIB, FR_POOL_STEP), 0);
    meanwhile = another_trims_the_pool;
    EXPECT_EQ(allocate(MIB, FR_POOL_STEP), 0);
    EXPECT_EQ(fr_used_here(0), FR_POOL_STEP);
    settled_to(0);
}

/* The size is read, then it changes, then the charge is adjusted: the other thread's look must not be lost. */
static void a_change_after_the_last_look_is_looked_at_again(void)
{
    EXPECT_EQ(allocate(MIB, FR_POOL_STEP), 0);
    meanwhile = another_trims_the_pool; /* while the size is being read */
    fr_pool_settle(pool);
    EXPECT_EQ(fr_used_here(0), 0);
    settled_to(0);
}

static void a_pool_with_a_largest_size_needs_room_for_what_is_left_to_it(void)
{
    pool->most = 40 * MIB;
    EXPECT_EQ(fr_pool_worst(pool, MIB), FR_POOL_STEP);
    EXPECT_EQ(allocate(MIB, FR_POOL_STEP), 0);
    EXPECT_EQ(fr_pool_worst(pool, MIB), 8 * MIB);
    EXPECT_EQ(allocate(MIB, 8 * MIB), 0);
    EXPECT_EQ(fr_pool_worst(pool, 30 * MIB), 0);
    EXPECT_EQ(allocate(MIB, 0), 0);
    pool->most = 0;
    settled_to(0);
}

/* A driver that needs room for one pool takes it from another. The library sees that at its next call on the other pool. */
static void a_call_on_a_pool_that_another_has_emptied_takes_it_off_the_charge(void)
{
    EXPECT_EQ(allocate(MIB, FR_POOL_STEP), 0);
    reserved = 0;
    EXPECT_EQ(fr_pool_unused(pool), 0);
    EXPECT_EQ(fr_used_here(0), 0);
    EXPECT_EQ(allocate(MIB, FR_POOL_STEP), 0);
    reserved = 0;
    EXPECT(fr_pool_is_empty(pool));
    EXPECT_EQ(fr_used_here(0), 0);
    settled_to(0);
}

static _Atomic bool first_is_inside, second_was_inside;
static void *second(void *unused)
{
    while (!first_is_inside) {}
    CUdeviceptr at = 0;
    struct fr_pool_request q = {.pool = pool, .size = MIB, .out = &at};
    EXPECT(fr_pool_attempt(&q, false));
    second_was_inside = true;
    return unused;
}

static void it_takes_its_time(void)
{
    first_is_inside = true;
    usleep(30000);
    EXPECT(!second_was_inside);
}

static void only_one_call_at_a_time_can_make_the_pool_grow(void)
{
    pthread_t other;
    EXPECT_EQ(pthread_create(&other, NULL, second, NULL), 0);
    meanwhile = it_takes_its_time;
    EXPECT_EQ(allocate(MIB, FR_POOL_STEP), 0);
    pthread_join(other, NULL);
    EXPECT(second_was_inside);
    EXPECT_EQ(fr_used_here(0), FR_POOL_STEP);
    settled_to(0);
}

/* ---- graphs ---- */

static CUgraphExec graph_of(uint64_t size)
{
    CUgraphExec e;
    graph_size = size;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, GRAPH, 0), 0);
    return e;
}

static void graphs_end(void)
{
    graph_used = 0;
    EXPECT_EQ(cuDeviceGraphMemTrim(0), 0);
    EXPECT_EQ(fr_used_here(0), 0);
}

static pthread_t trimmer;
static void *trims(void *unused)
{
    EXPECT_EQ(cuDeviceGraphMemTrim(0), 0);
    return unused;
}

static void another_trims_at_that_time(void)
{
    EXPECT_EQ(pthread_create(&trimmer, NULL, trims, NULL), 0);
    usleep(10000);
}

static void a_trim_waits_for_a_launch_on_its_way(void)
{
    CUgraphExec e = graph_of(10 * MIB);
    EXPECT_EQ(cuGraphLaunch(e, NULL), 0);
    graph_used = 0; /* freed by the graph itself */
    meanwhile = another_trims_at_that_time;
    EXPECT_EQ(cuGraphLaunch(e, NULL), 0);
    pthread_join(trimmer, NULL);
    EXPECT_EQ(fr_used_here(0), 10 * MIB); /* memory that the launch uses is not trimmed */
    graphs_end();
}

static void *launches(void *e)
{
    EXPECT_EQ(cuGraphLaunch(e, NULL), 0); /* the test's driver checks that the memory is charged */
    return NULL;
}

static void another_launches_at_that_time(void)
{
    EXPECT_EQ(pthread_create(&trimmer, NULL, launches, EXEC), 0);
    usleep(10000);
}

static void a_launch_beside_the_end_of_its_graph_is_counted(void)
{
    CUgraphExec e = graph_of(10 * MIB);
    meanwhile = another_launches_at_that_time;
    EXPECT_EQ(cuGraphExecDestroy(e), 0);
    pthread_join(trimmer, NULL);
    EXPECT_EQ(fr_used_here(0), 10 * MIB);
    graphs_end();
}

static void what_the_store_has_beyond_all_bounds_is_charged_at_the_next_call(void)
{
    CUgraphExec e = graph_of(10 * MIB);
    EXPECT_EQ(cuGraphLaunch(e, NULL), 0);
    graph_used = 0;
    graph_reserved = 80 * MIB; /* more than the library can know */
    EXPECT_EQ(cuGraphUpload(e, NULL), 0);
    EXPECT_EQ(fr_used_here(0), 80 * MIB);
    graphs_end();
}

int main(void)
{
    be_the_driver();
    if (fr_process_state() != FR_ENFORCE) return puts("0 passed, 1 failed"), 1;
    pool = fr_pool_adopt(POOL, 0, 0);
    RUN(what_it_grows_by_is_charged_and_no_more);
    RUN(what_it_grew_by_in_a_call_that_failed_is_charged);
    RUN(more_than_the_most_that_is_known_is_charged_at_once);
    RUN(a_pool_that_shrinks_while_a_call_has_its_turn_is_charged_less_when_that_ends);
    RUN(a_change_after_the_last_look_is_looked_at_again);
    RUN(a_pool_with_a_largest_size_needs_room_for_what_is_left_to_it);
    RUN(a_call_on_a_pool_that_another_has_emptied_takes_it_off_the_charge);
    RUN(only_one_call_at_a_time_can_make_the_pool_grow);
    RUN(a_trim_waits_for_a_launch_on_its_way);
    RUN(a_launch_beside_the_end_of_its_graph_is_counted);
    RUN(what_the_store_has_beyond_all_bounds_is_charged_at_the_next_call);
    FINISH;
}
