/* What a pool and the store of graphs are charged, step by step in orders that threads meet only now and then. Here the
 * test is the driver: while one call is inside it, `meanwhile` is another thread. At every step the ledger has at least
 * what the driver has. */
#include "check.h"
#include "pool.h"

#include <pthread.h>

#define CARD "\0\0\0\0\0\0\x40\0\x80\0\0\0\0\0\0\1" /* GPU-00000000-0000-4000-8000-000000000001 */
#define POOL ((CUmemoryPool)(uintptr_t)0x1000)
#define EXEC ((CUgraphExec)(uintptr_t)0x2000)
#define GRAPH ((CUgraph)(uintptr_t)0x3000)
#define NODE ((CUgraphNode)(uintptr_t)0x4000)
#define BASE 0x200000000000ull

static uint64_t reserved, graph_reserved, graph_used, graph_size;
static void (*meanwhile)(void), (*meanwhile_reading)(void);
static struct fr_pool *pool;

static void others(void)
{
    void (*f)(void) = meanwhile;
    meanwhile = NULL;
    if (f) f();
}

static bool covered(void) { return fr_used_here(0) >= reserved + graph_reserved; }

/* ---- the driver: what it says was true before the others came ---- */

static CUresult pool_attribute(CUmemoryPool p, int what, void *out)
{
    *(uint64_t *)out = what == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? reserved : 0;
    others();
    return p == POOL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult graph_attribute(CUdevice d, int what, void *out)
{
    *(uint64_t *)out = what == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? graph_reserved : graph_used;
    if (meanwhile_reading) {
        meanwhile = meanwhile_reading;
        meanwhile_reading = NULL;
        others();
    }
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

static CUresult uuid(CUuuid *out, CUdevice d) { return memcpy(out, CARD, 16), d ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; }
static CUresult instantiate(CUgraphExec *out, CUgraph g, unsigned long long f) { return (void)g, (void)f, *out = EXEC, CUDA_SUCCESS; }
static CUresult nodes(CUgraph g, CUgraphNode *out, size_t *n) { return (void)g, out ? (void)(*out = NODE) : (void)0, *n = 1, CUDA_SUCCESS; }
static CUresult type(CUgraphNode n, int *out) { return (void)n, *out = CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_SUCCESS; }
static CUresult params(CUgraphNode n, CUDA_MEM_ALLOC_NODE_PARAMS *out)
{
    *out = (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps.location = {CU_MEM_LOCATION_DEVICE, 0}, .bytesize = graph_size};
    return (void)n, CUDA_SUCCESS;
}
static CUresult destroy(CUgraphExec e) { return (void)e, CUDA_SUCCESS; }

#define FAKE(name, function) fr_real[FR_##name] = (void *)(function)
static void be_the_driver(void)
{
    FAKE(cuMemPoolGetAttribute, pool_attribute);
    FAKE(cuDeviceGetGraphMemAttribute, graph_attribute);
    FAKE(cuDeviceGraphMemTrim, graph_trim);
    FAKE(cuGraphLaunch, graph_launch);
    FAKE(cuGraphInstantiateWithFlags, instantiate);
    FAKE(cuGraphExecDestroy, destroy);
    FAKE(cuGraphGetNodes, nodes);
    FAKE(cuGraphNodeGetType, type);
    FAKE(cuGraphMemAllocNodeGetParams, params);
    FAKE(cuDeviceGetUuid, uuid);
    FAKE(cuDeviceGetUuid_v2, uuid);
}

/* ---- pools ---- */

static void allocate(size_t size, uint64_t grows, CUdeviceptr at)
{
    struct fr_growth g;
    EXPECT(fr_pool_grow_begin(pool, size, &g));
    reserved += grows;
    EXPECT(covered());
    EXPECT(fr_pool_end(pool, &g, at));
    EXPECT(covered());
}

static void settled_to(uint64_t bytes)
{
    reserved = bytes;
    fr_pools_settle(0);
    EXPECT_EQ(fr_used_here(0), bytes);
}

static void another_grows(void) { allocate(MIB, FR_CHUNK, BASE); }

static void a_size_that_was_read_before_another_call_grew_the_pool_is_not_believed(void)
{
    allocate(MIB, FR_CHUNK, 0);
    meanwhile = another_grows;
    fr_pools_settle(0);
    EXPECT_EQ(fr_used_here(0), 2 * FR_CHUNK);
    settled_to(0);
}

static struct fr_growth on_its_way;

static void the_growth_of_two_calls_is_charged_once_whoever_ends_first(void)
{
    EXPECT(fr_pool_grow_begin(pool, MIB, &on_its_way));
    reserved += FR_CHUNK;
    allocate(MIB, FR_CHUNK, 0);
    EXPECT(covered());
    fr_pools_settle(0);
    EXPECT(covered());
    EXPECT(fr_pool_end(pool, &on_its_way, 0));
    EXPECT_EQ(fr_used_here(0), 2 * FR_CHUNK);
    settled_to(0);
}

static void who_takes_the_piece_of_a_call_without_reservation_lends_it_his(void)
{
    struct fr_growth claim, other;
    allocate(MIB, FR_CHUNK, BASE);
    EXPECT(fr_pool_grow_begin(pool, 20 * MIB, &other));
    EXPECT(fr_pool_claim_begin(pool, 30 * MIB, 1, &claim));
    EXPECT(!fr_pool_claim_begin(pool, 1, 1, &on_its_way)); /* one at a time */
    EXPECT(fr_pool_end(pool, &other, BASE + MIB));         /* it was given what the first counted on */
    reserved += FR_CHUNK;
    EXPECT(covered());
    EXPECT(fr_pool_end(pool, &claim, BASE + FR_CHUNK));
    EXPECT_EQ(fr_used_here(0), 2 * FR_CHUNK);
    fr_chunk_forget(pool, false);
    settled_to(0);
}

static void a_chunk_that_goes_while_a_call_counts_on_it_stays_charged(void)
{
    struct fr_growth claim;
    allocate(MIB, FR_CHUNK, BASE);
    EXPECT(fr_pool_claim_begin(pool, 20 * MIB, 1, &claim));
    reserved = 0;
    fr_pools_settle(0);
    reserved = FR_CHUNK;
    EXPECT(covered());
    EXPECT(fr_pool_end(pool, &claim, BASE));
    EXPECT_EQ(fr_used_here(0), FR_CHUNK);
    fr_chunk_forget(pool, false);
    settled_to(0);
}

static void a_growth_that_was_not_to_be_is_found_out_and_nothing_is_claimed_again(void)
{
    struct fr_growth claim, rest;
    allocate(MIB, FR_CHUNK, BASE);
    EXPECT(fr_pool_claim_begin(pool, 20 * MIB, 1, &claim));
    EXPECT(!fr_begin(&rest.op, 0, 1024 * MIB - FR_CHUNK)); /* no quota is left */
    reserved += FR_CHUNK;
    EXPECT(!fr_pool_end(pool, &claim, BASE + FR_CHUNK));
    EXPECT(!fr_pool_claim_begin(pool, MIB, 1, &claim));
    fr_end(&rest.op, 0);
    pool->mistrusted = false;
    fr_chunk_forget(pool, false);
    settled_to(0);
}

static void what_others_freed_meanwhile_is_no_hole_yet(void)
{
    fr_pools_enter();
    fr_chunk_add(pool, BASE, FR_CHUNK);
    fr_piece_given(BASE, FR_CHUNK);
    EXPECT(!fr_piece_fits(pool, 512, 1, true));
    EXPECT(!fr_piece_fits(pool, 512, 1, true));
    fr_unlock(&fr_pools_lock);
    struct fr_piece f = {.at = BASE, .size = FR_CHUNK, .serial = 0, .cuts = 0};
    fr_piece_free_end(&f, 0, 1); /* of a chunk that was there before */
    fr_pools_enter();
    EXPECT(!fr_piece_fits(pool, 512, 1, true));
    fr_chunk_forget(pool, false);
    fr_unlock(&fr_pools_lock);
}

/* Pieces of 1 MiB side by side in one chunk: the piece that is freed begins at `at`. */
static CUresult range(CUdeviceptr *base, size_t *size, CUdeviceptr at) { return *base = at, *size = MIB, CUDA_SUCCESS; }

static void given(int pieces)
{
    fr_pools_enter();
    fr_chunk_add(pool, BASE, FR_CHUNK);
    for (int i = 0; i < pieces; i++) fr_piece_given(BASE + (uint64_t)i * MIB, MIB);
    fr_piece_given(BASE + (uint64_t)pieces * MIB, FR_CHUNK - (uint64_t)pieces * MIB);
    fr_unlock(&fr_pools_lock);
}

static void freed(int piece, uint64_t order)
{
    struct fr_piece f;
    EXPECT(fr_piece_free_begin(&f, BASE + (uint64_t)piece * MIB));
    fr_piece_free_end(&f, CUDA_SUCCESS, order);
}

static bool fits(size_t size, uint64_t order)
{
    fr_pools_enter();
    bool yes = fr_piece_fits(pool, size, order, true);
    fr_unlock(&fr_pools_lock);
    return yes;
}

static void work_is_done(uint64_t order)
{
    fr_pools_enter();
    fr_pieces_ordered(order, fr_pieces_now());
    fr_unlock(&fr_pools_lock);
}

static void forget_all(void)
{
    fr_pools_enter();
    fr_chunk_forget(pool, false);
    fr_unlock(&fr_pools_lock);
}

static void what_lies_free_beside_a_freed_piece_may_be_used_only_as_that_one(void)
{
    given(4);
    freed(0, 7);
    work_is_done(7);
    EXPECT(fits(MIB, 8)); /* nothing uses it any more */
    freed(1, 7);          /* and the driver makes one piece of the two */
    EXPECT(!fits(512, 8));
    EXPECT(fits(MIB, 7));
    freed(2, 9); /* of which this may become a part as well */
    EXPECT(!fits(512, 8) && fits(MIB, 9) && !fits(512, 7));
    work_is_done(0);
    EXPECT(fits(MIB, 8));
    forget_all();
}

static void pieces_that_became_idle_during_a_free_were_not_joined_by_it(void)
{
    struct fr_piece f;
    given(8);
    freed(0, 7);
    freed(1, 9);
    EXPECT(fr_piece_free_begin(&f, BASE + 4 * MIB));
    EXPECT(!fits(512, 7)); /* while a free in the chunk is on its way, nothing of it counts */
    work_is_done(0);       /* the driver has looked at the neighbours before this */
    fr_piece_free_end(&f, CUDA_SUCCESS, 0);
    EXPECT(fits(MIB, 7) && !fits(2 * MIB, 7));
    freed(6, 0); /* now it sees both idle */
    EXPECT(fits(2 * MIB, 7));
    forget_all();
}

static struct fr_growth counting;
static _Atomic bool claim_is_over;
static void *the_claim_ends(void *unused)
{
    usleep(300);
    claim_is_over = true;
    EXPECT(fr_pool_end(pool, &counting, BASE));
    return unused;
}

static void a_free_waits_for_a_call_that_counts_on_a_hole(void)
{
    struct fr_piece f;
    pthread_t other;
    settled_to(FR_CHUNK);
    given(4);
    freed(0, 7);
    EXPECT(fr_pool_claim_begin(pool, MIB, 7, &counting));
    EXPECT_EQ(pthread_create(&other, NULL, the_claim_ends, NULL), 0);
    EXPECT(fr_piece_free_begin(&f, BASE + 2 * MIB));
    EXPECT(claim_is_over);
    pthread_join(other, NULL);
    fr_piece_free_end(&f, CUDA_SUCCESS, 7);
    forget_all();
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

static void another_trims(void) { EXPECT_EQ(cuDeviceGraphMemTrim(0), 0); }

static void a_trim_takes_nothing_from_a_launch_on_its_way(void)
{
    CUgraphExec e = graph_of(10 * MIB);
    EXPECT_EQ(cuGraphLaunch(e, NULL), 0);
    graph_used = 0; /* freed by the graph itself */
    meanwhile = another_trims;
    EXPECT_EQ(cuGraphLaunch(e, NULL), 0);
    EXPECT_EQ(fr_used_here(0), 10 * MIB);
    graphs_end();
}

static void another_launches(void) { EXPECT_EQ(cuGraphLaunch(EXEC, NULL), 0); }

static void two_launches_at_a_time_count_together(void)
{
    CUgraphExec e = graph_of(10 * MIB);
    EXPECT_EQ(cuGraphLaunch(e, NULL), 0);
    graph_used = 0;
    meanwhile = another_launches;
    EXPECT_EQ(cuGraphLaunch(e, NULL), 0);
    EXPECT_EQ(graph_reserved, 20 * MIB);
    EXPECT_EQ(fr_used_here(0), 20 * MIB);
    graphs_end();
}

/* The first attribute that a launch asks for is what is used; another launch comes just after that was read. */
static void what_is_used_that_was_read_before_another_launch_is_not_believed(void)
{
    CUgraphExec e = graph_of(10 * MIB);
    EXPECT_EQ(cuGraphLaunch(e, NULL), 0);
    graph_used = 0;
    meanwhile_reading = another_launches;
    EXPECT_EQ(cuGraphLaunch(e, NULL), 0);
    EXPECT_EQ(fr_used_here(0), 20 * MIB);
    graphs_end();
}

int main(void)
{
    be_the_driver();
    if (fr_process() != FR_ENFORCE) return puts("0 passed, 1 failed"), 1;
    pool = fr_pool_adopt(POOL, 0, 0);
    RUN(a_size_that_was_read_before_another_call_grew_the_pool_is_not_believed);
    RUN(the_growth_of_two_calls_is_charged_once_whoever_ends_first);
    RUN(who_takes_the_piece_of_a_call_without_reservation_lends_it_his);
    RUN(a_chunk_that_goes_while_a_call_counts_on_it_stays_charged);
    RUN(a_growth_that_was_not_to_be_is_found_out_and_nothing_is_claimed_again);
    RUN(what_others_freed_meanwhile_is_no_hole_yet);
    fr_real[FR_cuMemGetAddressRange_v2] = (void *)range;
    RUN(what_lies_free_beside_a_freed_piece_may_be_used_only_as_that_one);
    RUN(pieces_that_became_idle_during_a_free_were_not_joined_by_it);
    RUN(a_free_waits_for_a_call_that_counts_on_a_hole);
    RUN(a_trim_takes_nothing_from_a_launch_on_its_way);
    RUN(two_launches_at_a_time_count_together);
    RUN(what_is_used_that_was_read_before_another_launch_is_not_believed);
    FINISH;
}
