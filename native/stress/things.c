/* What a lane does next: fill an empty slot with a thing of a random kind, empty a full one, or something else. */
#include "lane.h"

#include <string.h>

static const struct kind *const all_kinds[] = {linear_kinds, stream_kinds, shared_kinds};

static const struct kind *some_kind(void)
{
    unsigned sum = 0;
    for (unsigned pass = 0;; pass++) {
        unsigned at = pass ? roll(sum) : 0;
        for (unsigned i = 0; i < 3; i++)
            for (const struct kind *k = all_kinds[i]; k->name; k++) {
                if (!pass) sum += k->weight;
                else if (at < k->weight) return k;
                else at -= k->weight;
            }
    }
}

static void drop(struct thing *t)
{
    const struct kind *kind = t->kind;
    if (!kind) return;
    t->kind = NULL; /* first: it is tried once */
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

/* The context is gone and took them along. */
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

void one_operation(void)
{
    unsigned what = roll(1000);
    struct thing *t = &self.things[roll(SLOTS)];
    bool main_thread = self.number % LANES_EACH == LANE_MAIN;
    if (what < 40) look_around();
    else if (what < 70) settle();
    else if (what < 100) share_something();
    else if (what < 130) share_receive();
    else if (what < 133) context_churn();
    else if (what < 135 && main_thread) family_threads();
    else if (what < 137 && main_thread) family_child();
    else if (what < 138 && main_thread) context_reset();
    else if (t->kind) drop(t);
    else fill(t);
}
