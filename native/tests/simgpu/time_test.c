/* Time on the card: how long work takes, which work waits for which, and how processes share. Tolerances allow for a busy machine: lower bounds
 * are exact, upper bounds generous. Two times that are compared come from the card's own clock. */
#include "check.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

CUresult cuCtxGetCurrent(CUcontext *);

static CUfunction spin, quarter;

static double timed(CUstream s)
{
    double from = seconds();
    EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    return seconds() - from;
}

static void a_kernel_takes_the_time_that_its_argument_says(void)
{
    EXPECT_EQ(spin_in(spin, 30000, NULL), CUDA_SUCCESS);
    double t = timed(NULL);
    EXPECT(t >= 0.0299 && t < 0.2);
}

static void events_give_the_time_of_the_card(void)
{
    CUevent a, b;
    float ms;
    EXPECT_EQ(cuEventCreate(&a, 0) + cuEventCreate(&b, 0), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(spin, 5000, NULL), CUDA_SUCCESS); /* so that everything below waits in the queue */
    EXPECT_EQ(cuEventRecord(a, NULL), CUDA_SUCCESS);
    for (int i = 0; i < 10; i++) EXPECT_EQ(spin_in(spin, 1000, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(b, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(b), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuEventSynchronize(b), CUDA_SUCCESS);
    EXPECT_EQ(cuEventElapsedTime(&ms, a, b), CUDA_SUCCESS);
    EXPECT(ms > 9.999 && ms < 10.001);
}

/* The card's time for n kernels of 4 ms, each in its own stream, behind a gate so that all of them are queued first. */
static float together(CUfunction f, int n)
{
    CUevent from, to;
    CUstream gate, s[8];
    float ms = 0;
    cuEventCreate(&from, 0);
    cuEventCreate(&to, 0);
    cuStreamCreate(&gate, 1);
    spin_in(spin, 5000, gate);
    cuEventRecord(from, gate);
    for (int i = 0; i < n; i++) {
        cuStreamCreate(&s[i], 1);
        cuStreamWaitEvent(s[i], from, 0);
        spin_in(f, 4000, s[i]);
    }
    for (int i = 0; i < n; i++) {
        CUevent done;
        cuEventCreate(&done, 0);
        cuEventRecord(done, s[i]);
        cuStreamWaitEvent(gate, done, 0);
    }
    cuEventRecord(to, gate);
    EXPECT_EQ(cuEventSynchronize(to), CUDA_SUCCESS);
    EXPECT_EQ(cuEventElapsedTime(&ms, from, to), CUDA_SUCCESS);
    return ms;
}

static void small_kernels_of_one_context_run_together_and_large_ones_in_turn(void)
{
    float four = together(quarter, 4), five = together(quarter, 5), whole = together(spin, 3);
    EXPECT(four > 3.999 && four < 4.001);
    EXPECT(five > 7.999 && five < 8.001);
    EXPECT(whole > 11.999 && whole < 12.001);
}

static void the_legacy_stream_waits_for_blocking_streams_only(void)
{
    CUstream blocking, free_stream;
    EXPECT_EQ(cuStreamCreate(&blocking, 0) + cuStreamCreate(&free_stream, 1), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(quarter, 30000, blocking), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(quarter, 1000, NULL), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(quarter, 1000, free_stream), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(free_stream), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    double t = timed(NULL);
    EXPECT(t > 0.02);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

static void copies_run_beside_kernels(void)
{
    static char buffer[16 << 20];
    CUstream copy;
    CUdeviceptr p;
    EXPECT_EQ(cuStreamCreate(&copy, 1) + cuMemAlloc_v2(&p, sizeof buffer), CUDA_SUCCESS);
    double from = seconds();
    EXPECT_EQ(spin_in(spin, 1000000, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyHtoDAsync_v2(p, buffer, sizeof buffer, copy), CUDA_SUCCESS);
    double t = timed(copy); /* 16 MiB at 25 GB/s: 0.67 ms */
    EXPECT(t < 0.9); /* not behind the kernel */
    EXPECT(cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY || seconds() - from > 1);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
}

static void a_launch_waits_when_the_queue_is_full(void)
{
    double from = seconds();
    for (int i = 0; i < 1200; i++) EXPECT_EQ(spin_in(spin, 100, NULL), CUDA_SUCCESS);
    double queued = seconds() - from;
    EXPECT(queued > 0.015); /* 1200 launches of 100 us, 1023 of them in the queue */
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT(seconds() - from >= 0.1199);
}

struct filler { CUcontext context; CUresult result; _Atomic int launched; };

static void *fill(void *arg)
{
    struct filler *f = arg;
    CUmodule m;
    CUfunction own;
    f->result = cuCtxSetCurrent(f->context) + cuModuleLoadData(&m, spin_ptx) + cuModuleGetFunction(&own, m, "spin");
    while (!f->result) f->result = spin_in(own, 10000000, NULL), f->launched++;
    return NULL;
}

static void a_launch_that_waits_ends_with_its_context(void)
{
    struct filler f = {0};
    CUcontext own;
    pthread_t thread;
    EXPECT_EQ(cuCtxGetCurrent(&own) + cuCtxCreate_v2(&f.context, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(pthread_create(&thread, NULL, fill, &f), 0);
    while (f.launched < 1023) usleep(1000);
    usleep(20000); /* it waits for a place in the queue */
    EXPECT_EQ(cuCtxDestroy_v2(f.context), CUDA_SUCCESS);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT_EQ(f.result, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuCtxSetCurrent(own), CUDA_SUCCESS);
}

static void count_call(void *at) { ++*(volatile int *)at; }

static void host_callbacks_run_in_the_order_of_the_stream(void)
{
    volatile int calls = 0;
    EXPECT_EQ(spin_in(spin, 20000, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuLaunchHostFunc(NULL, count_call, (void *)&calls), CUDA_SUCCESS);
    EXPECT_EQ(calls, 0);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(calls, 1);
}

static void a_stream_writes_a_word_in_its_turn_and_waits_for_one(void)
{
    volatile uint32_t *words;
    CUdeviceptr at;
    EXPECT_EQ(cuMemHostAlloc((void **)&words, 4096, 0), CUDA_SUCCESS);
    at = (uint64_t)(uintptr_t)words;
    double from = seconds();
    EXPECT_EQ(spin_in(spin, 20000, NULL) + cuStreamWriteValue32_v2(NULL, at, 7, 0) + spin_in(spin, 100000, NULL), CUDA_SUCCESS);
    EXPECT_EQ(__atomic_load_n(&words[0], __ATOMIC_RELAXED), 0);
    while (__atomic_load_n(&words[0], __ATOMIC_RELAXED) != 7 && seconds() - from < 1) usleep(200);
    EXPECT(seconds() - from >= 0.0199 && seconds() - from < 0.1); /* the work behind it continues meanwhile */
    EXPECT_EQ(cuStreamWaitValue32_v2(NULL, at + 4, 5, 0), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(spin, 1, NULL), CUDA_SUCCESS);
    usleep(150000);
    EXPECT_EQ(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    __atomic_store_n(&words[1], 6, __ATOMIC_RELAXED);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeHost((void *)words), CUDA_SUCCESS);
}

static void a_graph_takes_as_long_as_its_longest_path(void)
{
    CUstream a, b;
    CUevent fork_event, join_event, from, to;
    CUgraph g;
    CUgraphExec e;
    float ms;
    cuStreamCreate(&a, 1), cuStreamCreate(&b, 1);
    cuEventCreate(&fork_event, 2), cuEventCreate(&join_event, 2), cuEventCreate(&from, 0), cuEventCreate(&to, 0);
    EXPECT_EQ(cuStreamBeginCapture_v2(a, 0), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(quarter, 1000, a), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(fork_event, a) + cuStreamWaitEvent(b, fork_event, 0), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(quarter, 3000, a) + spin_in(quarter, 2000, b), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(join_event, b) + cuStreamWaitEvent(a, join_event, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(a, &g), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(spin, 5000, a), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(from, a) + cuGraphLaunch(e, a) + cuEventRecord(to, a) + cuEventSynchronize(to), CUDA_SUCCESS);
    EXPECT_EQ(cuEventElapsedTime(&ms, from, to), CUDA_SUCCESS);
    EXPECT(ms > 3.999 && ms < 4.001);
}

/* Keeps the card busy for the given time and returns the number of kernels done. */
static unsigned long long work_for(double time, unsigned us)
{
    unsigned long long done = 0;
    double end = seconds() + time;
    while (seconds() < end) {
        for (int i = 0; i < 8; i++) spin_in(spin, us, NULL);
        cuCtxSynchronize();
        done += 8;
    }
    return done;
}

static void run_child(int out, unsigned us)
{
    CUcontext c;
    CUmodule m;
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0) || cuModuleLoadData(&m, spin_ptx) || cuModuleGetFunction(&spin, m, "spin")) _exit(1);
    unsigned long long n = work_for(1.2, us) * us;
    if (write(out, &n, sizeof n) != sizeof n) _exit(1);
    _exit(0);
}

static void two_processes_get_half_of_the_card_each_whatever_their_kernels(void)
{
    int fd[2];
    unsigned us[2] = {500, 3000};
    unsigned long long gpu_us[2] = {0};
    EXPECT_EQ(pipe(fd), 0);
    for (int i = 0; i < 2; i++)
        if (fork() == 0) run_child(fd[1], us[i]);
    for (int i = 0; i < 2; i++) EXPECT_EQ(read(fd[0], &gpu_us[i], sizeof gpu_us[i]), sizeof gpu_us[i]);
    while (wait(NULL) > 0) {}
    double sum = (double)(gpu_us[0] + gpu_us[1]) / 1e6, share = (double)gpu_us[0] / (double)(gpu_us[0] + gpu_us[1]);
    printf("     gpu seconds in 1.2 s: %.2f, share of one of two: %.3f\n", sum, share);
    EXPECT(share > 0.35 && share < 0.65);
    EXPECT(sum > 0.8 && sum < 1.35);
}

int main(void)
{
    CUcontext c;
    CUmodule m;
    RUN(two_processes_get_half_of_the_card_each_whatever_their_kernels); /* first: it forks */
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0) || cuModuleLoadData(&m, spin_ptx)) return 1;
    if (cuModuleGetFunction(&spin, m, "spin") || cuModuleGetFunction(&quarter, m, "quarter")) return 1;
    RUN(a_kernel_takes_the_time_that_its_argument_says);
    RUN(events_give_the_time_of_the_card);
    RUN(small_kernels_of_one_context_run_together_and_large_ones_in_turn);
    RUN(the_legacy_stream_waits_for_blocking_streams_only);
    RUN(copies_run_beside_kernels);
    RUN(a_launch_waits_when_the_queue_is_full);
    RUN(a_launch_that_waits_ends_with_its_context);
    RUN(host_callbacks_run_in_the_order_of_the_stream);
    RUN(a_stream_writes_a_word_in_its_turn_and_waits_for_one);
    RUN(a_graph_takes_as_long_as_its_longest_path);
    FINISH;
}
