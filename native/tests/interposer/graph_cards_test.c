/* Graphs with memory on several cards: an allocation node names its card, whatever stream the graph is launched in. */
#include "container.h"

#include <pthread.h>

CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *);
CUresult cuGraphAddMemFreeNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphExecUpdate_v2(CUgraphExec, CUgraph, CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO *);
CUresult cuGraphUpload(CUgraphExec, CUstream);
CUresult cuDeviceGraphMemTrim(CUdevice);

#define OOM CUDA_ERROR_OUT_OF_MEMORY
#define QUOTA (512 * MIB)
#define CONTEXT_A (256 * MIB)
#define CONTEXT_B (100 * MIB)

static CUcontext context[2];
static CUstream stream;

static void on_both_cards(void)
{
    context[1] = context_on(1);
    context[0] = context_on(0);
    EXPECT_EQ(cuStreamCreate(&stream, 1), CUDA_SUCCESS);
}

static unsigned long long charged(int device)
{
    cuCtxSetCurrent(context[device]);
    unsigned long long bytes = QUOTA - free_bytes();
    cuCtxSetCurrent(context[0]);
    return bytes;
}

#define HOLDS(on_a, on_b)                                          \
    do {                                                           \
        EXPECT_EQ(held(CARD_A), CONTEXT_A + (on_a));               \
        EXPECT_EQ(charged(0), CONTEXT_A + (on_a));                 \
        EXPECT_EQ(held(CARD_B), CONTEXT_B + (on_b));               \
        EXPECT_EQ(charged(1), CONTEXT_B + (on_b));                 \
    } while (0)

static CUgraphNode add(CUgraph g, CUgraphNode after, CUdevice device, size_t size)
{
    CUgraphNode n = NULL;
    CUDA_MEM_ALLOC_NODE_PARAMS p = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_DEVICE, device}}, .bytesize = size};
    EXPECT_EQ(cuGraphAddMemAllocNode(&n, g, &after, after != NULL, &p), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddMemFreeNode(&n, g, &n, 1, p.dptr), CUDA_SUCCESS);
    return n;
}

static CUgraph on(size_t a, size_t b)
{
    CUgraph g;
    CUgraphNode n = NULL;
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    if (a) n = add(g, n, 0, a);
    if (b) n = add(g, n, 1, b);
    return g;
}

static CUgraphExec made(CUgraph g)
{
    CUgraphExec e = NULL;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), CUDA_SUCCESS);
    return e;
}

static void fill(int device, unsigned long long but)
{
    CUdeviceptr p;
    cuCtxSetCurrent(context[device]);
    while (free_bytes() > but && cuMemAlloc_v2(&p, 2 * MIB) == CUDA_SUCCESS) {}
    cuCtxSetCurrent(context[0]);
}

static void never_over(void)
{
    EXPECT(peak(CARD_A) <= QUOTA);
    EXPECT(peak(CARD_B) <= QUOTA);
}

static void memory_is_taken_from_the_card_that_the_node_names(void)
{
    on_both_cards();
    CUgraphExec e = made(on(0, 64 * MIB));
    EXPECT_EQ(cuGraphLaunch(e, stream), CUDA_SUCCESS);
    HOLDS(0, 64 * MIB);
    EXPECT_EQ(cuGraphExecDestroy(e), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    HOLDS(0, 64 * MIB);
    EXPECT_EQ(cuDeviceGraphMemTrim(1), CUDA_SUCCESS);
    HOLDS(0, 0);
}

static void each_card_counts_for_itself(void)
{
    on_both_cards();
    CUgraphExec e = made(on(32 * MIB, 64 * MIB));
    EXPECT_EQ(cuGraphLaunch(e, stream), CUDA_SUCCESS);
    HOLDS(32 * MIB, 64 * MIB);
    EXPECT_EQ(cuGraphUpload(e, stream), CUDA_SUCCESS);
    HOLDS(32 * MIB, 64 * MIB);
    EXPECT_EQ(cuGraphExecDestroy(e), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGraphMemTrim(1), CUDA_SUCCESS);
    HOLDS(0, 0);
}

/* Whichever card is full, and whichever comes first in the graph. */
static void without_room_on_one_of_them_it_is_out_of_memory(void)
{
    CUgraphExec e = NULL;
    on_both_cards();
    CUgraphExec first = made(on(32 * MIB, 64 * MIB));
    fill(1, 32 * MIB);
    unsigned long long a = charged(0), b = charged(1);
    EXPECT_EQ(cuGraphLaunch(first, stream), OOM);
    EXPECT_EQ(cuGraphUpload(first, stream), OOM);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, on(64 * MIB, 64 * MIB), 0), OOM);
    EXPECT_EQ(charged(0), a);
    EXPECT_EQ(charged(1), b);
    fill(0, 0);
    EXPECT_EQ(cuGraphLaunch(first, stream), OOM);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, on(64 * MIB, 2 * MIB), 0), OOM);
    never_over();
    EXPECT_EQ(held(CARD_A), charged(0));
    EXPECT_EQ(held(CARD_B), charged(1));
}

static void the_last_byte_of_both_can_be_had(void)
{
    on_both_cards();
    CUgraphExec e = made(on(64 * MIB, 64 * MIB));
    fill(0, 64 * MIB);
    fill(1, 64 * MIB);
    EXPECT_EQ(cuGraphLaunch(e, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(e, stream), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), QUOTA);
    EXPECT_EQ(held(CARD_B), QUOTA);
    never_over();
}

