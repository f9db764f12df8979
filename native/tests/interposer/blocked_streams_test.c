/* Streams that the program itself holds back. A program that works without the library must work with it: the thread that launches is the one
 * that releases the stream, so a launch that waited for the stream would wait forever. */
#include "arbiter.h"

#include <pthread.h>

#define LIMITED CARD_A "=900MiB,context=256MiB,cores=20,cores-limit=20"
#define KERNELS 20
#define KERNEL_US 5000
#define ALONE (KERNELS * KERNEL_US / 1e6)
#define MUCH (30 * ALONE) /* a machine may be busy */

static CUcontext context;
static CUfunction spin;
static CUstream waits, other;
static volatile uint32_t *word;

static void get_ready(unsigned flags)
{
    CUmodule module;
    alarm(50);
    if (!(context = context_on(0))) _exit(1);
    EXPECT_EQ(cuModuleLoadData(&module, spin_ptx) + cuModuleGetFunction(&spin, module, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&waits, flags) + cuStreamCreate(&other, 1) + cuMemHostAlloc((void **)(uintptr_t)&word, 4096, 0), CUDA_SUCCESS);
}

static void launch(CUstream s, int kernels)
{
    for (int i = 0; i < kernels && ok_so_far; i++) EXPECT_EQ(spin_in(spin, KERNEL_US, s), CUDA_SUCCESS);
}

static void wait_for_the_word(CUstream s) { EXPECT_EQ(cuStreamWaitValue32_v2(s, (uint64_t)(uintptr_t)word, 1, 0), CUDA_SUCCESS); }
static void let_go(void) { __atomic_store_n(word, 1, __ATOMIC_SEQ_CST); }
static void finish(void) { EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS); }

static void launches_behind_a_word_that_the_thread_writes_later_go(void)
{
    get_ready(1);
    double from = seconds();
    wait_for_the_word(waits);
    launch(waits, KERNELS);
    EXPECT(seconds() - from < MUCH);
    EXPECT_EQ(cuStreamQuery(waits), CUDA_ERROR_NOT_READY);
    let_go();
    finish();
}

static void what_was_launched_before_is_not_taken_for_a_long_kernel(void)
{
    get_ready(1);
    launch(waits, 3);
    finish();
    double from = seconds();
    for (int i = 0; i < 8; i++) EXPECT_EQ(spin_in(spin, 10, waits), CUDA_SUCCESS);
    wait_for_the_word(waits);
    launch(waits, KERNELS);
    EXPECT(seconds() - from < MUCH);
    let_go();
    finish();
}

static void as_many_go_as_the_driver_takes(void)
{
    get_ready(1);
    wait_for_the_word(waits);
    for (int i = 0; i < 900; i++) EXPECT_EQ(spin_in(spin, 10 + i % 30, waits), CUDA_SUCCESS);
    let_go();
    finish();
    launch(waits, KERNELS); /* and everything works as before */
    finish();
}

/* All streams together share the places of the driver's queue, and the library's events take some of them. */
static void as_many_go_into_several_streams(void)
{
    CUstream streams[8];
    get_ready(1);
    for (int i = 0; i < 8; i++) EXPECT_EQ(cuStreamCreate(&streams[i], 1), CUDA_SUCCESS);
    for (int i = 0; i < 8; i++) wait_for_the_word(streams[i]);
    for (int i = 0; i < 8 * 100; i++) EXPECT_EQ(spin_in(spin, 10 + i % 30, streams[i % 8]), CUDA_SUCCESS);
    let_go();
    finish();
}

static void launches_behind_an_event_that_waits_itself_go(void)
{
    CUevent e;
    get_ready(1);
    EXPECT_EQ(cuEventCreate(&e, 2), CUDA_SUCCESS);
    wait_for_the_word(waits);
    EXPECT_EQ(cuEventRecord(e, waits) + cuStreamWaitEvent(other, e, 0), CUDA_SUCCESS);
    launch(other, KERNELS);
    let_go();
    finish();
}

static void until_released(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(word, __ATOMIC_SEQ_CST)) usleep(1000);
}

static void launches_behind_a_callback_that_waits_for_the_thread_go(void)
{
    get_ready(1);
    launch(waits, 1);
    EXPECT_EQ(cuLaunchHostFunc(waits, until_released, NULL), CUDA_SUCCESS);
    launch(waits, KERNELS);
    let_go();
    finish();
}

