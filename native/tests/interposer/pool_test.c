/* Pools are made, chosen, kept, trimmed, destroyed and shared under a quota of 1 GiB, of which the context takes 256 MiB. */
#include "judge.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

CUresult cuMemGetDefaultMemPool(CUmemoryPool *, CUmemLocation *, int);
CUresult cuMemGetMemPool(CUmemoryPool *, CUmemLocation *, int);
CUresult cuMemSetMemPool(CUmemLocation *, int, CUmemoryPool);

static CUstream stream;

static CUmemoryPool new_pool(int handle_types, size_t most)
{
    CUmemoryPool p = NULL;
    CUmemPoolProps props = {.allocType = 1, .handleTypes = handle_types, .location = {CU_MEM_LOCATION_DEVICE, 0}, .maxSize = most};
    EXPECT_EQ(cuMemPoolCreate(&p, &props), 0);
    return p;
}

static void a_threshold_keeps_memory_charged_until_the_trim(void)
{
    CUmemoryPool pool = new_pool(0, 0);
    CUdeviceptr p;
    uint64_t all = UINT64_MAX;
    EXPECT_EQ(cuMemPoolSetAttribute(pool, 4, &all), 0);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 100 * MIB, pool, stream), 0);
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    EXPECT_EQ(cuStreamSynchronize(stream), 0);
    EXPECT_BOTH(128 * MIB);
    EXPECT_EQ(cuMemPoolTrimTo(pool, 0), 0);
    EXPECT_BOTH(0);
    EXPECT_EQ(cuMemPoolDestroy(pool), 0);
}

static void every_way_to_wait_gives_unused_chunks_back(void)
{
    CUdeviceptr p;
    CUevent e;
    cuEventCreate(&e, 2);
    for (int way = 0; way < 3; way++) {
        EXPECT_EQ(cuMemAllocAsync(&p, 10 * MIB, stream), 0);
        EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
        cuEventRecord(e, stream);
        EXPECT_EQ(way == 0 ? cuStreamSynchronize(stream) : way == 1 ? cuEventSynchronize(e) : cuCtxSynchronize(), 0);
        EXPECT_BOTH(0);
    }
}

static void a_destroyed_pool_is_charged_until_its_last_piece_is_freed(void)
{
    CUmemoryPool pool = new_pool(0, 0), current = NULL, usual = NULL;
    CUdeviceptr p, q;
    cuDeviceGetDefaultMemPool(&usual, 0);
    EXPECT_EQ(cuDeviceSetMemPool(0, pool), 0);
    EXPECT_EQ(cuMemAllocAsync(&p, 10 * MIB, stream), 0); /* from the chosen pool */
    EXPECT_EQ(cuMemAllocAsync(&q, 40 * MIB, stream), 0);
    EXPECT_BOTH(96 * MIB);
    EXPECT_EQ(cuMemPoolDestroy(pool), 0);
    EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuDeviceGetMemPool(&current, 0), 0);
    EXPECT(current == usual);
    EXPECT_BOTH(96 * MIB);
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    EXPECT_EQ(cuStreamSynchronize(stream), 0);
    EXPECT_BOTH(64 * MIB);
    EXPECT_EQ(cuMemFreeAsync(q, stream), 0);
    EXPECT_EQ(cuStreamSynchronize(stream), 0);
    EXPECT_BOTH(0);
    EXPECT_EQ(cuMemPoolDestroy(usual), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemPoolDestroy(NULL), CUDA_ERROR_INVALID_VALUE);
}

static void many_pools_are_charged_each_for_itself(void)
{
    enum { N = 20 };
    CUmemoryPool pool[N];
    CUdeviceptr p[N];
    for (int i = 0; i < N; i++) {
        pool[i] = new_pool(0, 0);
        EXPECT_EQ(cuMemAllocFromPoolAsync(&p[i], 1, pool[i], stream), 0);
    }
    EXPECT_BOTH(N * CHUNK);
    for (int i = 0; i < N; i++) EXPECT_EQ(cuMemPoolDestroy(pool[i]), 0);
    for (int i = 0; i < N; i++) EXPECT_EQ(cuMemFreeAsync(p[i], stream), 0);
    EXPECT_EQ(cuStreamSynchronize(stream), 0);
    EXPECT_BOTH(0);
}

