/* Streams that are being captured, under a quota of 1 GiB, of which the context takes 256 MiB. */
#include "judge.h"

#include <pthread.h>

CUresult cuStreamBeginRecaptureToGraph(CUstream, unsigned, CUgraph, void *, void *);

enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

static CUcontext context;
static CUstream stream, other;

static CUgraph captured(size_t size, int count)
{
    CUgraph g = NULL;
    EXPECT_EQ(cuStreamBeginCapture_v2(stream, GLOBAL), 0);
    for (int i = 0; i < count; i++) {
        CUdeviceptr p;
        EXPECT_EQ(cuMemAllocAsync(&p, size, stream), 0);
        EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    }
    EXPECT_EQ(cuStreamEndCapture(stream, &g), 0);
    return g;
}

static CUgraphExec made(CUgraph g)
{
    CUgraphExec e = NULL;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), 0);
    cuGraphDestroy(g);
    return e;
}

static void clean(CUgraphExec e)
{
    cuStreamSynchronize(stream);
    cuGraphExecDestroy(e);
    cuDeviceGraphMemTrim(0);
    EXPECT_BOTH(0);
}

static void what_is_captured_is_charged_when_it_is_launched(void)
{
    CUgraph g = captured(100 * MIB, 3);
    EXPECT_BOTH(0);
    CUgraphExec e = made(g);
    EXPECT_BOTH(0);
    EXPECT_EQ(cuGraphLaunch(e, stream), 0);
    EXPECT_BOTH(100 * MIB);
    clean(e);
}

static void a_stream_that_captures_into_a_graph_again_allocates_nothing(void)
{
    CUgraph g = captured(100 * MIB, 1), same = NULL;
    CUdeviceptr p = 0, rest = leave_only(0);
    EXPECT_EQ(cuStreamBeginRecaptureToGraph(stream, GLOBAL, g, NULL, NULL), 0);
    EXPECT_EQ(cuMemAllocAsync(&p, 100 * MIB, stream), 0);
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    EXPECT_EQ(cuStreamEndCapture(stream, &same), 0);
    EXPECT(same == g);
    EXPECT_EQ(cuGraphDestroy(g), 0);
    EXPECT_EQ(cuMemFree_v2(rest), 0);
    EXPECT_BOTH(0);
}

static void a_capture_with_no_quota_left_succeeds_and_its_launch_does_not(void)
{
    CUgraph large = captured(8 * QUOTA, 1);
    CUgraphExec e = NULL, small = made(captured(2 * MIB, 1));
    CUdeviceptr rest = leave_only(0);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, large, 0), OOM);
    EXPECT_EQ(cuGraphLaunch(small, stream), OOM);
    cuMemFree_v2(rest);
    EXPECT_EQ(cuGraphLaunch(small, stream), 0);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, large, 0), OOM);
    cuGraphDestroy(large);
    clean(small);
}

/* The launch would become a child graph, and a graph with memory nodes cannot be cloned. */
static void a_launch_into_a_capture_charges_nothing(void)
{
    CUgraphExec inner = made(captured(50 * MIB, 1));
    CUgraph g = NULL;
    CUdeviceptr rest = leave_only(0); /* it needs no room, either */
    EXPECT_EQ(cuStreamBeginCapture_v2(stream, RELAXED), 0);
    EXPECT_EQ(cuGraphLaunch(inner, stream), CUDA_ERROR_NOT_SUPPORTED);
    cuStreamEndCapture(stream, &g);
    EXPECT_EQ(cuMemFree_v2(rest), 0);
    EXPECT_BOTH(0);
    EXPECT_EQ(cuGraphLaunch(inner, stream), 0);
    EXPECT_BOTH(50 * MIB);
    clean(inner);
}

CUresult cuStreamBeginCaptureToCig(CUstream, void *);
CUresult cuStreamEndCaptureToCig(CUstream);

/* A capture into a command list of the graphics driver. */
static void a_capture_for_graphics_is_one_too(void)
{
    char list[64] = {0};
    CUdeviceptr p = 0;
    EXPECT_EQ(cuStreamBeginCaptureToCig(stream, list), 0);
    EXPECT_EQ(cuMemAllocAsync(&p, 8 * QUOTA, stream), 0);
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    EXPECT_EQ(cuStreamEndCaptureToCig(stream), 0);
    EXPECT_BOTH(0);
    EXPECT_EQ(cuMemAllocAsync(&p, 8 * QUOTA, stream), OOM); /* no longer captured */
}

