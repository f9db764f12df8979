/* stress-worker: one process of the stress run. `stress-worker WORKER SEED [PARENT]`; everything else is on the board. With PARENT it is the
 * child of a worker. */
#include "lane.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct judge judge;
struct board *board;

static void find_board(int worker)
{
    char path[300];
    snprintf(path, sizeof path, "%s/board", getenv("STRESS_DIR"));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) perror(path), _exit(3);
    close(fd);
    board = p;
    judge_open(&judge, getenv("SIMGPU_DIR"), board, container_of(board, worker));
}

/* Some workers see only one card, some see the cards in another order. */
static void choose_cards(void)
{
    static const char *const views[] = {"0", "1", "0,1", "1,0"};
    unsigned view = roll(6);
    if (view < 4) setenv("CUDA_VISIBLE_DEVICES", views[view], 1);
    else unsetenv("CUDA_VISIBLE_DEVICES");
}

static void choose_device(void)
{
    CUuuid uuid;
    int count = 0;
    if (cuInit(0) || cuDeviceGetCount(&count) || !count) fprintf(stderr, "worker %d finds no card\n", self.worker), _exit(4);
    self.device = (int)roll((uint32_t)count);
    if (cuDeviceGetUuid_v2(&uuid, self.device)) _exit(4);
    self.card = uuid.bytes[15] - 1; /* the cards file numbers them from 1 */
}

/* It must not matter how a process ends: after cleaning up, at once, or by a kill. */
static void leave(void)
{
    unsigned how = roll(4);
    if (how == 0) drop_all();
    lane_detach();
    if (how == 1) _exit(0);
    if (how == 2) raise(SIGKILL);
    exit(0);
}

/* The last worker: no other is left, so only its own contexts are held. It holds them until the judge has looked. */
static int audit(int worker)
{
    CUcontext c;
    size_t free_bytes, total;
    int count = 0;
    find_board(worker);
    if (cuInit(0) || cuDeviceGetCount(&count)) return 4;
    for (int i = 0; i < count; i++)
        if (cuDevicePrimaryCtxRetain(&c, i) || cuCtxSetCurrent(c)) return 5;
    usleep(60000); /* the library looks for dead processes every 50 ms */
    for (int i = 0; i < count; i++)
        if (cuDevicePrimaryCtxRetain(&c, i) || cuCtxSetCurrent(c) || cuMemGetInfo_v2(&free_bytes, &total)) return 6;
    atomic_store(&board->exam.step, EXAM_TIDIED);
    while (atomic_load(&board->exam.step) != EXAM_DONE) usleep(1000);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    if (!strcmp(argv[2], "audit")) return family_die_with_parent(atoi(getenv("STRESS_SUPERVISOR"))), audit(atoi(argv[1]));
    int worker = atoi(argv[1]);
    bool child = argc > 3;
    family_die_with_parent(atoi(child ? argv[3] : getenv("STRESS_SUPERVISOR")));
    find_board(worker);
    lane_attach(worker, child ? LANE_CHILD : LANE_MAIN, strtoull(argv[2], NULL, 10));
    choose_cards();
    if (!child && !roll(8) && family_twin()) child = true, lane_attach(worker, LANE_CHILD, self.seed + 1);
    if (!child) exchange_open();
    choose_device();
    if (!context_open()) leave();
    family_work(child ? 20 + (int)roll(150) : INT32_MAX);
    leave();
}