static void what_one_pool_leaves_unused_serves_another(void)
{
    CUmemoryPool a = new_pool(0, 0), b = new_pool(0, 0);
    CUdeviceptr p, q;
    uint64_t all = UINT64_MAX;
    cuMemPoolSetAttribute(a, 4, &all);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 600 * MIB, a, stream), 0);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&q, 300 * MIB, b, stream), OOM);
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&q, 300 * MIB, b, stream), 0);
    EXPECT_EQ(cuMemFreeAsync(q, stream), 0);
    cuMemPoolDestroy(a);
    cuMemPoolDestroy(b);
    cuStreamSynchronize(stream);
    EXPECT_BOTH(0);
}

static unsigned long long taken_by(CUmemoryPool pool)
{
    CUdeviceptr p = 0;
    unsigned long long before = judged("now");
    EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 100 * MIB, pool, stream), 0);
    unsigned long long took = judged("now") - before;
    EXPECT_EQ(QUOTA - left(), judged("now"));
    CUdeviceptr rest = leave_only(10 * MIB), q = 0;
    EXPECT_EQ(cuMemAllocFromPoolAsync(&q, 100 * MIB, pool, stream), took ? OOM : CUDA_SUCCESS);
    EXPECT_NEVER_OVER;
    if (q) EXPECT_EQ(cuMemFreeAsync(q, stream), 0);
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    EXPECT_EQ(cuStreamSynchronize(stream), 0);
    EXPECT_EQ(cuMemFree_v2(rest), 0);
    EXPECT_BOTH(0);
    return took;
}

static void a_pool_is_charged_wherever_its_memory_can_lie_on_the_card(void)
{
    static const struct {
        int type;
        CUmemLocation where;
        bool costs;
    } kinds[] = {{CU_MEM_ALLOCATION_TYPE_PINNED, {CU_MEM_LOCATION_HOST, 0}, false},
                 {CU_MEM_ALLOCATION_TYPE_PINNED, {CU_MEM_LOCATION_HOST_NUMA, 0}, false},
                 {CU_MEM_ALLOCATION_TYPE_PINNED, {CU_MEM_LOCATION_DEVICE_LOCALITY_DOMAIN, 1 << 8}, true},
                 {CU_MEM_ALLOCATION_TYPE_MANAGED, {CU_MEM_LOCATION_DEVICE, 0}, true},
                 {CU_MEM_ALLOCATION_TYPE_MANAGED, {CU_MEM_LOCATION_HOST, 0}, true},
                 {CU_MEM_ALLOCATION_TYPE_MANAGED, {0, 0}, true}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        CUmemPoolProps props = {.allocType = kinds[i].type, .location = kinds[i].where};
        CUmemLocation where = kinds[i].where;
        CUmemoryPool pool = NULL, usual = NULL;
        EXPECT_EQ(cuMemPoolCreate(&pool, &props), 0);
        EXPECT_EQ(taken_by(pool) != 0, kinds[i].costs);
        EXPECT_EQ(cuMemSetMemPool(&where, kinds[i].type, pool), 0);
        EXPECT_EQ(cuMemPoolDestroy(pool), 0);
        EXPECT_EQ(cuMemGetDefaultMemPool(&usual, &where, kinds[i].type), 0);
        EXPECT_EQ(taken_by(usual) != 0, kinds[i].costs);
        EXPECT_EQ(cuMemGetMemPool(&usual, &where, kinds[i].type), 0);
        EXPECT_EQ(taken_by(usual) != 0, kinds[i].costs);
    }
}

static void a_pools_own_limit_is_the_drivers_to_enforce(void)
{
    CUmemoryPool pool = new_pool(0, 64 * MIB);
    CUdeviceptr p;
    EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 60 * MIB, pool, stream), 0);
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 100 * MIB, pool, stream), OOM);
    cuMemPoolDestroy(pool);
    cuStreamSynchronize(stream);
    EXPECT_BOTH(0);
}

