/* Pools near the quota: their makers take, export, free and trim at random while importers hold pointers into them, and all of these processes
 * are killed at times. The quota must never be exceeded, and afterwards all of it must be available again. */
#include "worker.h"

#define QUOTA (1280 * MIB)
#define CARDS CARD_A "=1280MiB,context=256MiB"
#define PAIRS 2
#define PIECES 8
#define RUN_SECONDS 2.5

static int mailbox[PAIRS][2]; /* datagrams: a pointer and its pool's descriptor, from any maker to one importer */
static unsigned seed;

static unsigned roll(unsigned n) { return (unsigned)rand_r(&seed) % n; }

static void post(CUmemoryPool pool, int fd, CUdeviceptr piece)
{
    CUmemPoolPtrExportData pointer;
    struct message m = {.what = PIECE_IN};
    if (!pool || cuMemPoolExportPointer(&pointer, piece)) return;
    memcpy(m.handle, &pointer, sizeof pointer);
    talk(mailbox[roll(PAIRS)][0], &m, fd, true);
}

static void drop(CUdeviceptr *p)
{
    if (*p && roll(2)) cuMemFree_v2(*p);
    else if (*p) cuMemFreeAsync(*p, NULL);
    *p = 0;
}

static void make(void)
{
    CUdeviceptr piece[PIECES] = {0};
    CUmemoryPool pool = NULL;
    int fd = -1;
    for (;;) {
        CUdeviceptr *p = &piece[roll(PIECES)];
        if (!pool && (cuMemPoolCreate(&pool, &(CUmemPoolProps){.allocType = 1, .handleTypes = 1, .location = {1, 0}}) ||
                      cuMemPoolExportToShareableHandle(&fd, pool, 1, 0)))
            _exit(1);
        if (*p) drop(p);
        else if (cuMemAllocFromPoolAsync(p, roll(3) ? (1 + roll(40)) * MIB : 1 + roll(500000), pool, NULL)) *p = 0;
        else if (roll(2)) post(pool, fd, *p);
        if (!roll(6)) cuMemPoolTrimTo(pool, 0);
        if (!roll(6)) cuCtxSynchronize();
        if (roll(300)) continue;
        for (int i = 0; i < PIECES; i++) drop(&piece[i]);
        cuMemPoolDestroy(pool);
        close(fd);
        pool = NULL;
    }
}

static void import(int box)
{
    CUdeviceptr piece[PIECES] = {0};
    CUmemPoolPtrExportData pointer;
    CUmemoryPool pool;
    struct message m;
    for (;;) {
        CUdeviceptr *p = &piece[roll(PIECES)];
        int fd = talk(box, &m, -1, false);
        if (fd == -2) _exit(1);
        drop(p);
        memcpy(&pointer, m.handle, sizeof pointer);
        bool came = fd >= 0 && !cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, 1, 0);
        if (came && cuMemPoolImportPointer(p, pool, &pointer)) *p = 0; /* the maker has freed it, or is dead */
        if (came) cuMemPoolDestroy(pool);
        if (fd >= 0) close(fd);
    }
}

static pid_t begin_one(int number)
{
    static unsigned seeds = 1;
    CUcontext c;
    seed = seeds++;
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (cuInit(0) || cuDevicePrimaryCtxRetain(&c, 0)) usleep(1000); /* no room for its context yet */
    cuCtxSetCurrent(c);
    if (number < PAIRS) make();
    else import(mailbox[number - PAIRS][1]);
    _exit(0);
}

static void end_one(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void nothing_passes_the_quota_and_nothing_stays_behind(void)
{
    pid_t pid[2 * PAIRS];
    CUdeviceptr rest;
    for (int i = 0; i < PAIRS; i++) EXPECT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, mailbox[i]), 0);
    for (int i = 0; i < 2 * PAIRS; i++) pid[i] = begin_one(i);
    for (double from = seconds(); seconds() - from < RUN_SECONDS;) {
        int victim = rand() % (2 * PAIRS);
        usleep(20000 + (unsigned)rand() % 150000);
        end_one(pid[victim]);
        pid[victim] = begin_one(victim);
    }
    for (int i = 0; i < 2 * PAIRS; i++) end_one(pid[i]);
    for (int i = 0; i < PAIRS; i++) close(mailbox[i][0]), close(mailbox[i][1]);
    context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&rest, QUOTA - CONTEXT), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&rest, 2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(peak(CARD_A) <= QUOTA);
}

int main(void)
{
    static const char *const policies[] = {"0", "1", "5", "14"};
    for (int i = 0; i < 4; i++) {
        setenv("SIMGPU_POLICY", policies[i], 1);
        IN(CARDS, nothing_passes_the_quota_and_nothing_stays_behind);
    }
    FINISH;
}