CUresult cuLaunchHostFunc_v2(CUstream, CUhostFn, void *, unsigned);

static void launches_behind_a_callback_of_the_newer_kind_go(void)
{
    get_ready(1);
    launch(waits, 1);
    EXPECT_EQ(cuLaunchHostFunc_v2(waits, until_released, NULL, 0), CUDA_SUCCESS);
    launch(waits, KERNELS);
    let_go();
    finish();
}

/* The graph has begun, and does not go on before the launches. */
static void a_graph_whose_host_node_waits_for_later_launches_goes_on(void)
{
    CUgraph graph;
    CUgraphExec run;
    get_ready(1);
    launch(other, 3);
    EXPECT_EQ(cuStreamBeginCapture_v2(waits, 2) + spin_in(spin, 10, waits) + cuLaunchHostFunc(waits, until_released, NULL), CUDA_SUCCESS);
    launch(waits, 1);
    EXPECT_EQ(cuStreamEndCapture(waits, &graph) + cuGraphInstantiateWithFlags(&run, graph, 0), CUDA_SUCCESS);
    finish();
    double from = seconds();
    EXPECT_EQ(cuGraphLaunch(run, waits), CUDA_SUCCESS);
    usleep(300000);
    launch(other, KERNELS);
    EXPECT_EQ(cuStreamQuery(waits), CUDA_ERROR_NOT_READY);
    let_go();
    finish();
    EXPECT(seconds() - from > ALONE && seconds() - from < 2 * MUCH);
}

/* The stream NULL waits for the other streams of its context implicitly. */
static void launches_into_the_stream_null_beside_one_that_waits_go(void)
{
    get_ready(0);
    EXPECT_EQ(spin_in(spin, 10, NULL), CUDA_SUCCESS);
    wait_for_the_word(waits);
    launch(NULL, KERNELS);
    let_go();
    finish();
}

/* Other streams get turns while one is held back, and it does not delay the end of a turn. */
static void other_streams_go_on_beside_one_that_is_held_back(void)
{
    get_ready(1);
    wait_for_the_word(waits);
    launch(waits, KERNELS);
    launch(other, 1);
    double from = seconds();
    launch(other, KERNELS);
    EXPECT_EQ(cuStreamSynchronize(other), CUDA_SUCCESS);
    EXPECT(seconds() - from > 3 * ALONE && seconds() - from < MUCH);
    let_go();
    finish();
}

static void what_is_held_back_is_paid_for(void)
{
    get_ready(1);
    wait_for_the_word(waits);
    double from = seconds();
    launch(waits, KERNELS);
    let_go();
    EXPECT_EQ(cuStreamSynchronize(waits), CUDA_SUCCESS);
    launch(other, KERNELS);
    EXPECT_EQ(cuStreamSynchronize(other), CUDA_SUCCESS);
    EXPECT(seconds() - from > 2 * 3 * ALONE && seconds() - from < 2 * MUCH);
}

/* Three kernels that the program has never launched before, so their lengths are unknown. The turn is over when they begin. */
#define LONG_US 400000
static void what_was_never_run_before_is_paid_for_too(void)
{
    get_ready(1);
    double from = seconds();
    for (unsigned i = 1; i <= 3; i++) {
        uint64_t us = LONG_US;
        __atomic_store_n(word, 0, __ATOMIC_SEQ_CST);
        wait_for_the_word(waits);
        EXPECT_EQ(cuLaunchKernel(spin, i, 1, 1, 1, 1, 1, 0, waits, (void *[]){&us}, NULL), CUDA_SUCCESS);
        usleep(100000);
        let_go();
        EXPECT_EQ(cuStreamSynchronize(waits), CUDA_SUCCESS);
    }
    launch(other, 1);
    EXPECT_EQ(cuStreamSynchronize(other), CUDA_SUCCESS);
    EXPECT(seconds() - from > 3 * 5 * LONG_US / 1e6 - 1 && seconds() - from < 30);
}

/* This looks like a kernel that spins on a word: it has begun, and it is impossible to know that it waits for the program. */
static void behind_what_does_not_end_launches_go_all_the_same(void)
{
    get_ready(1);
    launch(waits, 3);
    finish();
    double from = seconds();
    EXPECT_EQ(spin_in(spin, 14000000, waits), CUDA_SUCCESS);
    launch(waits, 1);
    EXPECT(seconds() - from > 5 && seconds() - from < 13);
}

