/* What modules hold of the card: variables in granules of their own; code in granules of its own too, or, as a policy may have
 * it, in blocks that the modules of a context share. A block goes back with its last piece. Never does the code of a load take
 * more than its bytes in whole granules. */
#include "module.h"

#include <stdlib.h>

struct sim_block {
    struct sim_ctx *ctx;
    uint32_t charge, pieces;
    uint64_t used; /* pieces that went leave their place empty */
    struct sim_block *next;
};

static struct sim_block *blocks;

static uint64_t in_percent(uint64_t bytes) { return bytes * sim.policy.module_percent / 100; }

/* ---- which program ---- */

static bool runs_on(const struct sim_image *i, unsigned arch)
{
    if (!i->arch) return true;
    return i->text ? i->arch <= arch : i->arch / 10 == arch / 10 && i->arch <= arch;
}

/* The newest machine code that the card understands, else the newest text; some policies have a liking for text, as
 * CUDA_FORCE_PTX_JIT has. For a card that nothing fits, the largest. */
static const struct sim_image *choose(const struct sim_module *m, const struct sim_ctx *ctx)
{
    const struct sim_model *model = sim_model_of(sim_card_of(ctx->device));
    unsigned arch = model->major * 10 + model->minor;
    bool likes_text = sim.policy.seed && sim_policy_hash(sim.policy.seed, 70) % 4 == 0;
    const struct sim_image *best = NULL, *largest = m->images;
    for (const struct sim_image *i = m->images; i; i = i->next) {
        if (i->code_bytes + i->global_bytes > largest->code_bytes + largest->global_bytes) largest = i;
        if (!runs_on(i, arch)) continue;
        bool better = !best || (i->text == best->text ? i->arch > best->arch : i->text == likes_text);
        if (better) best = i;
    }
    return best ? best : largest;
}

/* ---- blocks ---- */

static struct sim_block *block_for(struct sim_ctx *ctx, uint64_t bytes, uint64_t *at)
{
    for (struct sim_block *b = blocks; b; b = b->next) {
        *at = sim_round(b->used, sim.policy.module_unit);
        if (b->ctx == ctx && *at + bytes <= SIM_GRANULE) return b;
    }
    struct sim_block *b = calloc(1, sizeof *b);
    *at = 0;
    if (!b || !(b->charge = sim_take(ctx->card, SIM_MODULE, SIM_GRANULE, bytes))) return free(b), NULL;
    b->ctx = ctx;
    b->next = blocks;
    return blocks = b;
}

/* A library counts a granule for each piece. */
static void set_slack(const struct sim_block *b)
{
    sim_lock(&sim.host);
    sim_allow(&sim.host, b->charge, (b->pieces - 1) * SIM_GRANULE);
    sim_unlock(&sim.host);
}

static bool take_piece(struct sim_load *l, uint64_t bytes)
{
    uint64_t at;
    struct sim_block *b = block_for(l->ctx, bytes, &at);
    if (!b) return false;
    b->used = at + bytes;
    b->pieces++;
    set_slack(b);
    l->block = b;
    return true;
}

static void give_piece(struct sim_block *b)
{
    if (--b->pieces) {
        set_slack(b);
        return;
    }
    for (struct sim_block **p = &blocks; *p; p = &(*p)->next)
        if (*p == b) {
            *p = b->next;
            break;
        }
    sim_give(b->charge);
    free(b);
}

/* ---- loads ---- */

struct sim_load *sim_load_of(struct sim_module *m, struct sim_ctx *ctx, bool make)
{
    for (struct sim_load *l = m->loads; l; l = l->next)
        if (l->ctx == ctx) return l;
    struct sim_load *l = make ? calloc(1, sizeof *l) : NULL;
    if (!l) return NULL;
    *l = (struct sim_load){.ctx = ctx, .image = choose(m, ctx), .next = m->loads};
    return m->loads = l;
}

CUresult sim_load_globals(struct sim_load *l)
{
    if (!l->image->global_bytes || l->globals_at) return CUDA_SUCCESS;
    sim_bound("variables", sim_round(in_percent(l->image->global_bytes), sim.granule), sim_round(l->image->global_bytes, sim.granule));
    return sim_alloc_linear(l->ctx, (size_t)in_percent(l->image->global_bytes), SIM_MODULE, &l->globals_at);
}

static void drop_globals(struct sim_load *l)
{
    struct sim_region *r = sim_region_at(l->globals_at);
    if (r) sim_free_region(r);
    l->globals_at = 0;
}

CUresult sim_load_code(struct sim_load *l)
{
    if (l->code) return sim_load_globals(l);
    uint64_t bytes = in_percent(l->image->code_bytes), whole = sim_round(bytes, sim.granule), most = sim_round(l->image->code_bytes, sim.granule);
    bool shared = sim.policy.module_packed && sim.pack && bytes < SIM_GRANULE, variables = !l->globals_at;
    CUresult r = sim_load_globals(l);
    if (r) return r;
    l->code = shared ? take_piece(l, bytes) : (l->charge = sim_take_within(l->ctx->card, SIM_MODULE, whole, bytes, most)) != 0;
    if (l->code) return CUDA_SUCCESS;
    if (variables && l->globals_at) drop_globals(l); /* all or nothing */
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The region of variables goes with the context, where that goes. */
void sim_load_drop(struct sim_load *l, bool with_context)
{
    if (l->block) give_piece(l->block);
    sim_give(l->charge);
    if (l->globals_at && !with_context) drop_globals(l);
    for (struct sim_function *f = l->functions, *next; f; f = next) next = f->next, f->magic = 0, free(f);
    free(l);
}
