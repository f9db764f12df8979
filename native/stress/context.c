/* The context that a lane works in: opens it, resets it with everything in it, and makes short-lived contexts beside it. */
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

/* Tries again until there is room for a context. */
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

/* Frees the lane's part of a context that other lanes continue to use. */
void context_close(void)
{
    for (int i = 0; i < STREAMS; i++) {
        begin(self.card, 0);
        end("cuStreamDestroy", cuStreamDestroy_v2(self.streams[i]), 0, 0);
    }
}

/* Stream-ordered memory outlives a context, so it is freed explicitly; everything else is freed with the context. */
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

/* Makes a context with a few things in it, and destroys it with them. */
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
