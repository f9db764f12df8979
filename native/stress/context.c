/* The context that a lane works in: opening, resetting with everything in it, and short-lived ones beside it. */
#include "lane.h"

#include <time.h>

static bool make_streams(void)
{
    for (int i = 0; i < STREAMS; i++) {
        begin(self.card, 0);
        if (end("cuStreamCreate", cuStreamCreate(&self.streams[i], i & 1), 0, 0)) return false;
    }
    return true;
}

/* Takes its turn until there is room for one. */
static bool retain(void)
{
    while (lane_goes_on()) {
        begin(self.card, board->context_bytes);
        CUresult r = end("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&self.context, self.device), board->context_bytes, 0);
        if (!r) return true;
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    return false;
}

bool context_open(void)
{
    if (!self.context && !retain()) return false;
    begin(self.card, 0);
    if (end("cuCtxSetCurrent", cuCtxSetCurrent(self.context), 0, 0)) return false;
    return make_streams();
}

/* Gives back the lane's part of a context that others go on using. */
void context_close(void)
{
    for (int i = 0; i < STREAMS; i++) {
        begin(self.card, 0);
        end("cuStreamDestroy", cuStreamDestroy_v2(self.streams[i]), 0, 0);
    }
}

/* What streams ordered is freed by hand, as it outlives a context; the rest goes down with it. */
void context_reset(void)
{
    for (int i = 0; i < SLOTS; i++) {
        struct thing *t = &self.things[i];
        for (const struct kind *k = stream_kinds; t->kind && k->name; k++)
            if (t->kind == k) t->kind = NULL, k->drop(t);
    }
    drop_those_of_context();
    begin(self.card, 0);
    if (self.pool) end("cuMemPoolDestroy", cuMemPoolDestroy(self.pool), 0, 0);
    else end("cuDeviceGraphMemTrim", cuDeviceGraphMemTrim(self.device), 0, 0);
    self.pool = NULL;
    begin(self.card, 0);
    if (roll(2)) end("cuDevicePrimaryCtxReset", cuDevicePrimaryCtxReset_v2(self.device), 0, 0);
    else end("cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease_v2(self.device), 0, 0);
    self.context = NULL;
    context_open();
}

/* A context with a few things in it, destroyed with them. */
void context_churn(void)
{
    CUcontext c;
    CUdeviceptr p;
    begin(self.card, board->context_bytes);
    if (end("cuCtxCreate", cuCtxCreate_v2(&c, 0, self.device), board->context_bytes, 0)) return;
    for (unsigned i = roll(5); i > 0; i--) {
        size_t size = 1 + roll(roll(2) ? 5000 : 5 * MIB);
        begin(self.card, roundup(size, GRANULE));
        end("cuMemAlloc", cuMemAlloc_v2(&p, size), roundup(size, GRANULE), 0);
    }
    begin(self.card, 0);
    end("cuCtxDestroy", cuCtxDestroy_v2(c), 0, 0);
    begin(self.card, 0);
    end("cuCtxSetCurrent", cuCtxSetCurrent(self.context), 0, 0);
}
