/* Processes that share memory, controlled step by step: each follows orders of one letter, and answers with the driver's result. */
#ifndef WORKER_H
#define WORKER_H

#include "container.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define MOST 32

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *, const CUmulticastObjectProp *);
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice);
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t, unsigned long long);
CUresult cuMemPoolExportToShareableHandle(void *, CUmemoryPool, int, unsigned long long);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *, void *, int, unsigned long long);
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *, CUdeviceptr);
CUresult cuMemPoolImportPointer(CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *);

/* MAKE creates a handle of `size`; EXPORT returns its descriptor, FABRIC its fabric handle; IPC allocates `size` and returns its IPC handle.
 * REOPEN imports a descriptor that it opens once more by /proc/self/fd. POOL makes a pool; PIECE takes `size` from it and returns the pool's
 * descriptor and the piece's pointer; TRIM frees the piece and empties the pool. POOL_IN imports the pool and a pointer of it, PIECE_IN one
 * more pointer; PIECE_OUT frees one, POOL_OUT destroys the imported pool.
 * TEAM makes a multicast object; JOIN adds the process's card to one that it imported, BIND binds `size` of its first handle. */
enum what { MAKE = 'm', EXPORT = 'e', FABRIC = 'f', FREE = 'r', IMPORT = 'i', IMPORT_FABRIC = 'F', CLOSE = 'c', IPC = 'I', IPC_OPEN = 'O',
            IPC_CLOSE = 'C', IPC_FREE = 'R', DROP_FD = 'd', ALLOC = 'a', GIVE = 'g', USED = 'u', END = 'q',
            REOPEN = 'o', POOL = 'p', PIECE = 'P', PIECE_FREE = 'k', TRIM = 't', POOL_IN = 'x', PIECE_IN = 'X', PIECE_OUT = 'y', POOL_OUT = 'Y',
            TEAM = 'T', JOIN = 'J', BIND = 'B' };

struct message {
    char what;
    int number; /* of the object, in that process */
    CUresult result;
    unsigned long long size;
    unsigned char handle[64];
};

struct worker {
    pid_t pid;
    int socket;
};

static inline int talk(int socket, struct message *m, int fd, bool send)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {m, sizeof *m};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1};
    if (!send || fd >= 0) h.msg_control = control, h.msg_controllen = sizeof control;
    if (send && fd >= 0) {
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    if ((send ? sendmsg(socket, &h, MSG_NOSIGNAL) : recvmsg(socket, &h, MSG_CMSG_CLOEXEC)) != sizeof *m) return -2;
    fd = -1;
    if (!send && CMSG_FIRSTHDR(&h)) memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof fd);
    return fd;
}

/* ---- in the worker ---- */

struct things {
    CUmemGenericAllocationHandle made[MOST], imported[MOST];
    CUdeviceptr mapped[MOST], linear[MOST], opened[MOST], plain[MOST];
    CUdeviceptr piece[MOST], piece_in[MOST];
    CUmemoryPool pool, pool_in; /* one of each is enough */
    size_t size[MOST];
    int fd[MOST], device;
};

static inline CUresult import_one(struct things *t, struct message *m, void *from, int type)
{
    CUdeviceptr va;
    CUresult r = cuMemImportFromShareableHandle(&t->imported[m->number], from, type);
    if (!r && m->size) r = cuMemAddressReserve(&va, m->size, 0, 0, 0);
    if (!r && m->size) r = cuMemMap(va, m->size, 0, t->imported[m->number], 0);
    if (!r && m->size) t->mapped[m->number] = va, t->size[m->number] = m->size;
    return r;
}

static inline CUresult drop_import(struct things *t, int n)
{
    CUresult r = t->mapped[n] ? cuMemUnmap(t->mapped[n], t->size[n]) : CUDA_SUCCESS;
    t->mapped[n] = 0;
    return r ? r : cuMemRelease(t->imported[n]);
}

static inline CUresult import_reopened(struct things *t, struct message *m, int fd)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDWR | O_CLOEXEC);
    CUresult r = import_one(t, m, (void *)(intptr_t)again, 1);
    close(again);
    close(fd);
    return r;
}

