/* While all workers are paused one worker asks for exactly what is left, which it must get, and for a granule more, which
 * it must not. What cuMemGetInfo shows must be what is left. Where a library may count more than is held, what is left lies between
 * two figures: it must get the smaller one, and not a granule more than the larger one. */
#include "lane.h"

#include <unistd.h>

#define LOOK_US 120000

/* Nothing that asking for memory could give back first: what is held must not change under the question. And a look at
 * what is free, for which the library looks for the dead. */
static void tidy(void)
{
    CUmemoryPool pool;
    size_t free_bytes, total;
    cuMemGetInfo_v2(&free_bytes, &total);
    if (board->wild) usleep(LOOK_US); /* the library compares its figure with the driver's: what it corrects, it corrects now */
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
        cuMemFree_v2(p); /* room that was made for it (pools of other threads) is still there */
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
