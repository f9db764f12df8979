/* Noise like that of a real card, by seed: what it changes and what it does not. Times are the card's own. Priorities hold with and without it. */
#include "check.h"

CUresult cuStreamCreateWithPriority(CUstream *, unsigned, int);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);

static CUfunction spin;

/* The card's time for one kernel of `us`. */
static double length(unsigned long long us, CUstream s)
{
    CUevent a, b;
    float ms = 0;
    cuEventCreate(&a, 0), cuEventCreate(&b, 0);
    spin_in(spin, 2000, s); /* so that the following work waits in the queue */
    cuEventRecord(a, s), spin_in(spin, us, s), cuEventRecord(b, s);
    EXPECT_EQ(cuEventSynchronize(b), CUDA_SUCCESS);
    EXPECT_EQ(cuEventElapsedTime(&ms, a, b), CUDA_SUCCESS);
    cuEventDestroy_v2(a), cuEventDestroy_v2(b);
    return ms * 1000;
}

static void kernels_vary_by_a_tenth(void)
{
    double least = 1e9, most = 0, sum = 0;
    CUstream s;
    cuStreamCreate(&s, 1);
    for (int i = 0; i < 60; i++) {
        double us = length(1000, s);
        least = us < least ? us : least;
        most = us > most ? us : most;
        sum += us;
    }
    EXPECT(least > 898 && most < 1103);
    EXPECT(least < 940 && most > 1060);
    EXPECT(sum / 60 > 970 && sum / 60 < 1030);
}

static void fills_side_by_side_share_the_bandwidth(void)
{
    CUdeviceptr p;
    CUstream s[2];
    CUevent from, to[2];
    float alone, beside;
    EXPECT_EQ(cuMemAlloc_v2(&p, 512 * MIB), CUDA_SUCCESS);
    for (int i = 0; i < 2; i++) cuStreamCreate(&s[i], 1), cuEventCreate(&to[i], 0);
    cuEventCreate(&from, 0);
    for (int together = 0; together < 2; together++) {
        spin_in(spin, 3000, s[0]);
        cuEventRecord(from, s[0]);
        cuStreamWaitEvent(s[1], from, 0);
        for (int i = 0; i <= together; i++) cuMemsetD8Async(p + (size_t)i * 256 * MIB, 1, 256 * MIB, s[i]), cuEventRecord(to[i], s[i]);
        cuCtxSynchronize();
        cuEventElapsedTime(together ? &beside : &alone, from, to[together]);
    }
    EXPECT(beside > 1.6f * alone);
    cuMemFree_v2(p);
}

static void an_urgent_stream_goes_before_the_others(void)
{
    CUstream lazy, urgent, more;
    CUevent first, second;
    float ms = 0;
    cuStreamCreate(&lazy, 1), cuStreamCreateWithPriority(&urgent, 1, -5), cuStreamCreate(&more, 1);
    cuEventCreate(&first, 0), cuEventCreate(&second, 0);
    spin_in(spin, 5000, lazy);
    spin_in(spin, 1000, more), cuEventRecord(second, more);
    spin_in(spin, 1000, urgent), cuEventRecord(first, urgent);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cuEventElapsedTime(&ms, first, second), CUDA_SUCCESS);
    EXPECT(ms > 0.8f);
}

static void an_event_costs_the_host_a_moment(void)
{
    CUevent e;
    cuEventCreate(&e, 0);
    double from = seconds();
    for (int i = 0; i < 1000; i++) cuEventRecord(e, NULL), cuEventQuery(e);
    EXPECT(seconds() - from > 0.001 * 0.95);
}

int main(void)
{
    CUcontext c;
    CUmodule m;
    setenv("SIMGPU_NOISE", "7", 1);
    setenv("SIMGPU_CONTENTS_MIB", "0", 1); /* a fill takes no time of the machine */
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0) || cuModuleLoadData(&m, spin_ptx) || cuModuleGetFunction(&spin, m, "spin")) return 1;
    RUN(kernels_vary_by_a_tenth);
    RUN(fills_side_by_side_share_the_bandwidth);
    RUN(an_urgent_stream_goes_before_the_others);
    RUN(an_event_costs_the_host_a_moment);
    FINISH;
}
