/* Chooses a lane's next operation: fill an empty slot with a thing of a random kind, empty a full slot, or something else. */
#include "lane.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* KINDS=small,graph,child restricts a run to these kinds. */
static bool wanted(const char *name)
{
    static const char *list;
    char word[40];
    if (!list && !(list = getenv("KINDS"))) list = "";
    snprintf(word, sizeof word, "%s", name);
    for (const char *at = list; (at = strstr(at, word)); at++)
        if ((at == list || at[-1] == ',') && (!at[strlen(word)] || at[strlen(word)] == ',')) return true;
    return !*list;
}

static const struct kind *const all_kinds[] = {linear_kinds, stream_kinds, shared_kinds};

static const struct kind *some_kind(void) /* by weight: the first pass adds them up */
{
    unsigned sum = 0;
    for (unsigned pass = 0;; pass++) {
        unsigned at = pass ? roll(sum) : 0;
        for (unsigned i = 0; i < 3; i++)
            for (const struct kind *k = all_kinds[i]; k->name; k++) {
                unsigned weight = wanted(k->name) ? k->weight : 0;
                if (!pass) sum += weight;
                else if (at < weight) return k;
                else at -= weight;
            }
    }
}

static void drop(struct thing *t)
{
    const struct kind *kind = t->kind;
    if (!kind) return;
    t->kind = NULL; /* first, so that it is tried only once */
    kind->drop(t);
}

static void fill(struct thing *t)
{
    const struct kind *kind = some_kind();
    memset(t, 0, sizeof *t);
    if (kind->make(t)) t->kind = kind;
}

void drop_all(void)
{
    for (int i = 0; i < SLOTS; i++) drop(&self.things[i]);
    if (!self.pool) return;
    begin(self.card, 0);
    end("cuMemPoolDestroy", cuMemPoolDestroy(self.pool), 0, 0);
    self.pool = NULL;
}

/* The context is gone, and these things with it. */
void drop_those_of_context(void)
{
    for (int i = 0; i < SLOTS; i++)
        if (self.things[i].kind && !self.things[i].kind->outlives_context) self.things[i].kind = NULL;
}

static void look_around(void)
{
    size_t free_bytes, total;
    begin(self.card, 0);
    CUresult r = end("cuMemGetInfo", cuMemGetInfo_v2(&free_bytes, &total), 0, 0);
    (void)r;
}

static void settle(void)
{
    CUmemoryPool pool = self.pool;
    begin(self.card, 0);
    switch (roll(4)) {
    case 0: end("cuStreamSynchronize", cuStreamSynchronize(self.streams[roll(STREAMS)]), 0, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); return;
    case 1: end("cuCtxSynchronize", cuCtxSynchronize(), 0, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); return;
    case 2: end("cuDeviceGetDefaultMemPool", pool ? 0 : cuDeviceGetDefaultMemPool(&pool, self.device), 0, 0); break;
    default: end("cuDeviceGraphMemTrim", cuDeviceGraphMemTrim(self.device), 0, 0); return;
    }
    begin(self.card, 0);
    end("cuMemPoolTrimTo", cuMemPoolTrimTo(pool, roll(2) ? 0 : 40 * MIB), 0, 0);
}

/* Rare actions: their probability in thousandths, whether only main lanes perform them, and the function. */
static const struct occasion {
    const char *name;
    unsigned per_mille;
    bool main_only;
    void (*act)(void);
} occasions[] = {
    {"info", 40, false, look_around},   {"settle", 30, false, settle},      {"share", 30, false, exchange_something},
    {"share", 30, false, exchange_receive}, {"churn", 3, false, context_churn}, {"threads", 2, true, family_threads},
    {"child", 2, true, family_child},   {"reset", 1, true, context_reset},
};

void one_operation(void)
{
    unsigned what = roll(1000);
    struct thing *t = &self.things[roll(SLOTS)];
    bool main_thread = self.number % LANES_EACH == LANE_MAIN;
    if (board->threads && main_thread && !roll(10)) return family_threads();
    for (unsigned i = 0; i < sizeof occasions / sizeof *occasions; i++) {
        const struct occasion *o = &occasions[i];
        if (what < o->per_mille && (main_thread || !o->main_only) && wanted(o->name)) return o->act();
        what = what < o->per_mille ? 1000 : what - o->per_mille;
    }
    if (t->kind) drop(t);
    else fill(t);
}
