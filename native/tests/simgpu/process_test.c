/* Several processes on one card: death, shared memory, fork. The children are forked before this process initialises the driver, or start
 * the program again: like the real driver, the simulated one does not work in a forked child of a process that uses it. */
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <fcntl.h>

static char *self;

/* Runs this program again in a role, with a pipe as its output and a socket as its input. */
static pid_t start(const char *role, int in, int out)
{
    pid_t pid = fork();
    if (pid) return pid;
    dup2(in, 10);
    dup2(out, 11);
    execl("/proc/self/exe", self, role, (char *)NULL);
    _exit(127);
}

static void setup(void)
{
    CUcontext c;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&c, 0) || cuCtxSetCurrent(c)) _exit(1);
}

static void say(char c)
{
    if (write(11, &c, 1) != 1) _exit(1);
}

static char hear(int fd)
{
    char c = 0;
    return read(fd, &c, 1) == 1 ? c : 0;
}

/* ---- roles ---- */

static int hold_a_gigabyte(void)
{
    CUdeviceptr p;
    setup();
    if (cuMemAlloc_v2(&p, 1024 * MIB)) return 1;
    say('x');
    pause();
    return 0;
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

/* Maps the memory that it is sent, reads the word there, doubles it, and keeps the memory until it is told to end. */
static int import_a_handle(void)
{
    CUmemGenericAllocationHandle h;
    CUdeviceptr va;
    unsigned word;
    setup();
    int fd = receive_fd(10);
    if (cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, 1)) return 2;
    if (cuMemAddressReserve(&va, 8 * MIB, 0, 0, 0) || cuMemMap(va, 8 * MIB, 0, h, 0)) return 3;
    if (cuMemcpyDtoH_v2(&word, va + 4096, 4)) return 4;
    word *= 2;
    if (cuMemcpyHtoD_v2(va + 4096, &word, 4)) return 5;
    say('x');
    hear(10);
    return 0;
}

static int open_an_ipc_handle(void)
{
    CUipcMemHandle h;
    CUdeviceptr p;
    unsigned word = 0;
    setup();
    if (read(10, &h, sizeof h) != sizeof h || cuIpcOpenMemHandle_v2(&p, h, 1)) return 2;
    if (cuMemcpyDtoH_v2(&word, p, 4) || word != 77) return 3;
    word = 78;
    if (cuMemcpyHtoD_v2(p, &word, 4)) return 4;
    unsigned long long mine = used();
    if (cuIpcCloseMemHandle(p) || used() != mine) return 5;
    say('x');
    return 0;
}

/* ---- tests ---- */

static void *allocate_and_free(void *context)
{
    CUdeviceptr p[16];
    if (cuCtxSetCurrent(context)) return (void *)1;
    for (unsigned round = 0; round < 200; round++) {
        for (unsigned i = 0; i < 16; i++)
            if (cuMemAlloc_v2(&p[i], (i + 1) * 77777)) return (void *)1;
        for (unsigned i = 0; i < 16; i++)
            if (cuMemFree_v2(p[i])) return (void *)1;
    }
    return NULL;
}

static void threads_of_one_process_do_not_disturb_each_other(void)
{
    pthread_t threads[4];
    CUcontext c;
    void *result;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&c, 0), CUDA_SUCCESS);
    for (int i = 0; i < 4; i++) EXPECT_EQ(pthread_create(&threads[i], NULL, allocate_and_free, c), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &result);
        EXPECT(!result);
    }
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void what_a_killed_process_held_comes_back(void)
{
    int out[2];
    EXPECT_EQ(pipe(out), 0);
    pid_t pid = start("hold", 0, out[1]);
    EXPECT_EQ(hear(out[0]), 'x');
    EXPECT_EQ(used(), 2 * CONTEXT + 1024 * MIB);
    kill(pid, SIGKILL);
    double killed = seconds();
    while (used() != CONTEXT && seconds() - killed < 2) usleep(1000);
    EXPECT(seconds() - killed < soon());
    waitpid(pid, NULL, 0);
    EXPECT_EQ(used(), CONTEXT);
}

static void memory_held_by_the_dead_does_not_make_the_living_fail(void)
{
    int out[2];
    CUdeviceptr p;
    EXPECT_EQ(pipe(out), 0);
    pid_t pid = start("hold", 0, out[1]);
    EXPECT_EQ(hear(out[0]), 'x');
    EXPECT_EQ(cuMemAlloc_v2(&p, 3000 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 3000 * MIB), CUDA_SUCCESS); /* at once, without waiting for a reaper */
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
}

static FILE *ledger(const char *command)
{
    char path[512];
    snprintf(path, sizeof path, "%s/simgpu/simgpu-ctl %s", getenv("OUT") ? getenv("OUT") : "build", command);
    return popen(path, "r");
}

/* The container's peak on the first card, from simgpu's ledger. */
static unsigned long long peak(void)
{
    char text[65536];
    unsigned long long bytes = 0;
    FILE *p = ledger("json");
    size_t n = p ? fread(text, 1, sizeof text - 1, p) : 0;
    text[n] = 0;
    char *at = strstr(text, "\"containers\"");
    if (at && (at = strstr(at, "\"peak\": "))) bytes = strtoull(at + 8, NULL, 10);
    if (p) pclose(p);
    return bytes;
}

