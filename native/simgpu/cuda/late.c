/* Linear memory passed to cuMemFreeAsync. A driver may free it in the call, when the stream reaches the free, or when a synchronisation of
 * that stream that began after the free returns (the programming guide: "not freed until the next synchronisation"). The policy chooses.
 * From the call on, the program must not use the address. Until that synchronisation a library may count the memory, whatever the driver
 * did: that is the allowance. */
#include "local.h"

#include <stdlib.h>

struct late {
    struct sim_region region;
    const struct sim_ctx *ctx; /* of the stream */
    uint32_t context, generation, allowance;
    uint64_t seq, stream, number;
    bool held;
    struct late *next;
};

static struct late *all;

static void drop(struct late *l)
{
    if (!l->held) return;
    uint32_t card = sim.devices[l->region.device].card;
    sim_drop_linear(&l->region);
    l->held = false;
    l->allowance = sim_allowance(card, SIM_LINEAR, (size_t)sim_round(l->region.size, SIM_GRANULE));
}

static void forget(struct late **at)
{
    struct late *l = *at;
    *at = l->next;
    drop(l);
    sim_give(l->allowance);
    free(l);
}

void sim_free_late(struct sim_region *r, struct sim_stream *st)
{
    struct late *l = calloc(1, sizeof *l);
    if (!l) return sim_free_region(r);
    *l = (struct late){.region = *r, .ctx = st->ctx, .context = st->ctx->id, .generation = st->ctx->generation, .seq = st->last_seq,
                       .stream = st->id, .number = ++sim.next_number, .held = true, .next = all};
    sim_region_remove(r);
    all = l;
    if (sim.policy.linear_free_async <= SIM_FREE_AT_ONCE) drop(l);
}

/* Any later call may find that a stream has reached the free. */
void sim_late_look(void)
{
    if (!all || sim.policy.linear_free_async != SIM_FREE_IN_STREAM) return;
    for (struct late *l = all; l; l = l->next)
        if (l->held && sim_work_done(l->context, l->generation, l->seq)) drop(l);
}

/* A synchronisation returns, of the stream, or, without a stream, of the whole context. It began when numbers were at `from`. */
void sim_late_synchronised(const struct sim_ctx *ctx, const struct sim_stream *st, uint64_t from)
{
    for (struct late **at = &all; *at;) {
        const struct late *l = *at;
        if (l->ctx == ctx && (!st || l->stream == st->id) && l->number <= from) forget(at);
        else at = &(*at)->next;
    }
}

/* The context ends, with all memory that was allocated or freed in it. */
void sim_late_forget(const struct sim_ctx *ctx)
{
    for (struct late **at = &all; *at;) {
        if ((*at)->ctx == ctx || (*at)->region.ctx == ctx) forget(at);
        else at = &(*at)->next;
    }
}
