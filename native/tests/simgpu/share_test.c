/* Memory that outlives the call that made it: exported descriptors, fabric handles, multicast teams, tiles of sparse arrays. */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *, const CUmulticastObjectProp *);
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice);
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t, unsigned long long);
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t, unsigned long long);
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle, CUdevice, size_t, size_t);
CUresult cuMulticastGetGranularity(size_t *, const CUmulticastObjectProp *, int);
CUresult cuMemMapArrayAsync(CUarrayMapInfo *, unsigned, CUstream);

static const CUmemAllocationProp both_ways = {.type = 1, .requestedHandleTypes = 9, .location = {1, 0}};

static void send_fd(int socket, int fd)
{
    char byte = 'f', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    EXPECT_EQ(sendmsg(socket, &m, 0), 1);
}

static int receive_fd(int socket)
{
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int fd = -1;
    if (recvmsg(socket, &m, 0) == 1 && CMSG_FIRSTHDR(&m)) memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

/* The bytes held on the card once all processes have collected memory that is no longer held. */
static unsigned long long settled(unsigned long long expected)
{
    double from = seconds();
    while (used() != expected && seconds() - from < 0.5) usleep(1000);
    return used();
}

static int exporter(void)
{
    CUcontext c;
    CUmemGenericAllocationHandle h;
    int fd;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&c, 0) || cuMemCreate(&h, 8 * MIB, &both_ways, 0) || cuMemExportToShareableHandle(&fd, h, 1, 0)) return 1;
    send_fd(10, fd);
    close(fd);
    pause();
    return 0;
}

/* ---- tests ---- */

static void an_exported_descriptor_keeps_its_memory_until_its_last_copy_is_closed(void)
{
    CUmemGenericAllocationHandle h;
    int fd;
    EXPECT_EQ(cuMemCreate(&h, 8 * MIB, &both_ways, 0) + cuMemExportToShareableHandle(&fd, h, 1, 0), 0);
    int copy = dup(fd);
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    EXPECT_EQ(settled(CONTEXT), CONTEXT + 8 * MIB);
    close(fd);
    EXPECT_EQ(settled(CONTEXT), CONTEXT + 8 * MIB);
    EXPECT_EQ(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)copy, 1), CUDA_SUCCESS);
    close(copy);
    EXPECT_EQ(settled(CONTEXT), CONTEXT + 8 * MIB); /* now the handle holds it */
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void a_descriptor_on_its_way_keeps_the_memory_of_a_killed_exporter(void)
{
    int sockets[2];
    CUmemGenericAllocationHandle h;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(sockets[1], 10);
        execl("/proc/self/exe", "share_test", "export", (char *)NULL);
        _exit(127);
    }
    usleep(200000); /* the descriptor is only in the socket */
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    EXPECT_EQ(settled(CONTEXT), CONTEXT + 8 * MIB);
    int fd = receive_fd(sockets[0]);
    EXPECT_EQ(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, 1), CUDA_SUCCESS);
    close(fd);
    EXPECT_EQ(settled(0), CONTEXT + 8 * MIB);
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    close(sockets[0]), close(sockets[1]);
}

static void a_fabric_handle_names_memory_and_keeps_none_alive(void)
{
    CUmemGenericAllocationHandle h, again;
    CUmemFabricHandle f;
    EXPECT_EQ(cuMemCreate(&h, 4 * MIB, &both_ways, 0) + cuMemExportToShareableHandle(&f, h, 8, 0), 0);
    EXPECT_EQ(cuMemImportFromShareableHandle(&again, &f, 8), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB);
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB);
    EXPECT_EQ(cuMemRelease(again), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuMemImportFromShareableHandle(&again, &f, 8), CUDA_ERROR_INVALID_VALUE);
    memset(&f, 7, sizeof f);
    EXPECT_EQ(cuMemImportFromShareableHandle(&again, &f, 8), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuMemImportFromShareableHandle(&again, NULL, 8), CUDA_ERROR_INVALID_VALUE);
}