static void a_capture_outlives_a_refusal_in_another_stream(void)
{
    CUdeviceptr held, p, rest;
    CUgraph g = NULL;
    int status = 0;
    EXPECT_EQ(cuMemAllocAsync(&held, MIB, other), 0);
    rest = leave_only(10 * MIB);
    EXPECT_EQ(cuStreamBeginCapture_v2(stream, GLOBAL), 0);
    EXPECT_EQ(cuMemAllocAsync(&p, 10 * MIB, stream), 0);
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    EXPECT_EQ(cuMemAllocAsync(&p, 10 * MIB, other), 0);
    EXPECT_EQ(cuMemFreeAsync(p, other), 0);
    EXPECT_EQ(cuMemAllocAsync(&p, 40 * MIB, other), OOM);
    EXPECT_EQ(cuStreamIsCapturing(stream, &status), 0);
    EXPECT_EQ(status, 1);
    EXPECT_EQ(cuStreamEndCapture(stream, &g), 0);
    cuGraphDestroy(g);
    cuMemFree_v2(rest);
    cuMemFreeAsync(held, other);
    cuStreamSynchronize(other);
    EXPECT_BOTH(0);
}

static void a_forbidden_synchronisation_gets_the_drivers_error(void)
{
    CUgraph g = NULL;
    EXPECT_EQ(cuStreamBeginCapture_v2(stream, RELAXED), 0);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(cuStreamEndCapture(stream, &g), 0);
    EXPECT_EQ(cuStreamEndCapture(stream, &g), CUDA_ERROR_ILLEGAL_STATE);
    EXPECT_EQ(cuCtxSynchronize(), 0);
}

static void a_stream_drawn_into_a_capture_allocates_for_the_graph(void)
{
    CUevent begun, done;
    CUdeviceptr p;
    CUgraph g = NULL;
    cuEventCreate(&begun, 2);
    cuEventCreate(&done, 2);
    EXPECT_EQ(cuStreamBeginCapture_v2(stream, GLOBAL), 0);
    EXPECT_EQ(cuEventRecord(begun, stream), 0);
    EXPECT_EQ(cuStreamWaitEvent(other, begun, 0), 0);
    EXPECT_EQ(cuMemAllocAsync(&p, 64 * MIB, other), 0);
    EXPECT_EQ(cuMemFreeAsync(p, other), 0);
    EXPECT_EQ(cuEventRecord(done, other), 0);
    EXPECT_EQ(cuStreamWaitEvent(stream, done, 0), 0);
    EXPECT_EQ(cuStreamEndCapture(stream, &g), 0);
    EXPECT_BOTH(0);
    CUgraphExec e = made(g);
    EXPECT_EQ(cuGraphLaunch(e, stream), 0);
    EXPECT_BOTH(64 * MIB);
    clean(e);
}

static void a_stream_is_not_drawn_into_a_capture_that_is_over(void)
{
    CUevent begun;
    CUdeviceptr p;
    CUgraph g = NULL;
    int status = 1;
    cuEventCreate(&begun, 2);
    EXPECT_EQ(cuStreamBeginCapture_v2(stream, GLOBAL), 0);
    EXPECT_EQ(cuEventRecord(begun, stream), 0);
    EXPECT_EQ(cuStreamEndCapture(stream, &g), 0);
    EXPECT_EQ(cuStreamWaitEvent(other, begun, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    EXPECT_EQ(cuStreamIsCapturing(other, &status), 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 64 * MIB), 0);
    EXPECT_EQ(cuMemFreeAsync(p, other), 0); /* not a node of a graph, so it frees the memory */
    EXPECT_EQ(cuStreamSynchronize(other), 0);
    EXPECT_BOTH(0);
    cuGraphDestroy(g);
}

/* Unused memory of pools is given back before a request is refused, but not during a capture, which forbids that. */
static void pools_give_back(void)
{
    CUdeviceptr p;
    EXPECT_EQ(cuMemAllocAsync(&p, 500 * MIB, other), 0);
    EXPECT_EQ(cuMemFreeAsync(p, other), 0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 600 * MIB), 0);
    EXPECT_EQ(cuMemFree_v2(p), 0);
    EXPECT_BOTH(0);
}

