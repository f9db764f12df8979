/* The exam: while all workers are paused, one worker allocates exactly what is left, which must succeed, and a granule more, which must fail.
 * cuMemGetInfo must show what is left. If a library may count more than is held, what is left is between two figures: the worker must get
 * the smaller one, and must not get a granule more than the larger one. */
#include "lane.h"

#include <unistd.h>

#define LOOK_US 120000

/* Frees everything that an allocation could cause to be freed, so that the held memory does not change during the exam. Also queries the free
 * memory, which makes the library look for dead processes. */
static void tidy(void)
{
    CUmemoryPool pool;
    size_t free_bytes, total;
    cuMemGetInfo_v2(&free_bytes, &total);
    if (board->wild) usleep(LOOK_US); /* the library compares its figure with the driver's now, and corrects it */
    cuCtxSynchronize();
    cuDeviceGraphMemTrim(self.device);
    if (self.pool) cuMemPoolTrimTo(self.pool, 0);
    if (!cuDeviceGetDefaultMemPool(&pool, self.device)) cuMemPoolTrimTo(pool, 0);
    cuMemGetInfo_v2(&free_bytes, &total);
    atomic_store(&board->exam.card, (uint32_t)self.card);
    atomic_store(&board->exam.step, EXAM_TIDIED);
}

static void look(uint64_t least, uint64_t most)
{
    size_t free_bytes = 0, total = 0;
    CUresult r = cuMemGetInfo_v2(&free_bytes, &total);
    atomic_store(&board->exam.free_shown, free_bytes);
    if (free_bytes > most) atomic_fetch_add(&board->exam.info_high, 1);
    if (r || free_bytes < least || free_bytes > most || total != board->quota[self.card]) atomic_fetch_add(&board->exam.info_wrong, 1);
}

static uint64_t left_after(uint64_t counted) { return counted < board->quota[self.card] ? board->quota[self.card] - counted : 0; }

static void ask(void)
{
    uint64_t least = left_after(atomic_load(&board->exam.most)), most = left_after(atomic_load(&board->exam.held));
    uint64_t whole = least / GRANULE * GRANULE, beyond = most / GRANULE * GRANULE + GRANULE;
    CUdeviceptr p;
    look(least, most);
    if (whole && cuMemAlloc_v2(&p, whole)) atomic_fetch_add(&board->exam.refused, 1);
    else if (whole) cuMemFree_v2(p);
    if (!cuMemAlloc_v2(&p, beyond)) {
        cuMemFree_v2(p); /* room that was made for it (in other threads' pools) still exists */
        if (judge_held(&judge, self.card) + beyond > board->quota[self.card]) atomic_fetch_add(&board->exam.passed_over, 1);
    }
    atomic_store(&board->exam.step, EXAM_DONE);
}

void exam_take_part(void)
{
    uint32_t step = atomic_load(&board->exam.step);
    if ((int)atomic_load(&board->exam.lane) != self.number) return;
    if (step == EXAM_TIDY && !self.context) atomic_store(&board->exam.step, EXAM_DECLINED);
    else if (step == EXAM_TIDY) tidy();
    if (step == EXAM_ASK) ask();
}