static inline CUresult give_piece(struct things *t, struct message *m, int *answer)
{
    CUmemPoolPtrExportData pointer;
    CUresult r = cuMemAllocFromPoolAsync(&t->piece[m->number], m->size, t->pool, NULL);
    if (!r) r = cuMemPoolExportToShareableHandle(&t->fd[m->number], t->pool, 1, 0);
    if (!r) r = cuMemPoolExportPointer(&pointer, t->piece[m->number]);
    if (!r) memcpy(m->handle, &pointer, sizeof pointer), *answer = t->fd[m->number];
    return r;
}

static inline CUresult take_piece(struct things *t, struct message *m)
{
    CUmemPoolPtrExportData pointer;
    memcpy(&pointer, m->handle, sizeof pointer);
    return cuMemPoolImportPointer(&t->piece_in[m->number], t->pool_in, &pointer);
}

static inline CUresult free_and_wait(CUdeviceptr p)
{
    CUresult r = cuMemFreeAsync(p, NULL);
    return r ? r : cuCtxSynchronize();
}

static inline CUresult obey(struct things *t, struct message *m, int fd, int *answer)
{
    CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 9, .location = {1, t->device}};
    CUipcMemHandle ipc;
    size_t free_now, total;
    int n = m->number;
    CUresult r;
    switch (m->what) {
    case MAKE: return cuMemCreate(&t->made[n], m->size, &prop, 0);
    case EXPORT:
        r = cuMemExportToShareableHandle(&t->fd[n], t->made[n], 1, 0);
        *answer = r ? -1 : t->fd[n];
        return r;
    case FABRIC: return cuMemExportToShareableHandle(m->handle, t->made[n], 8, 0);
    case FREE: return cuMemRelease(t->made[n]);
    case IMPORT:
        r = import_one(t, m, (void *)(intptr_t)fd, 1);
        close(fd);
        return r;
    case IMPORT_FABRIC: return import_one(t, m, m->handle, 8);
    case CLOSE: return drop_import(t, n);
    case IPC:
        r = t->linear[n] ? CUDA_SUCCESS : cuMemAlloc_v2(&t->linear[n], m->size);
        if (!r) r = cuIpcGetMemHandle(&ipc, t->linear[n]);
        if (!r) memcpy(m->handle, &ipc, sizeof ipc);
        return r;
    case IPC_OPEN: return memcpy(&ipc, m->handle, sizeof ipc), cuIpcOpenMemHandle_v2(&t->opened[n], ipc, 1);
    case IPC_CLOSE: return cuIpcCloseMemHandle(t->opened[n]);
    case IPC_FREE: r = cuMemFree_v2(t->linear[n]); return t->linear[n] = 0, r;
    case DROP_FD: return close(t->fd[n]) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
    case ALLOC: return cuMemAlloc_v2(&t->plain[n], m->size);
    case GIVE: return cuMemFree_v2(t->plain[n]);
    case REOPEN: return import_reopened(t, m, fd);
    case POOL: return cuMemPoolCreate(&t->pool, &(CUmemPoolProps){.allocType = 1, .handleTypes = 1, .location = {1, t->device}});
    case PIECE: return give_piece(t, m, answer);
    case PIECE_FREE: return free_and_wait(t->piece[n]);
    case TRIM: return cuMemPoolTrimTo(t->pool, 0);
    case POOL_IN:
        r = cuMemPoolImportFromShareableHandle(&t->pool_in, (void *)(intptr_t)fd, 1, 0);
        close(fd);
        return r ? r : take_piece(t, m);
    case PIECE_IN: return take_piece(t, m);
    case PIECE_OUT: return free_and_wait(t->piece_in[n]);
    case POOL_OUT: return cuMemPoolDestroy(t->pool_in);
    case TEAM: return cuMulticastCreate(&t->made[n], &(CUmulticastObjectProp){.numDevices = 2, .size = m->size, .handleTypes = 1});
    case JOIN: return cuMulticastAddDevice(t->imported[n], t->device);
    case BIND: return cuMulticastBindMem(t->imported[n], 0, t->made[0], 0, m->size, 0);
    case USED: r = cuMemGetInfo_v2(&free_now, &total); return m->size = total - free_now, r;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static inline void work(int socket, int device)
{
    static struct things t;
    struct message m;
    CUcontext c;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    t.device = device;
    for (int fd = 3; fd < 256; fd++) /* closes descriptors that were being passed around when it was started */
        if (fd != socket) close(fd);
    for (;;) {
        int answer = -1, fd = talk(socket, &m, -1, false);
        if (fd == -2 || m.what == END) _exit(0);
        if (m.what == 's') m.result = cuInit(0) || cuDevicePrimaryCtxRetain(&c, device) || cuCtxSetCurrent(c);
        else m.result = obey(&t, &m, fd, &answer);
        talk(socket, &m, answer, true);
    }
}

/* ---- in the test ---- */

static inline struct worker start(int device)
{
    int s[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
    pid_t pid = fork();
    if (pid == 0) work(s[1], device);
    close(s[1]);
    return (struct worker){pid, s[0]};
}

static inline CUresult tell(struct worker w, struct message *m, int fd, int *answer)
{
    talk(w.socket, m, fd, true);
    int got = talk(w.socket, m, -1, false);
    if (answer) *answer = got;
    else if (got >= 0) close(got);
    return got == -2 ? CUDA_ERROR_UNKNOWN : m->result;
}

static inline CUresult order(struct worker w, char what, int number, unsigned long long size)
{
    struct message m = {.what = what, .number = number, .size = size};
    return tell(w, &m, -1, NULL);
}

/* A descriptor of an object that the worker made; the worker has closed its own copy. */
static inline int export_fd(struct worker w, int number)
{
    int fd = -1;
    struct message m = {.what = EXPORT, .number = number};
    EXPECT_EQ(tell(w, &m, -1, &fd), CUDA_SUCCESS);
    EXPECT_EQ(order(w, DROP_FD, number, 0), CUDA_SUCCESS);
    return fd;
}

static inline CUresult import_fd(struct worker w, int number, unsigned long long size, int fd)
{
    struct message m = {.what = IMPORT, .number = number, .size = size};
    return tell(w, &m, fd, NULL);
}

static inline CUresult import_reopened_fd(struct worker w, int number, unsigned long long size, int fd)
{
    struct message m = {.what = REOPEN, .number = number, .size = size};
    return tell(w, &m, fd, NULL);
}

/* A piece of the worker's pool: the pointer, and the pool's descriptor, of which the worker has closed its own copy. */
static inline struct message piece_of(struct worker w, int number, unsigned long long size, int *fd)
{
    struct message m = {.what = PIECE, .number = number, .size = size};
    EXPECT_EQ(tell(w, &m, -1, fd), CUDA_SUCCESS);
    EXPECT_EQ(order(w, DROP_FD, number, 0), CUDA_SUCCESS);
    return m;
}

static inline CUresult import_piece(struct worker w, int number, const struct message *piece, int fd)
{
    struct message m = *piece;
    m.what = fd < 0 ? PIECE_IN : POOL_IN;
    m.number = number;
    return tell(w, &m, fd, NULL);
}

static inline struct message handle_of(struct worker w, char what, int number, unsigned long long size)
{
    struct message m = {.what = what, .number = number, .size = size};
    EXPECT_EQ(tell(w, &m, -1, NULL), CUDA_SUCCESS);
    return m;
}

static inline CUresult open_handle(struct worker w, char what, int number, unsigned long long size, const struct message *from)
{
    struct message m = *from;
    m.what = what;
    m.number = number;
    m.size = size;
    return tell(w, &m, -1, NULL);
}

static inline unsigned long long seen_by(struct worker w)
{
    struct message m = {.what = USED};
    EXPECT_EQ(tell(w, &m, -1, NULL), CUDA_SUCCESS);
    return m.size;
}

static inline void begin(struct worker w) { EXPECT_EQ(order(w, 's', 0, 0), CUDA_SUCCESS); }

static inline void end(struct worker w, bool killed)
{
    int status;
    if (killed) kill(w.pid, SIGKILL);
    else talk(w.socket, &(struct message){.what = END}, -1, true);
    waitpid(w.pid, &status, 0);
    EXPECT(killed ? WIFSIGNALED(status) : status == 0);
    close(w.socket);
}

#endif