/* ---- other processes ---- */

struct parcel {
    CUmemPoolPtrExportData pointer;
};

static void send_parcel(int to, int fd, const struct parcel *p)
{
    union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr aligned; } control = {0};
    struct iovec part = {(void *)p, sizeof *p};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    if (sendmsg(to, &m, 0) < 0) perror("sendmsg");
}

static int receive_parcel(int from, struct parcel *p)
{
    int fd = -1;
    union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr aligned; } control = {0};
    struct iovec part = {p, sizeof *p};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    if (recvmsg(from, &m, 0) > 0 && CMSG_FIRSTHDR(&m)) memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

static void start(int device)
{
    CUcontext c;
    EXPECT_EQ(cuInit(0), 0);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, device), 0);
    cuStreamCreate(&stream, 1);
}

static void export_and_wait(int socket)
{
    CUdeviceptr p;
    struct parcel parcel;
    int fd = -1;
    char word;
    start(0);
    CUmemoryPool pool = new_pool(CU_MEM_HANDLE_TYPE_POSIX_FD, 0);
    cuMemAllocFromPoolAsync(&p, 10 * MIB, pool, stream);
    bool ok = !cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FD, 0) && !cuMemPoolExportPointer(&parcel.pointer, p);
    send_parcel(socket, fd, &parcel);
    if (read(socket, &word, 1) < 0) ok = false;
    _exit(ok ? 0 : 1);
}

/* In a process that has not used a card before: the maker is its child, and dies first. */
static void import_from_a_maker_that_dies(void)
{
    int pair[2], status;
    CUmemoryPool pool;
    CUdeviceptr p;
    struct parcel parcel;
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    pid_t maker = fork();
    if (!maker) export_and_wait(pair[1]);
    close(pair[1]);
    int fd = receive_parcel(pair[0], &parcel);
    start(0);
    EXPECT_EQ(judged("now"), 2 * CONTEXT + CHUNK);
    EXPECT_EQ(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FD, 0), 0);
    close(fd);
    EXPECT_EQ(cuMemPoolImportPointer(&p, pool, &parcel.pointer), 0);
    EXPECT_EQ(judged("now"), 2 * CONTEXT + CHUNK); /* importing costs nothing */
    EXPECT_EQ(QUOTA - left(), 2 * CONTEXT + CHUNK);
    EXPECT_EQ(write(pair[0], "x", 1), 1);
    waitpid(maker, &status, 0);
    EXPECT_EQ(status, 0);
    usleep(100000);
    EXPECT_BOTH(CHUNK); /* the importer has taken over the charge */
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    EXPECT_EQ(cuMemPoolDestroy(pool), 0);
    EXPECT_BOTH(0);
}

static void loop_in_process(int seed, int go)
{
    char word;
    CUdeviceptr p;
    int refused = 0;
    if (read(go, &word, 1) < 0) _exit(2);
    start(1);
    srand((unsigned)seed);
    for (int i = 0; i < 1500; i++) {
        if (cuMemAllocAsync(&p, 1 + (unsigned)rand() % (20 * MIB), stream)) {
            refused++;
            continue;
        }
        cuMemFreeAsync(p, stream);
        if (rand() % 8 == 0) cuStreamSynchronize(stream);
    }
    _exit(refused != 0);
}

static bool in_a_process(void (*work)(void))
{
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        ok_so_far = true;
        work();
        fflush(NULL);
        _exit(!ok_so_far);
    }
    waitpid(child, &status, 0);
    return status == 0;
}

static void share_the_last_chunks(void)
{
    enum { N = 5 };
    pid_t child[N];
    int status, bad = 0, go[2];
    if (pipe(go)) return;
    for (int i = 0; i < N; i++)
        if (!(child[i] = fork())) loop_in_process(i, go[0]);
    start(1);
    EXPECT(leave_only(N * (100 * MIB + CHUNK)) != 0);
    EXPECT_EQ(write(go[1], "xxxxx", N), N);
    for (int i = 0; i < N; i++) {
        waitpid(child[i], &status, 0);
        bad += status != 0;
    }
    EXPECT_EQ(bad, 0);
    EXPECT(judged_on(CARD_B, "peak") <= QUOTA);
}

