/* Processes perform all operations at random and are killed at random. Afterwards the card must be empty and usable. KILLS sets the number. */
#include "check.h"

#include <signal.h>
#include <sys/wait.h>

#define WORKERS 6
#define SLOTS 24

static unsigned dice(unsigned *seed, unsigned sides)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % sides;
}

struct things {
    CUdeviceptr linear[SLOTS], pooled[SLOTS];
    CUmemGenericAllocationHandle handle[SLOTS];
    CUfunction spin;
    CUstream stream;
};

static void one_thing(struct things *t, unsigned *seed)
{
    unsigned i = dice(seed, SLOTS);
    size_t size = dice(seed, 4) ? dice(seed, 200000) + 1 : dice(seed, 20 * MIB) + 1;
    CUmemAllocationProp prop = {.type = 1, .location = {1, 0}};
    CUcontext c;
    switch (dice(seed, 6)) {
    case 0:
    case 1:
        if (t->linear[i]) cuMemFree_v2(t->linear[i]), t->linear[i] = 0;
        else if (cuMemAlloc_v2(&t->linear[i], size)) t->linear[i] = 0;
        return;
    case 2:
        if (t->pooled[i]) cuMemFreeAsync(t->pooled[i], t->stream), t->pooled[i] = 0;
        else if (cuMemAllocAsync(&t->pooled[i], size, t->stream)) t->pooled[i] = 0;
        return;
    case 3:
        if (t->handle[i]) cuMemRelease(t->handle[i]), t->handle[i] = 0;
        else if (cuMemCreate(&t->handle[i], (1 + size / (2 * MIB)) * 2 * MIB, &prop, 0)) t->handle[i] = 0;
        return;
    case 4:
        spin_in(t->spin, dice(seed, 50), t->stream);
        return;
    default:
        if (dice(seed, 20)) return;
        CUcontext current = NULL;
        if (!cuCtxCreate_v2(&c, 0, 0)) cuCtxDestroy_v2(c);
        (void)current;
        cuDevicePrimaryCtxRetain(&c, 0);
        cuCtxSetCurrent(c);
    }
}

static void work(unsigned seed)
{
    static struct things t;
    CUcontext c;
    CUmodule m;
    if (cuInit(0)) _exit(1);
    while (cuDevicePrimaryCtxRetain(&c, 0)) usleep(1000);
    cuCtxSetCurrent(c);
    if (cuModuleLoadData(&m, spin_ptx) || cuModuleGetFunction(&t.spin, m, "spin") || cuStreamCreate(&t.stream, 1)) _exit(0);
    for (;;) one_thing(&t, &seed);
}

static pid_t start(unsigned seed)
{
    pid_t pid = fork();
    if (pid == 0) work(seed);
    return pid;
}

static void killed_processes_leave_nothing_behind(void)
{
    unsigned seed = 4711, kills = getenv("KILLS") ? (unsigned)atoi(getenv("KILLS")) : 300, crashed = 0;
    pid_t pids[WORKERS];
    for (unsigned i = 0; i < WORKERS; i++) pids[i] = start(i + 1);
    for (unsigned k = 0; k < kills; k++) {
        unsigned i = dice(&seed, WORKERS);
        int status;
        usleep(dice(&seed, 15000));
        kill(pids[i], SIGKILL);
        waitpid(pids[i], &status, 0);
        crashed += !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL;
        pids[i] = start(1000 + k);
    }
    for (unsigned i = 0; i < WORKERS; i++) kill(pids[i], SIGKILL), waitpid(pids[i], NULL, 0);
    EXPECT_EQ(crashed, 0);
    CUcontext c;
    size_t total;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    CUdeviceptr p;
    EXPECT_EQ(cuDeviceTotalMem_v2(&total, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&p, total - CONTEXT), CUDA_SUCCESS); /* every byte is free again */
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    printf("     %u kills\n", kills + WORKERS);
}

int main(void)
{
    RUN(killed_processes_leave_nothing_behind);
    FINISH;
}