static void what_a_dead_process_held_is_in_no_later_peak(void)
{
    int out[2];
    CUdeviceptr p;
    EXPECT_EQ(pipe(out), 0);
    EXPECT_EQ(pclose(ledger("peaks")), 0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 2000 * MIB) + cuMemFree_v2(p), CUDA_SUCCESS);
    for (int i = 0; i < 3; i++) {
        pid_t pid = start("hold", 0, out[1]);
        EXPECT_EQ(hear(out[0]), 'x');
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        EXPECT_EQ(cuMemAlloc_v2(&p, 1500 * MIB) + cuMemFree_v2(p), CUDA_SUCCESS);
    }
    EXPECT_EQ(peak(), 2000 * MIB + CONTEXT);
}

static void exported_memory_is_charged_once_and_lives_with_its_last_holder(void)
{
    int sockets[2], out[2], fd, status, waited = 0;
    CUmemGenericAllocationHandle h;
    CUdeviceptr va;
    unsigned word = 21;
    CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 1, .location = {1, 0}};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) + pipe(out), 0);
    EXPECT_EQ(cuMemCreate(&h, 8 * MIB, &prop, 0) + cuMemAddressReserve(&va, 8 * MIB, 0, 0, 0) + cuMemMap(va, 8 * MIB, 0, h, 0), 0);
    EXPECT_EQ(cuMemcpyHtoD_v2(va + 4096, &word, 4), CUDA_SUCCESS);
    EXPECT_EQ(cuMemExportToShareableHandle(&fd, h, 1, 0), CUDA_SUCCESS);
    pid_t pid = start("import", sockets[1], out[1]);
    send_fd(sockets[0], fd);
    EXPECT_EQ(hear(out[0]), 'x');
    EXPECT_EQ(used(), 2 * CONTEXT + 8 * MIB);
    EXPECT_EQ(cuMemcpyDtoH_v2(&word, va + 4096, 4), CUDA_SUCCESS);
    EXPECT_EQ(word, 42);
    EXPECT_EQ(cuMemUnmap(va, 8 * MIB) + cuMemRelease(h), CUDA_SUCCESS);
    EXPECT_EQ(used(), 2 * CONTEXT + 8 * MIB); /* the other process still holds it */
    EXPECT_EQ(write(sockets[0], "q", 1), 1);
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    close(fd);
    while (used() != CONTEXT && waited++ < 100) usleep(1000);
    EXPECT_EQ(used(), CONTEXT);
}

static void an_ipc_handle_gives_the_same_bytes_at_no_charge(void)
{
    int sockets[2], out[2], status;
    CUdeviceptr p, own;
    CUipcMemHandle h;
    unsigned word = 77;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) + pipe(out), 0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 1000) + cuMemcpyHtoD_v2(p, &word, 4), CUDA_SUCCESS);
    EXPECT_EQ(cuIpcGetMemHandle(&h, p), CUDA_SUCCESS);
    EXPECT_EQ(cuIpcOpenMemHandle_v2(&own, h, 1), CUDA_ERROR_INVALID_CONTEXT); /* not allowed within one process */
    pid_t pid = start("ipc", sockets[1], out[1]);
    EXPECT_EQ(write(sockets[0], &h, sizeof h), sizeof h);
    EXPECT_EQ(hear(out[0]), 'x');
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(cuMemcpyDtoH_v2(&word, p, 4), CUDA_SUCCESS);
    EXPECT_EQ(word, 78);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void the_child_of_an_initialised_process_is_refused_and_costs_nothing(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        CUdeviceptr p;
        _exit(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED && cuMemAlloc_v2(&p, 1) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(used(), CONTEXT);
}

static void a_process_that_closes_every_descriptor_goes_on_and_is_not_taken_for_dead(void)
{
    CUdeviceptr p;
    EXPECT_EQ(cuMemAlloc_v2(&p, 10 * MIB), CUDA_SUCCESS);
    for (int fd = 12; fd < 1024; fd++) close(fd);
    int out[2];
    EXPECT_EQ(pipe(out), 0);
    pid_t pid = start("hold", 0, out[1]);
    EXPECT_EQ(hear(out[0]), 'x'); /* it looked for dead processes when it joined */
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    usleep(30000);
    EXPECT_EQ(used(), CONTEXT + 10 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc > 1 && !strcmp(argv[1], "hold")) return hold_a_gigabyte();
    if (argc > 1 && !strcmp(argv[1], "import")) return import_a_handle();
    if (argc > 1 && !strcmp(argv[1], "ipc")) return open_an_ipc_handle();
    setup();
    RUN(threads_of_one_process_do_not_disturb_each_other);
    RUN(what_a_killed_process_held_comes_back);
    RUN(memory_held_by_the_dead_does_not_make_the_living_fail);
    RUN(what_a_dead_process_held_is_in_no_later_peak);
    RUN(exported_memory_is_charged_once_and_lives_with_its_last_holder);
    RUN(an_ipc_handle_gives_the_same_bytes_at_no_charge);
    RUN(the_child_of_an_initialised_process_is_refused_and_costs_nothing);
    RUN(a_process_that_closes_every_descriptor_goes_on_and_is_not_taken_for_dead);
    FINISH;
}