static void a_multicast_team_costs_a_granule_per_card_and_holds_what_is_bound(void)
{
    CUmulticastObjectProp p = {.numDevices = 2, .size = 8 * MIB, .handleTypes = 1};
    CUmemGenericAllocationHandle team, again, h;
    size_t granularity;
    int fd;
    EXPECT_EQ(cuMulticastGetGranularity(&granularity, &p, 0), CUDA_SUCCESS);
    EXPECT_EQ(granularity, 2 * MIB);
    EXPECT_EQ(cuMulticastCreate(&team, &p) + cuMemCreate(&h, 8 * MIB, &both_ways, 0), 0);
    EXPECT_EQ(used(), CONTEXT + 8 * MIB);
    EXPECT_EQ(cuMulticastBindMem(team, 0, h, 0, 8 * MIB, 0), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuMulticastAddDevice(team, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 10 * MIB);
    EXPECT_EQ(cuMulticastBindMem(team, 0, h, 0, 4 * MIB, 0) + cuMulticastBindMem(team, 4 * MIB, h, 4 * MIB, 4 * MIB, 0), 0);
    EXPECT_EQ(cuMulticastBindMem(team, 0, h, 0, 2 * MIB, 0), CUDA_ERROR_INVALID_VALUE); /* taken */
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 10 * MIB);
    EXPECT_EQ(cuMulticastUnbind(team, 0, 0, 4 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 10 * MIB);
    EXPECT_EQ(cuMemExportToShareableHandle(&fd, team, 1, 0) + cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, 1), 0);
    EXPECT_EQ(cuMulticastUnbind(team, 0, 4 * MIB, 4 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 2 * MIB);
    EXPECT_EQ(cuMemRelease(team) + cuMemRelease(again), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    close(fd);
}

static void memory_bound_by_its_address_outlives_its_mapping(void)
{
    CUmulticastObjectProp p = {.numDevices = 1, .size = 4 * MIB};
    CUmemGenericAllocationHandle team, h;
    CUdeviceptr va;
    EXPECT_EQ(cuMulticastCreate(&team, &p) + cuMulticastAddDevice(team, 0) + cuMemCreate(&h, 4 * MIB, &both_ways, 0), 0);
    EXPECT_EQ(cuMemAddressReserve(&va, 4 * MIB, 0, 0, 0) + cuMemMap(va, 4 * MIB, 0, h, 0), 0);
    EXPECT_EQ(cuMulticastBindAddr(team, 0, va, 4 * MIB, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(va, 4 * MIB) + cuMemRelease(h) + cuMemAddressFree(va, 4 * MIB), 0);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    EXPECT_EQ(cuMemRelease(team), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void a_mapped_tile_of_a_sparse_array_holds_its_memory(void)
{
    CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 1024, .Height = 1024, .Format = 1, .NumChannels = 4, .Flags = 0x40};
    CUmemGenericAllocationHandle h, other;
    CUarray a;
    EXPECT_EQ(cuArray3DCreate_v2(&a, &d) + cuMemCreate(&h, 4 * MIB, &both_ways, 0) + cuMemCreate(&other, 2 * MIB, &both_ways, 0), 0);
    CUarrayMapInfo i = {.memOperationType = 1, .deviceBitMask = 1, .resource.array = a, .memHandle.memHandle = h,
                        .subresource.sparseLevel = {.extentWidth = 256, .extentHeight = 256, .extentDepth = 1}};
    EXPECT_EQ(cuMemMapArrayAsync(&i, 1, NULL) + cuMemRelease(h), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    i.memHandle.memHandle = other;
    EXPECT_EQ(cuMemMapArrayAsync(&i, 1, NULL), CUDA_SUCCESS); /* replaces the first memory, which is freed */
    EXPECT_EQ(used(), CONTEXT + 2 * MIB);
    EXPECT_EQ(cuMemRelease(other), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 2 * MIB);
    EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

/* ---- a thread is cancelled in the middle of calls that open and close files ---- */

static void *export_for_ever(void *context)
{
    CUmemGenericAllocationHandle h;
    int fd;
    cuCtxSetCurrent(context);
    for (;;) {
        if (!cuMemCreate(&h, 2 * MIB, &both_ways, 0) && !cuMemExportToShareableHandle(&fd, h, 1, 0)) close(fd);
        cuMemRelease(h);
    }
    return NULL;
}

static void a_thread_that_is_cancelled_in_a_call_leaves_no_lock_behind(void)
{
    CUcontext c;
    pthread_t thread;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&c, 0), CUDA_SUCCESS);
    alarm(20); /* the test would hang */
    for (int i = 0; i < 50; i++) {
        EXPECT_EQ(pthread_create(&thread, NULL, export_for_ever, c), 0);
        usleep(1000);
        EXPECT_EQ(pthread_cancel(thread) + pthread_join(thread, NULL), 0);
        EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    }
    alarm(0);
}

int main(int argc, char **argv)
{
    CUcontext c;
    if (argc > 1 && !strcmp(argv[1], "export")) return exporter();
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&c, 0) || cuCtxSetCurrent(c)) return 1;
    RUN(an_exported_descriptor_keeps_its_memory_until_its_last_copy_is_closed);
    RUN(a_descriptor_on_its_way_keeps_the_memory_of_a_killed_exporter);
    RUN(a_fabric_handle_names_memory_and_keeps_none_alive);
    RUN(a_multicast_team_costs_a_granule_per_card_and_holds_what_is_bound);
    RUN(memory_bound_by_its_address_outlives_its_mapping);
    RUN(a_mapped_tile_of_a_sparse_array_holds_its_memory);
    RUN(a_thread_that_is_cancelled_in_a_call_leaves_no_lock_behind);
    FINISH;
}