static const char meet_ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                               "// simgpu: time_us=$0 share=0.01 meet=2\n"
                               ".visible .entry meet(.param .u64 us, .param .u32 number)\n{\n ret;\n}\n";

static CUfunction meeting;
static CUresult (*launch_meeting)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);

static void meet(uint32_t number, CUstream s)
{
    uint64_t us = 100;
    void *parameters[] = {&us, &number};
    EXPECT_EQ(launch_meeting(meeting, 1, 1, 1, 1, 1, 1, 0, s, parameters, NULL), CUDA_SUCCESS);
}

/* A known, short kernel that waits for a later one: the turn ends long before the later one is launched. */
#define OF_ITS_OWN ((CUstream)-1)
static void a_kernel_waits_for_one_that_is_launched_after_the_turn(CUstream first)
{
    CUmodule module;
    get_ready(1);
    EXPECT_EQ(cuModuleLoadData(&module, meet_ptx) + cuModuleGetFunction(&meeting, module, "meet"), CUDA_SUCCESS);
    if (first == OF_ITS_OWN) first = waits;
    for (uint32_t i = 1; i <= 12; i++) {
        meet(i, first);
        meet(i, other);
        finish();
    }
    double from = seconds();
    meet(1000, first);
    usleep(300000);
    meet(1000, other);
    finish();
    EXPECT(seconds() - from < 20);
}

static void a_kernel_that_waits_for_a_later_launch_causes_no_hang(void)
{
    launch_meeting = cuLaunchKernel;
    a_kernel_waits_for_one_that_is_launched_after_the_turn(OF_ITS_OWN);
}

static void one_in_the_stream_null_causes_no_hang(void)
{
    launch_meeting = cuLaunchKernel;
    a_kernel_waits_for_one_that_is_launched_after_the_turn(NULL);
}

static void one_in_the_stream_of_the_thread_causes_no_hang(void)
{
    launch_meeting = cuLaunchKernel_ptsz;
    a_kernel_waits_for_one_that_is_launched_after_the_turn(NULL);
}

static void *launches(void *stream)
{
    (void)stream;
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    launch(waits, KERNELS);
    return NULL;
}

static void threads_that_wait_at_a_stream_that_is_held_back_all_go(void)
{
    pthread_t threads[4];
    get_ready(1);
    wait_for_the_word(waits);
    for (int i = 0; i < 4; i++) EXPECT_EQ(pthread_create(&threads[i], NULL, launches, NULL), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    let_go();
    finish();
}

int main(void)
{
    UNDER_AN_ARBITER(launches_behind_a_word_that_the_thread_writes_later_go);
    UNDER_AN_ARBITER(what_was_launched_before_is_not_taken_for_a_long_kernel);
    UNDER_AN_ARBITER(as_many_go_as_the_driver_takes);
    UNDER_AN_ARBITER(as_many_go_into_several_streams);
    UNDER_AN_ARBITER(launches_behind_an_event_that_waits_itself_go);
    UNDER_AN_ARBITER(launches_behind_a_callback_that_waits_for_the_thread_go);
    UNDER_AN_ARBITER(launches_behind_a_callback_of_the_newer_kind_go);
    UNDER_AN_ARBITER(a_graph_whose_host_node_waits_for_later_launches_goes_on);
    UNDER_AN_ARBITER(launches_into_the_stream_null_beside_one_that_waits_go);
    UNDER_AN_ARBITER(other_streams_go_on_beside_one_that_is_held_back);
    UNDER_AN_ARBITER(what_is_held_back_is_paid_for);
    UNDER_AN_ARBITER(what_was_never_run_before_is_paid_for_too);
    UNDER_AN_ARBITER(behind_what_does_not_end_launches_go_all_the_same);
    UNDER_AN_ARBITER(a_kernel_that_waits_for_a_later_launch_causes_no_hang);
    UNDER_AN_ARBITER(one_in_the_stream_null_causes_no_hang);
    UNDER_AN_ARBITER(one_in_the_stream_of_the_thread_causes_no_hang);
    UNDER_AN_ARBITER(threads_that_wait_at_a_stream_that_is_held_back_all_go);
    FINISH;
}
