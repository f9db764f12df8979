/* A process that makes, exports, imports and frees memory dies at every point between two writes to the container's region. Its partner lives on:
 * the partner's memory stays charged, everything else is refunded, and the container's ledger agrees with the driver's. */
#include "worker.h"

#define QUOTA (1024 * MIB)
#define CARDS CARD_A "=1GiB,context=256MiB"
#define MOST_POINTS 3000
#define SOCKET 10
#define PARTNERS_FD 11

static const CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 9, .location = {1, 0}};

/* A piece of a pool that the partner has imported is freed, and the pool gives it back. */
static int pool_script(void)
{
    struct message m = {0};
    CUmemPoolPtrExportData pointer;
    CUmemoryPool pool;
    CUdeviceptr piece;
    int fd;
    if (cuMemPoolCreate(&pool, &(CUmemPoolProps){.allocType = 1, .handleTypes = 1, .location = {1, 0}})) return 1;
    if (cuMemAllocFromPoolAsync(&piece, 32 * MIB, pool, NULL) || cuMemPoolExportToShareableHandle(&fd, pool, 1, 0)) return 2;
    if (cuMemPoolExportPointer(&pointer, piece)) return 3;
    memcpy(m.handle, &pointer, sizeof pointer);
    talk(SOCKET, &m, fd, true);
    close(fd);
    if (talk(SOCKET, &m, -1, false) == -2) return 4; /* the partner has imported it */
    return cuMemFreeAsync(piece, NULL) || cuCtxSynchronize() || cuMemPoolTrimTo(pool, 0) ? 5 : 0;
}

/* Makes every change of an object, once as its maker and once as its importer. */
static int script(void)
{
    CUcontext c;
    CUmemGenericAllocationHandle made, imported, again;
    CUdeviceptr linear, opened, small;
    CUipcMemHandle ipc;
    struct message m = {0};
    int fd;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&c, 0) || cuCtxSetCurrent(c)) return 1;
    if (cuMemCreate(&made, 4 * MIB, &prop, 0) || cuMemExportToShareableHandle(&fd, made, 1, 0)) return 2;
    if (cuMemExportToShareableHandle(m.handle, made, 8, 0)) return 3;
    talk(SOCKET, &m, fd, true);
    close(fd);
    if (cuMemAlloc_v2(&linear, 6 * MIB) || cuMemAlloc_v2(&small, 1000) || cuIpcGetMemHandle(&ipc, linear)) return 4;
    memcpy(m.handle, &ipc, sizeof ipc);
    talk(SOCKET, &m, -1, true);
    if (talk(SOCKET, &m, -1, false) == -2) return 5; /* the partner has both, and gives its own IPC handle */
    memcpy(&ipc, m.handle, sizeof ipc);
    if (cuMemImportFromShareableHandle(&imported, (void *)PARTNERS_FD, 1) || cuMemImportFromShareableHandle(&again, (void *)PARTNERS_FD, 1)) return 6;
    if (cuIpcOpenMemHandle_v2(&opened, ipc, 1)) return 7;
    if (pool_script()) return 10;
    if (cuMemRelease(made) || cuMemFree_v2(linear) || cuMemFree_v2(small)) return 8;
    if (cuMemRelease(imported) || cuMemRelease(again) || cuIpcCloseMemHandle(opened)) return 9;
    return 0;
}

static pid_t run_to(int point, int socket, int fd)
{
    char number[16], path[1200];
    const char *first = getenv("RUNTIME"); /* a sanitizer's own library */
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    snprintf(number, sizeof number, "%d", point);
    snprintf(path, sizeof path, "%s %s/points/interposer/libfractile.so", first ? first : "", getenv("OUT"));
    setenv("FRACTILE_CRASH_AT", number, 1);
    setenv("LD_PRELOAD", path, 1);
    int high = fcntl(socket, F_DUPFD, 100), other = fcntl(fd, F_DUPFD, 100);
    dup2(high, SOCKET), dup2(other, PARTNERS_FD);
    close(high), close(other);
    execl("/proc/self/exe", "share_crash_test", "script", (char *)NULL);
    _exit(127);
}

static unsigned long long believed(void) { return QUOTA - free_bytes(); }

