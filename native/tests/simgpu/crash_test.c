/* A process dies at every point between two writes to the shared state, at most of them while it holds the lock. Each time another process must
 * find the card as if the dead process had never existed, and be able to use it. */
#include "check.h"

#include <signal.h>
#include <sys/wait.h>

#define MOST_POINTS 20000

/* Makes every change of the shared state once. */
static int script(void)
{
    static char buffer[4096];
    CUcontext c;
    CUmodule m;
    CUfunction f;
    CUstream s;
    CUevent e;
    CUdeviceptr p, q;
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 1, .location = {1, 0}};
    int fd;
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0)) return 1;
    if (cuMemAlloc_v2(&p, 5 * MIB) || cuMemAlloc_v2(&q, 100) || cuMemFree_v2(p)) return 2;
    if (cuMemCreate(&h, 4 * MIB, &prop, 0) || cuMemExportToShareableHandle(&fd, h, 1, 0) || cuMemRelease(h)) return 3;
    if (cuMemAllocAsync(&p, MIB, NULL) || cuMemFreeAsync(p, NULL) || cuStreamSynchronize(NULL)) return 4;
    if (cuModuleLoadData(&m, spin_ptx) || cuModuleGetFunction(&f, m, "quarter") || cuStreamCreate(&s, 1) || cuEventCreate(&e, 0)) return 5;
    for (int i = 0; i < 3; i++)
        if (spin_in(f, 20, s) || spin_in(f, 20, NULL)) return 6;
    if (cuMemcpyHtoD_v2(q, buffer, 100) || cuEventRecord(e, s) || cuStreamWaitEvent(NULL, e, 0) || cuCtxSynchronize()) return 7;
    return cuCtxDestroy_v2(c) ? 8 : 0;
}

/* True: the process died, so it has at least this many points. */
static bool die_at(int point, char *self)
{
    char number[16], path[512];
    int status;
    snprintf(number, sizeof number, "%d", point);
    snprintf(path, sizeof path, "%s/points/simgpu", getenv("OUT") ? getenv("OUT") : "build");
    pid_t pid = fork();
    if (pid == 0) {
        setenv("SIMGPU_CRASH_AT", number, 1);
        setenv("LD_LIBRARY_PATH", path, 1);
        execl("/proc/self/exe", self, "script", (char *)NULL);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    EXPECT(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

static char *self;
static CUfunction spin;

static void death_at_any_point_leaves_the_card_as_it_was(void)
{
    unsigned long long before = used();
    int point = 1;
    double worst = 0;
    for (; point < MOST_POINTS && ok_so_far && die_at(point, self); point++) {
        double from = seconds();
        while (used() != before && seconds() - from < 1) usleep(500);
        EXPECT_EQ(used(), before);
        EXPECT_EQ(spin_in(spin, 10, NULL) + cuCtxSynchronize(), CUDA_SUCCESS);
        if (seconds() - from > worst) worst = seconds() - from;
        if (!ok_so_far) fprintf(stderr, "after death at point %d\n", point);
    }
    EXPECT(point > 100);
    EXPECT(worst < soon());
    printf("     %d points, charge back and card usable within %.1f ms\n", point - 1, worst * 1000);
}

int main(int argc, char **argv)
{
    CUcontext c;
    CUmodule m;
    self = argv[0];
    if (argc > 1) return script();
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0) || cuModuleLoadData(&m, spin_ptx) || cuModuleGetFunction(&spin, m, "spin")) return 1;
    if (spin_in(spin, 1, NULL) || cuCtxSynchronize()) return 1;
    RUN(death_at_any_point_leaves_the_card_as_it_was);
    FINISH;
}
