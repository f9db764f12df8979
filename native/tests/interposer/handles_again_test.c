/* The driver reuses a handle as soon as its object is gone, even while another thread is still in the call that destroyed the object. The new
 * object must be counted as itself, and not as the old one. */
#include "container.h"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>

#define CARDS CARD_A "=1GiB,context=256MiB"
#define POOLS 8

CUresult cuMemPoolExportToShareableHandle(void *, CUmemoryPool, int, unsigned long long);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *, void *, int, unsigned long long);

static _Atomic bool stop;
static int descriptor;

static void fill(void)
{
    CUdeviceptr p;
    while (!cuMemAlloc_v2(&p, 2 * MIB)) {}
}

static CUmemoryPool new_pool(CUmemLocation where, int handle_types)
{
    CUmemoryPool p = NULL;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = handle_types, .location = where};
    return cuMemPoolCreate(&p, &props) ? NULL : p;
}

static void *import_and_destroy(void *context)
{
    CUmemoryPool p[POOLS + 2];
    cuCtxSetCurrent(context);
    while (!stop) {
        int n = 0;
        while (n < POOLS + 2 && !cuMemPoolImportFromShareableHandle(&p[n], (void *)(uintptr_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FD, 0)) n++;
        while (n) cuMemPoolDestroy(p[--n]);
    }
    return NULL;
}

static const CUmemLocation here = {CU_MEM_LOCATION_DEVICE, 0};

static void a_pool_with_the_handle_of_an_import_that_is_being_destroyed_is_counted(void)
{
    CUmemoryPool made[POOLS];
    CUdeviceptr p;
    CUstream s;
    pthread_t thread;
    int ends[2], granted = 0;
    EXPECT_EQ(pipe(ends), 0);
    pid_t maker = fork();
    if (maker == 0) { /* its descriptor comes here by number: the library recognises it by its mark */
        context_on(0);
        int fd = -1;
        CUmemoryPool shared = new_pool(here, CU_MEM_HANDLE_TYPE_POSIX_FD);
        if (cuMemPoolExportToShareableHandle(&fd, shared, CU_MEM_HANDLE_TYPE_POSIX_FD, 0) || write(ends[1], &fd, sizeof fd) != sizeof fd) _exit(1);
        pause();
    }
    char path[64];
    int number = -1;
    EXPECT_EQ(read(ends[0], &number, sizeof number), (ssize_t)sizeof number);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)maker, number);
    descriptor = open(path, O_RDWR);
    EXPECT(descriptor >= 0);
    CUcontext c = context_on(0);
    EXPECT_EQ(cuStreamCreate(&s, 1), 0);
    fill();
    pthread_create(&thread, NULL, import_and_destroy, c);
    for (double end = seconds() + 3; seconds() < end && !granted;) {
        int n = 0;
        while (n < POOLS && (made[n] = new_pool(here, 0))) n++;
        for (int i = 0; i < n; i++) {
            granted += !cuMemAllocFromPoolAsync(&p, 32 * MIB, made[i], s);
            cuMemPoolDestroy(made[i]);
        }
    }
    stop = true;
    pthread_join(thread, NULL);
    kill(maker, SIGKILL);
    EXPECT_EQ(granted, 0);
    EXPECT(peak(CARD_A) <= 1024 * MIB);
}

static void a_pool_with_the_handle_of_a_host_pool_that_is_gone_is_counted(void)
{
    const CUmemLocation host = {CU_MEM_LOCATION_HOST, 0};
    CUdeviceptr p;
    CUstream s;
    int again = 0, granted = 0;
    context_on(0);
    EXPECT_EQ(cuStreamCreate(&s, 1), 0);
    fill();
    for (int i = 0; i < 100; i++) {
        CUmemoryPool before = new_pool(host, 0);
        EXPECT(before != NULL);
        EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 32 * MIB, before, s), 0); /* costs nothing */
        EXPECT_EQ(cuMemFreeAsync(p, s), 0);
        EXPECT_EQ(cuStreamSynchronize(s), 0);
        EXPECT_EQ(cuMemPoolDestroy(before), 0);
        CUmemoryPool after = new_pool(here, 0);
        again += after == before;
        granted += !cuMemAllocFromPoolAsync(&p, 32 * MIB, after, s);
        EXPECT_EQ(cuMemPoolDestroy(after), 0);
    }
    EXPECT(again > 0);
    EXPECT_EQ(granted, 0);
    EXPECT(peak(CARD_A) <= 1024 * MIB);
}

/* So that the driver's handles are reused soon, and by other threads, too. */
static void give_memory_away_again(char **arguments)
{
    if (getenv("GLIBC_TUNABLES")) return;
    setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1);
    execv("/proc/self/exe", arguments);
}

int main(int count, char **arguments)
{
    (void)count;
    give_memory_away_again(arguments);
    mallopt(M_ARENA_MAX, 1);
    IN(CARDS, a_pool_with_the_handle_of_an_import_that_is_being_destroyed_is_counted);
    IN(CARDS, a_pool_with_the_handle_of_a_host_pool_that_is_gone_is_counted);
    FINISH;
}
