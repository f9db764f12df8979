/* Captures that one thread begins and ends while another thread makes calls in the same stream. A call that finds the stream captured charges
 * nothing, so it must not run after the capture is over. A call that finds it not captured frees memory, so it must not become a node. */
#include "judge.h"

#include <pthread.h>

enum { RELAXED = 2 };

CUresult cuDevicePrimaryCtxReset_v2(CUdevice);

static CUcontext context;
static CUstream stream;
static _Atomic int stop;

static void *capture_all_the_time(void *unused)
{
    cuCtxSetCurrent(context);
    while (!stop) {
        CUgraph g = NULL;
        if (cuStreamBeginCapture_v2(stream, RELAXED)) continue;
        for (volatile int i = 0; i < 200; i++) {}
        if (!cuStreamEndCapture(stream, &g)) cuGraphDestroy(g);
    }
    return unused;
}

static void (*call)(void);
static void *call_all_the_time(void *unused)
{
    cuCtxSetCurrent(context);
    while (!stop) call();
    return unused;
}

static void beside(void *(*other)(void *), double how_long, void (*what)(void))
{
    pthread_t t[4];
    stop = 0;
    call = what;
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, i ? call_all_the_time : other, NULL);
    usleep((useconds_t)(how_long * 1e6));
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
}

static void allocate(void)
{
    CUdeviceptr p;
    if (!cuMemAllocAsync(&p, QUOTA + MIB, stream)) cuMemFreeAsync(p, stream);
}

static void an_allocation_is_captured_or_counted(void)
{
    beside(capture_all_the_time, 1, allocate);
    EXPECT_NEVER_OVER;
}

static CUgraphExec large;
static void launch(void) { cuGraphLaunch(large, stream); }

static void a_launch_is_captured_or_counted(void)
{
    CUgraph g;
    CUgraphNode n;
    CUDA_MEM_ALLOC_NODE_PARAMS p = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}}, .bytesize = 500 * MIB};
    cuGraphCreate(&g, 0);
    EXPECT_EQ(cuGraphAddMemAllocNode(&n, g, NULL, 0, &p), 0);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&large, g, 0), 0);
    CUdeviceptr rest = leave_only(100 * MIB);
    beside(capture_all_the_time, 1, launch);
    EXPECT_NEVER_OVER;
    cuMemFree_v2(rest);
    cuGraphExecDestroy(large);
    cuGraphDestroy(g);
}

/* Memory whose free was captured stays allocated; it is never freed here. */
static void free_some(void)
{
    CUdeviceptr p[8];
    int n = 0;
    while (n < 8 && !cuMemAlloc_v2(&p[n], 8 * MIB)) n++;
    while (n) cuMemFreeAsync(p[--n], stream);
    cuStreamSynchronize(stream);
}

static void a_free_is_captured_or_given_back(void)
{
    beside(capture_all_the_time, 1.5, free_some);
    cuStreamSynchronize(stream);
    EXPECT_NEVER_OVER;
    EXPECT(judged("now") <= QUOTA - left());
}

/* ---- the stream of a capture is destroyed with its context, and another stream gets its handle ---- */

static CUstream _Atomic elsewhere; /* in contexts that come and go */

static void end_contexts(CUresult (*make)(CUcontext *), CUresult (*destroy)(CUcontext))
{
    CUcontext c;
    CUstream s;
    while (!stop) {
        if (make(&c)) continue;
        cuStreamCreate(&s, 1);
        elsewhere = s;
        for (volatile int i = 0; i < 200; i++) {}
        cuStreamBeginCapture_v2(s, RELAXED);
        for (volatile int i = 0; i < 200; i++) {}
        destroy(c);
    }
}

static CUresult make(CUcontext *c) { return cuCtxCreate_v2(c, 0, 0); }
static void *destroy_contexts(void *unused)
{
    end_contexts(make, cuCtxDestroy_v2);
    return unused;
}

static CUresult make_primary(CUcontext *c)
{
    CUresult r = cuDevicePrimaryCtxRetain(c, 0);
    return r ? r : cuCtxSetCurrent(*c);
}
static CUresult reset_primary(CUcontext c)
{
    cuDevicePrimaryCtxReset_v2(0);
    return (void)c, CUDA_SUCCESS;
}
static void *reset_contexts(void *unused)
{
    end_contexts(make_primary, reset_primary);
    return unused;
}

static void allocate_elsewhere(void)
{
    CUdeviceptr p;
    if (elsewhere && !cuMemAllocAsync(&p, QUOTA + MIB, elsewhere)) cuMemFreeAsync(p, elsewhere);
}

static void an_allocation_is_captured_or_counted_where_contexts_are_destroyed(void)
{
    beside(destroy_contexts, 2, allocate_elsewhere);
    EXPECT_NEVER_OVER;
}

static void an_allocation_is_captured_or_counted_where_contexts_are_reset(void)
{
    elsewhere = NULL;
    beside(reset_contexts, 2, allocate_elsewhere);
    EXPECT_NEVER_OVER;
}

int main(void)
{
    setenv("SIMGPU_STREAMS_AGAIN", "1", 1);
    cuInit(0);
    cuCtxCreate_v2(&context, 0, 0);
    cuStreamCreate(&stream, 1);
    RUN(an_allocation_is_captured_or_counted_where_contexts_are_destroyed);
    RUN(an_allocation_is_captured_or_counted_where_contexts_are_reset);
    RUN(an_allocation_is_captured_or_counted);
    RUN(a_launch_is_captured_or_counted);
    RUN(a_free_is_captured_or_given_back);
    FINISH;
}