/* True: the process came to its end. */
static bool one_death(int point, CUipcMemHandle own, int own_fd)
{
    CUmemGenericAllocationHandle h = 0, f = 0;
    CUdeviceptr p = 0;
    CUipcMemHandle ipc;
    CUmemoryPool pool = NULL;
    CUdeviceptr piece = 0;
    CUmemPoolPtrExportData pointer;
    struct message m;
    int s[2], status, fd;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
    pid_t pid = run_to(point, s[1], own_fd);
    close(s[1]);
    if ((fd = talk(s[0], &m, -1, false)) >= 0) {
        if (cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, 1)) h = 0; /* it may be dead already */
        if (cuMemImportFromShareableHandle(&f, m.handle, 8)) f = 0;
        close(fd);
        if (talk(s[0], &m, -1, false) == -1) {
            memcpy(&ipc, m.handle, sizeof ipc);
            if (cuIpcOpenMemHandle_v2(&p, ipc, 1)) p = 0;
            memcpy(m.handle, &own, sizeof own);
            talk(s[0], &m, -1, true);
            fd = talk(s[0], &m, -1, false);
            if (fd >= 0 && cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, 1, 0)) pool = NULL;
            if (fd >= 0) close(fd);
            memcpy(&pointer, m.handle, sizeof pointer);
            if (pool && cuMemPoolImportPointer(&piece, pool, &pointer)) piece = 0;
            if (pool) talk(s[0], &m, -1, true);
        }
    }
    close(s[0]);
    waitpid(pid, &status, 0);
    EXPECT(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
    unsigned long long expected = CONTEXT + 16 * MIB + (h || f ? 4 * MIB : 0) + (p ? 6 * MIB : 0) + (piece ? 32 * MIB : 0);
    double from = seconds();
    /* Between two writes, a piece that the pool gives back is charged to its holder and still in the pool, until the holder frees it. */
    unsigned long long most = expected + (piece ? 32 * MIB : 0);
    while ((believed() < expected || believed() > most) && seconds() - from < soon()) usleep(1000);
    EXPECT(believed() >= expected && believed() <= most);
    if (point % 8 == 0) EXPECT_EQ(held(CARD_A), expected);
    if (h) EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    if (f) EXPECT_EQ(cuMemRelease(f), CUDA_SUCCESS);
    if (p) EXPECT_EQ(cuIpcCloseMemHandle(p), CUDA_SUCCESS);
    if (piece) EXPECT_EQ(cuMemFree_v2(piece), CUDA_SUCCESS);
    if (pool) EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
    EXPECT_EQ(believed(), CONTEXT + 16 * MIB);
    if (!ok_so_far) fprintf(stderr, "at point %d\n", point);
    return WIFEXITED(status);
}

static void death_at_any_point_of_sharing_leaves_what_the_partner_holds_and_nothing_else(void)
{
    CUmemGenericAllocationHandle h;
    CUipcMemHandle ipc;
    CUdeviceptr p, rest;
    int fd, point = 1;
    context_on(0);
    EXPECT_EQ(cuMemCreate(&h, 8 * MIB, &prop, 0) + cuMemExportToShareableHandle(&fd, h, 1, 0), 0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 8 * MIB) + cuIpcGetMemHandle(&ipc, p), 0);
    while (point < MOST_POINTS && ok_so_far && !one_death(point, ipc, fd)) point++;
    EXPECT(point > 60);
    EXPECT_EQ(cuMemAlloc_v2(&rest, QUOTA - CONTEXT - 16 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), QUOTA);
    EXPECT_EQ(peak(CARD_A), QUOTA);
    printf("     %d points\n", point - 1);
}

int main(int argc, char **argv)
{
    char path[600];
    if (argc > 1 && !strcmp(argv[1], "script")) return script();
    snprintf(path, sizeof path, "%s/points/interposer/libfractile.so", getenv("OUT"));
    if (access(path, R_OK) != 0) return printf("0 passed, 1 skipped: there is no library with crash points at %s\n", path), 0;
    IN(CARDS, death_at_any_point_of_sharing_leaves_what_the_partner_holds_and_nothing_else);
    FINISH;
}
