/* A program must not be able to use the library's events, even though it may know their handles: events that it destroyed had them before. */
#include "arbiter.h"

#define EVENTS 64

CUresult cuEventDestroy_v2(CUevent);
CUresult cuEventElapsedTime(float *, CUevent, CUevent);
CUresult cuIpcGetEventHandle(CUipcEventHandle *, CUevent);
CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphAddEventRecordNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUevent);
CUresult cuGraphAddEventWaitNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUevent);
CUresult cuGraphAddNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraphNodeParams *);
CUresult cuEventRecordWithFlags(CUevent, CUstream, unsigned);

#define LIMITED CARD_A "=900MiB,context=256MiB,cores=20,cores-limit=20"

static CUfunction spin;
#define STREAMS 8 /* each with events of the library */
static CUstream streams[STREAMS], stream, other;
static CUevent old_events[EVENTS];

static void get_ready(void)
{
    CUmodule module;
    alarm(50);
    if (!context_on(0)) _exit(1);
    EXPECT_EQ(cuModuleLoadData(&module, spin_ptx) + cuModuleGetFunction(&spin, module, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&other, 1), CUDA_SUCCESS);
    for (int i = 0; i < STREAMS; i++) EXPECT_EQ(cuStreamCreate(&streams[i], 1), CUDA_SUCCESS);
    stream = streams[0];
    for (int i = 0; i < EVENTS; i++) EXPECT_EQ(cuEventCreate(&old_events[i], 0), CUDA_SUCCESS);
}

static void destroy_all(void)
{
    for (int i = 0; i < EVENTS; i++) EXPECT_EQ(cuEventDestroy_v2(old_events[i]), CUDA_SUCCESS);
}

static void launch(void)
{
    for (int i = 0; i < STREAMS; i++) EXPECT_EQ(spin_in(spin, 100, streams[i]), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

static void an_old_handle_is_answered_as_one_that_does_not_exist(void)
{
    CUgraph graph;
    CUgraphNode node;
    CUipcEventHandle handle;
    float ms;
    int refused = 0;
    get_ready();
    destroy_all();
    launch();
    EXPECT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    for (int i = 0; i < EVENTS; i++) {
        CUevent e = old_events[i];
        CUgraphNodeParams parameters = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = {e}};
        EXPECT_EQ(cuEventRecord(e, other), CUDA_ERROR_INVALID_HANDLE);
        EXPECT_EQ(cuEventRecordWithFlags(e, other, 0), CUDA_ERROR_INVALID_HANDLE);
        EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_INVALID_HANDLE);
        EXPECT_EQ(cuEventSynchronize(e), CUDA_ERROR_INVALID_HANDLE);
        EXPECT_EQ(cuEventElapsedTime(&ms, e, e), CUDA_ERROR_INVALID_HANDLE);
        EXPECT_EQ(cuStreamWaitEvent(other, e, 0), CUDA_ERROR_INVALID_HANDLE);
        EXPECT_EQ(cuIpcGetEventHandle(&handle, e), CUDA_ERROR_INVALID_HANDLE);
        EXPECT_EQ(cuEventDestroy_v2(e), CUDA_ERROR_INVALID_HANDLE);
        EXPECT(cuGraphAddEventRecordNode(&node, graph, NULL, 0, e) != CUDA_SUCCESS);
        EXPECT(cuGraphAddEventWaitNode(&node, graph, NULL, 0, e) != CUDA_SUCCESS);
        refused += cuGraphAddNode(&node, graph, NULL, 0, &parameters) == CUDA_ERROR_INVALID_HANDLE;
    }
    EXPECT(refused >= 1); /* simgpu accepts every handle there, the library all but its own */
}

/* Events of the program work as usual, even those that get the handle of an event that it destroyed. */
static void events_of_the_program_are_its_own(void)
{
    get_ready();
    destroy_all();
    launch();
    for (int round = 0; round < 2; round++) {
        float ms = -1;
        for (int i = 0; i < EVENTS; i++) EXPECT_EQ(cuEventCreate(&old_events[i], 0), CUDA_SUCCESS);
        for (int i = 0; i < EVENTS; i++) EXPECT_EQ(cuEventRecord(old_events[i], stream), CUDA_SUCCESS);
        launch();
        for (int i = 0; i < EVENTS; i++) EXPECT_EQ(cuEventQuery(old_events[i]) + cuEventSynchronize(old_events[i]), CUDA_SUCCESS);
        EXPECT_EQ(cuEventElapsedTime(&ms, old_events[0], old_events[1]), CUDA_SUCCESS);
        EXPECT_EQ(cuStreamWaitEvent(other, old_events[0], 0), CUDA_SUCCESS);
        destroy_all();
    }
}

int main(void)
{
    UNDER_AN_ARBITER(an_old_handle_is_answered_as_one_that_does_not_exist);
    UNDER_AN_ARBITER(events_of_the_program_are_its_own);
    FINISH;
}