static void ask_when_told(int go)
{
    char word;
    CUdeviceptr p;
    start(0);
    if (write(go, "s", 1) != 1 || read(go, &word, 1) != 1) _exit(2);
    _exit(cuMemAlloc_v2(&p, 16 * MIB) != CUDA_SUCCESS);
}

static void work_for_a_while(void *unused)
{
    (void)unused;
    usleep(300000);
}

static void *wait_for_the_stream(void *context)
{
    EXPECT_EQ(cuCtxSetCurrent(context), 0);
    EXPECT_EQ(cuStreamSynchronize(stream), 0);
    return NULL;
}

/* The pool is full when the call that waits begins, and gives its chunk back when it ends. */
static void free_beside_a_call_that_waits(void)
{
    int pair[2], status;
    char word;
    pthread_t thread;
    CUdeviceptr p;
    CUcontext context = NULL;
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    pid_t other = fork();
    if (!other) ask_when_told(pair[1]);
    start(0);
    EXPECT_EQ(read(pair[0], &word, 1), 1);
    usleep(100000); /* dead processes of the test before are reaped */
    EXPECT_BOTH(CONTEXT);
    EXPECT_EQ(cuMemAllocAsync(&p, CHUNK, stream), 0);
    EXPECT(leave_only(8 * MIB) != 0);
    EXPECT_EQ(cuLaunchHostFunc(stream, work_for_a_while, NULL), 0);
    cuCtxGetCurrent(&context);
    EXPECT_EQ(pthread_create(&thread, NULL, wait_for_the_stream, context), 0);
    usleep(100000);
    EXPECT_EQ(cuMemFreeAsync(p, stream), 0);
    EXPECT_EQ(write(pair[0], "g", 1), 1);
    waitpid(other, &status, 0);
    EXPECT_EQ(status, 0);
    pthread_join(thread, NULL);
}

static void what_is_freed_beside_a_call_that_waits_is_waited_for(void) { EXPECT(in_a_process(free_beside_a_call_that_waits)); }
static void an_importer_that_outlives_the_exporter_inherits(void) { EXPECT(in_a_process(import_from_a_maker_that_dies)); }

static void hold_and_be_killed(void)
{
    CUdeviceptr p;
    start(0);
    cuMemAllocAsync(&p, 100 * MIB, stream);
    raise(9);
}

static void look_after_a_kill(void)
{
    EXPECT(!in_a_process(hold_and_be_killed));
    start(0);
    usleep(100000);
    EXPECT_BOTH(0);
}

static void what_a_killed_process_had_in_pools_is_free_again(void) { EXPECT(in_a_process(look_after_a_kill)); }
static void processes_that_share_the_last_chunks_are_not_refused(void) { EXPECT(in_a_process(share_the_last_chunks)); }

int main(void)
{
    /* before this process uses a card, so that its children can use one */
    RUN(an_importer_that_outlives_the_exporter_inherits);
    RUN(what_is_freed_beside_a_call_that_waits_is_waited_for);
    RUN(processes_that_share_the_last_chunks_are_not_refused);
    RUN(what_a_killed_process_had_in_pools_is_free_again);
    start(0);
    usleep(100000); /* dead processes of these tests are reaped */
    RUN(a_threshold_keeps_memory_charged_until_the_trim);
    RUN(every_way_to_wait_gives_unused_chunks_back);
    RUN(a_destroyed_pool_is_charged_until_its_last_piece_is_freed);
    RUN(many_pools_are_charged_each_for_itself);
    RUN(what_one_pool_leaves_unused_serves_another);
    RUN(a_pool_is_charged_wherever_its_memory_can_lie_on_the_card);
    RUN(a_pools_own_limit_is_the_drivers_to_enforce);
    EXPECT_NEVER_OVER;
    FINISH;
}
