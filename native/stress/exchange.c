/* Memory shared by several workers: handles sent as descriptors over Unix sockets, and IPC handles sent as bytes. */
#include "lane.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct letter {
    int is_ipc;
    uint64_t size;
    CUipcMemHandle ipc;
};

static int box = -1;

static struct sockaddr_un address(int worker)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s/box-%d", getenv("STRESS_DIR"), worker);
    return a;
}

void exchange_open(void)
{
    struct sockaddr_un a = address(self.worker);
    box = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    unlink(a.sun_path);
    if (box >= 0 && bind(box, (struct sockaddr *)&a, sizeof a) != 0) close(box), box = -1;
}

/* Sends to a random worker of the same container. If no process listens, or its box is full, the letter is lost. */
static void post(const struct letter *letter, int fd)
{
    int to = (int)roll(board->workers / board->containers) * (int)board->containers + container_of(board, self.worker);
    struct sockaddr_un a = address(to);
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {(void *)letter, sizeof *letter};
    struct msghdr m = {.msg_name = &a, .msg_namelen = sizeof a, .msg_iov = &v, .msg_iovlen = 1};
    if (box < 0 || to == self.worker) return;
    if (fd >= 0) {
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    sendmsg(box, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static bool fetch(struct letter *letter, int *fd)
{
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec v = {letter, sizeof *letter};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    *fd = -1;
    if (box < 0 || recvmsg(box, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof *letter) return false;
    if (m.msg_controllen >= CMSG_LEN(sizeof(int)) && CMSG_FIRSTHDR(&m)) memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof *fd);
    return true;
}

/* A descriptor in a message holds its memory, too, so the boxes must be empty while the judge compares. */
void exchange_discard(void)
{
    struct letter letter;
    int fd;
    while (fetch(&letter, &fd))
        if (fd >= 0) close(fd);
}

/* ---- handles ---- */

static void map(struct thing *t)
{
    CUdeviceptr va;
    begin(self.card, 0);
    if (end("cuMemAddressReserve", cuMemAddressReserve(&va, t->size, 0, 0, 0), 0, 0)) return;
    begin(self.card, 0);
    if (!end("cuMemMap", cuMemMap(va, t->size, 0, t->at, 0), 0, 0)) t->extra = va;
    else cuMemAddressFree(va, t->size);
}

static void unmap(struct thing *t)
{
    begin(self.card, 0);
    end("cuMemUnmap", cuMemUnmap(t->extra, t->size), 0, 0);
    begin(self.card, 0);
    end("cuMemAddressFree", cuMemAddressFree(t->extra, t->size), 0, 0);
}

static void release(const struct thing *t)
{
    begin(self.card, 0);
    end("cuMemRelease", cuMemRelease(t->at), 0, 0);
}

static bool make_handle(struct thing *t)
{
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = roll(4) ? CU_MEM_HANDLE_TYPE_POSIX_FD : 0,
                                .location = {CU_MEM_LOCATION_DEVICE, self.device}};
    t->size = (1 + roll(roll(8) ? 4 : 16)) * GRANULE;
    begin(self.card, t->size);
    if (end("cuMemCreate", cuMemCreate(&h, t->size, &prop, 0), t->size, 0)) return false;
    t->at = h;
    if (roll(3)) map(t);
    return true;
}

/* The memory lives until both handle and mapping are gone, in any order. */
static void drop_handle(struct thing *t)
{
    CUmemGenericAllocationHandle again;
    if (t->extra && !roll(4)) {
        begin(self.card, 0);
        CUresult r = end("cuMemRetainAllocationHandle", cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)t->extra), 0, 0);
        if (!r) release(t);
    }
    bool first = roll(2);
    if (first) release(t);
    if (t->extra) unmap(t);
    if (!first) release(t);
}

static bool never(struct thing *t) { return (void)t, false; }

static void close_ipc(struct thing *t)
{
    begin(self.card, 0);
    end("cuIpcCloseMemHandle", cuIpcCloseMemHandle(t->at), 0, 0);
}

enum { HANDLE, IPC };
const struct kind shared_kinds[] = {
    {"handle", 10, true, make_handle, drop_handle},
    {"ipc", 0, false, never, close_ipc},
    {0},
};

/* ---- sending and receiving ---- */

static void send_handle(const struct thing *t)
{
    struct letter letter = {.size = t->size};
    int fd = -1;
    begin(self.card, 0);
    CUresult r = cuMemExportToShareableHandle(&fd, t->at, CU_MEM_HANDLE_TYPE_POSIX_FD, 0);
    if (end("cuMemExportToShareableHandle", r, 0, CUDA_ERROR_INVALID_VALUE)) return; /* the handle was not made for export */
    post(&letter, fd);
    close(fd);
}

static void send_ipc(const struct thing *t)
{
    struct letter letter = {.is_ipc = 1};
    begin(self.card, 0);
    if (!end("cuIpcGetMemHandle", cuIpcGetMemHandle(&letter.ipc, t->at), 0, 0)) post(&letter, -1);
}

void exchange_something(void)
{
    const struct thing *t = &self.things[roll(SLOTS)];
    if (t->kind == &shared_kinds[HANDLE]) send_handle(t);
    else if (t->kind == &linear_kinds[0] || t->kind == &linear_kinds[1]) send_ipc(t);
}

/* These errors are expected: the sender may have freed the memory or died, or this process may not see the card. */
static CUresult late(CUresult r)
{
    return r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_INVALID_HANDLE || r == CUDA_ERROR_INVALID_CONTEXT ? r : CUDA_SUCCESS;
}

static bool open_ipc(struct thing *t, const struct letter *letter)
{
    CUdeviceptr p;
    begin(self.card, 0);
    CUresult r = cuIpcOpenMemHandle_v2(&p, letter->ipc, 1);
    if (end("cuIpcOpenMemHandle", r, 0, late(r))) return false;
    *t = (struct thing){.kind = &shared_kinds[IPC], .at = p};
    return true;
}

static void import(struct thing *t, const struct letter *letter, int fd)
{
    CUmemGenericAllocationHandle h;
    begin(self.card, 0);
    CUresult r = cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FD);
    if (end("cuMemImportFromShareableHandle", r, 0, late(r))) return;
    *t = (struct thing){.kind = &shared_kinds[HANDLE], .at = h, .size = letter->size};
    if (roll(2)) map(t);
}

void exchange_receive(void)
{
    struct letter letter;
    int fd;
    struct thing *t = &self.things[roll(SLOTS)];
    if (t->kind || !fetch(&letter, &fd)) return;
    if (letter.is_ipc) open_ipc(t, &letter);
    else if (fd >= 0) import(t, &letter, fd);
    if (fd >= 0) close(fd);
}