static void a_capture_ends_with_its_stream(void)
{
    CUstream s;
    EXPECT_EQ(cuStreamCreate(&s, 1), 0);
    EXPECT_EQ(cuStreamBeginCapture_v2(s, RELAXED), 0);
    EXPECT_EQ(cuStreamDestroy_v2(s), 0);
    pools_give_back();
}

static void a_capture_ends_with_its_context(void)
{
    CUcontext of_its_own;
    CUstream s;
    EXPECT_EQ(cuCtxCreate_v2(&of_its_own, 0, 0), 0);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(cuStreamCreate(&s, 1), 0);
        EXPECT_EQ(cuStreamBeginCapture_v2(s, RELAXED), 0);
    }
    EXPECT_EQ(cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, RELAXED), 0);
    EXPECT_EQ(cuCtxDestroy_v2(of_its_own), 0);
    EXPECT_EQ(cuCtxSetCurrent(context), 0);
    pools_give_back();
}

static void a_capture_counts_until_it_is_ended_however_many_there_are(void)
{
    enum { MANY = 300 };
    static CUstream streams[MANY];
    CUgraph g;
    CUdeviceptr p;
    for (int i = 0; i < MANY; i++) {
        EXPECT_EQ(cuStreamCreate(&streams[i], 1), 0);
        EXPECT_EQ(cuStreamBeginCapture_v2(streams[i], RELAXED), 0);
    }
    EXPECT_EQ(cuMemAllocAsync(&p, 8 * QUOTA, streams[MANY - 1]), 0); /* becomes a node of its graph */
    for (int i = 0; i < MANY; i++) {
        EXPECT_EQ(cuStreamEndCapture(streams[i], &g), 0);
        EXPECT_EQ(cuGraphDestroy(g), 0);
        EXPECT_EQ(cuStreamDestroy_v2(streams[i]), 0);
    }
    pools_give_back();
}

/* ---- threads ---- */

static _Atomic int wrong;

static void *allocate_beside_captures(void *unused)
{
    CUstream s;
    cuCtxSetCurrent(context);
    cuStreamCreate(&s, 1);
    for (int i = 0; i < 500; i++) {
        CUdeviceptr p;
        wrong += cuMemAllocAsync(&p, 20 * MIB, s) != 0;
        cuMemFreeAsync(p, s);
        if (i % 10 == 0) cuStreamSynchronize(s);
    }
    cuStreamSynchronize(s);
    return unused;
}

static void captures_beside_allocations_at_the_margin(void)
{
    pthread_t t;
    CUdeviceptr rest = leave_only(CHUNK);
    pthread_create(&t, NULL, allocate_beside_captures, NULL);
    for (int i = 0; i < 200; i++) cuGraphDestroy(captured(30 * MIB, 2));
    pthread_join(t, NULL);
    EXPECT_EQ(wrong, 0);
    EXPECT_NEVER_OVER;
    cuMemFree_v2(rest);
    EXPECT_BOTH(0);
}

int main(void)
{
    cuInit(0);
    cuCtxCreate_v2(&context, 0, 0);
    cuStreamCreate(&stream, 1);
    cuStreamCreate(&other, 1);
    RUN(what_is_captured_is_charged_when_it_is_launched);
    RUN(a_stream_that_captures_into_a_graph_again_allocates_nothing);
    RUN(a_capture_with_no_quota_left_succeeds_and_its_launch_does_not);
    RUN(a_launch_into_a_capture_charges_nothing);
    RUN(a_capture_for_graphics_is_one_too);
    RUN(a_capture_outlives_a_refusal_in_another_stream);
    RUN(a_forbidden_synchronisation_gets_the_drivers_error);
    RUN(a_stream_drawn_into_a_capture_allocates_for_the_graph);
    RUN(a_stream_is_not_drawn_into_a_capture_that_is_over);
    RUN(a_capture_ends_with_its_stream);
    RUN(a_capture_ends_with_its_context);
    RUN(a_capture_counts_until_it_is_ended_however_many_there_are);
    RUN(captures_beside_allocations_at_the_margin);
    EXPECT_NEVER_OVER;
    FINISH;
}