static void an_update_may_bring_another_card(void)
{
    CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO info = {0};
    on_both_cards();
    CUgraphExec e = made(on(64 * MIB, 0));
    fill(1, 32 * MIB);
    if (cuGraphExecUpdate_v2(e, on(0, 64 * MIB), &info) == CUDA_SUCCESS) EXPECT_EQ(cuGraphLaunch(e, stream), OOM);
    never_over();
}

/* ---- threads ---- */

static void *launch_often(void *graph)
{
    CUstream s;
    cuCtxSetCurrent(context[0]);
    EXPECT_EQ(cuStreamCreate(&s, 1), CUDA_SUCCESS);
    for (int i = 0; i < 300; i++) {
        CUresult r = cuGraphLaunch(graph, s);
        EXPECT(r == CUDA_SUCCESS || r == OOM);
        if (i % 8 == 0) cuStreamSynchronize(s);
        if (i % 32 == 0) cuDeviceGraphMemTrim(i / 32 % 2);
    }
    cuStreamSynchronize(s);
    return NULL;
}

static void threads_with_graphs_on_both_cards_pass_no_quota_and_do_not_wait_forever(void)
{
    enum { N = 4 };
    pthread_t t[N];
    on_both_cards();
    fill(0, 40 * MIB); /* all together need 64 */
    fill(1, 40 * MIB);
    for (int i = 0; i < N; i++) pthread_create(&t[i], NULL, launch_often, made(i % 2 ? on(24 * MIB, 8 * MIB) : on(8 * MIB, 24 * MIB)));
    for (int i = 0; i < N; i++) pthread_join(t[i], NULL);
    never_over();
    cuDeviceGraphMemTrim(0), cuDeviceGraphMemTrim(1);
    EXPECT_EQ(held(CARD_A), charged(0));
    EXPECT_EQ(held(CARD_B), charged(1));
}

#define CARDS CARD_A "=512MiB,context=256MiB " CARD_B "=512MiB,context=100MiB"

/* ---- the most that a graph can need: driver and library count an address once ---- */

CUresult cuGraphAddNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraphNodeParams *);

#define LINKS 8

static CUdeviceptr address_of(CUgraph g, CUgraphNode *last, size_t size)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}}, .bytesize = size};
    EXPECT_EQ(cuGraphAddMemAllocNode(last, g, last, *last != NULL, &p), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddMemFreeNode(last, g, last, 1, p.dptr), CUDA_SUCCESS);
    return p.dptr;
}

/* A chain whose links a driver may put at one address, each smaller than the one before, beside a node that runs at any time. Returns the bytes
 * that its addresses can hold. */
static size_t chain_and_one_beside(CUgraph g)
{
    CUdeviceptr at[LINKS];
    CUgraphNode last = NULL, beside = NULL;
    size_t bytes = 20 * MIB;
    for (int i = 0; i < LINKS; i++) {
        bool new = true;
        at[i] = address_of(g, &last, (size_t)(20 - 2 * i) * MIB);
        for (int k = 0; k < i; k++) new &= at[k] != at[i];
        if (new) bytes += (size_t)(20 - 2 * i) * MIB;
    }
    address_of(g, &beside, 20 * MIB);
    return bytes;
}

static CUgraph within_another(CUgraph g)
{
    CUgraph outer;
    CUgraphNode n;
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = {.graph = g, .ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE}};
    EXPECT_EQ(cuGraphCreate(&outer, 0) + cuGraphAddNode(&n, outer, NULL, 0, &p), CUDA_SUCCESS);
    return outer;
}

static void needs_what_its_addresses_are_good_for(bool as_a_child)
{
    CUgraph g;
    CUgraphExec e;
    CUdeviceptr rest, last;
    on_both_cards();
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    size_t bytes = chain_and_one_beside(g);
    if (as_a_child) g = within_another(g);
    EXPECT_EQ(cuMemAlloc_v2(&rest, free_bytes() - bytes) + cuMemAlloc_v2(&last, 2 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), OOM);
    EXPECT_EQ(cuMemFree_v2(last), CUDA_SUCCESS);
    e = made(g);
    EXPECT_EQ(cuGraphUpload(e, stream), CUDA_SUCCESS);
    for (int i = 0; i < 2; i++) EXPECT_EQ(cuGraphLaunch(e, stream) + cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT(held(CARD_A) <= charged(0));
    never_over();
    EXPECT_EQ(cuDeviceGraphMemTrim(0) + cuMemFree_v2(rest), CUDA_SUCCESS);
    EXPECT_EQ(charged(0), CONTEXT_A);
}

static void a_graph_needs_what_its_addresses_are_good_for(void) { needs_what_its_addresses_are_good_for(false); }
static void a_moved_child_graph_needs_what_its_addresses_are_good_for(void) { needs_what_its_addresses_are_good_for(true); }

int main(void)
{
    IN_POLICIES(CARDS, a_graph_needs_what_its_addresses_are_good_for);
    IN_POLICIES(CARDS, a_moved_child_graph_needs_what_its_addresses_are_good_for);
    IN(CARDS, memory_is_taken_from_the_card_that_the_node_names);
    IN(CARDS, each_card_counts_for_itself);
    IN(CARDS, without_room_on_one_of_them_it_is_out_of_memory);
    IN(CARDS, the_last_byte_of_both_can_be_had);
    IN(CARDS, an_update_may_bring_another_card);
    setenv("SIMGPU_POLICY", "172", 1); /* graphs share no memory, and take it at their launch: all together need 64 MiB of each card */
    IN(CARDS, threads_with_graphs_on_both_cards_pass_no_quota_and_do_not_wait_forever);
    FINISH;
}
