/* The card's memory that modules hold. Variables have granules of their own. Code is in pieces (a function or a whole image) that share the
 * blocks of their context. A block is freed with its last piece. The policy chooses where to put a piece, within one rule
 * (docs/develop/simgpu.md): a new block is taken only for a piece that does not fit behind the last one in the newest block. This file also
 * computes the most blocks that this rule allows, for the ledger's slack. A policy that takes more ends the process. */
#include "module.h"

#include <stdlib.h>
#include <string.h>

#define KIB 1024ull
#define PIECE_UNIT (64 * KIB)
#define FUNCTION_UNIT (4 * KIB)
#define LARGE (256 * KIB)

struct sim_block {
    struct sim_ctx *ctx;
    uint32_t charge, pieces;
    uint64_t used; /* the place of a freed piece stays empty */
    struct sim_block *next;
};

static struct sim_block *blocks; /* the newest first */

/* What the table of bounds grants the blocks of a context. */
struct room {
    struct sim_ctx *ctx;
    uint64_t weight, pieces;
    struct room *next;
};
static struct room *rooms;

static uint64_t in_percent(uint64_t bytes) { return bytes * sim.policy.module_percent / 100; }

/* ---- which program ---- */

static bool runs_on(const struct sim_image *i, unsigned arch)
{
    if (!i->arch) return true;
    return i->text ? i->arch <= arch : i->arch / 10 == arch / 10 && i->arch <= arch;
}

/* The newest machine code that runs on the card, else the newest text. Some policies prefer text, like CUDA_FORCE_PTX_JIT. NULL: none
 * fits the card. */
static const struct sim_image *choose(const struct sim_module *m, const struct sim_ctx *ctx)
{
    const struct sim_model *model = sim_model_of(sim_card_of(ctx->device));
    unsigned arch = model->major * 10 + model->minor;
    bool likes_text = sim.policy.seed && sim_policy_hash(sim.policy.seed, 70) % 4 == 0;
    const struct sim_image *best = NULL;
    for (const struct sim_image *i = m->images; i; i = i->next) {
        if (!runs_on(i, arch)) continue;
        bool better = !best || (i->text == best->text ? i->arch > best->arch : i->text == likes_text);
        if (better) best = i;
    }
    return best;
}

/* ---- the table of bounds ---- */

static uint64_t least_of(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t most_of(uint64_t a, uint64_t b) { return a > b ? a : b; }

static bool has_block_of_its_own(uint64_t bytes) { return !sim.pack || sim_round(bytes, PIECE_UNIT) >= SIM_GRANULE; }

struct grant {
    uint64_t own, weight, pieces;
};

static void grant_piece(struct grant *g, uint64_t bytes)
{
    uint64_t rounded = sim_round(bytes, PIECE_UNIT);
    if (!bytes) return;
    if (has_block_of_its_own(bytes)) g->own += sim_round(bytes, SIM_GRANULE);
    else g->weight += rounded * (rounded > LARGE ? 2 : 1), g->pieces++;
}

/* Each function of an image counts like the largest one; together they count as the image at most. */
static struct grant grant_functions(const struct sim_image *i, uint64_t count)
{
    struct grant g = {0};
    uint64_t largest = 0, common = i->code_bytes;
    for (const struct sim_kernel *k = i->kernels; k; k = k->next) largest = most_of(largest, k->bytes), common -= k->bytes;
    if (!count) return g;
    uint64_t first = least_of(sim_round(common + largest, PIECE_UNIT), sim_round(i->code_bytes, PIECE_UNIT));
    grant_piece(&g, first);
    uint64_t each = sim_round(largest, FUNCTION_UNIT), left = sim_round(i->code_bytes, PIECE_UNIT) - first;
    uint64_t more = least_of(left, (count - 1) * each) + (count - 1) * FUNCTION_UNIT;
    if (each >= SIM_GRANULE) g.own += more + (count - 1) * SIM_GRANULE;
    else g.weight += more * (each > LARGE ? 2 : 1), g.pieces += count - 1;
    return g;
}

static struct grant grant_of(const struct sim_load *l)
{
    struct grant whole = {0};
    uint64_t kernels = 0, loaded = 0;
    for (const struct sim_kernel *k = l->image->kernels; k; k = k->next) kernels++;
    for (const struct sim_piece *p = l->pieces; p; p = p->next) loaded += p->kernel != NULL;
    if (l->code) loaded = kernels;
    if (l->code || (kernels && loaded == kernels)) grant_piece(&whole, l->image->code_bytes);
    if (!kernels) return whole;
    struct grant g = grant_functions(l->image, loaded);
    return (struct grant){most_of(g.own, whole.own), most_of(g.weight, whole.weight), most_of(g.pieces, whole.pieces)};
}

static struct room *room_of(struct sim_ctx *ctx)
{
    for (struct room *r = rooms; r; r = r->next)
        if (r->ctx == ctx) return r;
    struct room *r = calloc(1, sizeof *r);
    if (!r) abort();
    *r = (struct room){.ctx = ctx, .next = rooms};
    return rooms = r;
}

static uint64_t most_blocks(const struct room *r) { return least_of(r->pieces, r->weight / (SIM_GRANULE - LARGE) + 1); }

/* A library may count all blocks that the table allows. The newest block's charge carries that slack. */
static void set_slack(struct sim_ctx *ctx)
{
    uint64_t held = 0, most = most_blocks(room_of(ctx)), n = 0;
    for (const struct sim_block *b = blocks; b; b = b->next) held += b->ctx == ctx;
    sim_bound("code of a context", held * SIM_GRANULE, most * SIM_GRANULE);
    sim_lock(&sim.host);
    for (const struct sim_block *b = blocks; b; b = b->next)
        if (b->ctx == ctx) sim_allow(&sim.host, b->charge, n++ || most < held ? 0 : (most - held) * SIM_GRANULE);
    sim_unlock(&sim.host);
}

/* ---- blocks ---- */

static struct sim_block *block_for(struct sim_ctx *ctx, uint64_t bytes)
{
    for (struct sim_block *b = blocks; b && sim.policy.module_packed; b = b->next) {
        if (b->ctx != ctx) continue;
        if (b->used + bytes <= SIM_GRANULE) return b;
        if (sim.policy.module_newest) break;
    }
    struct sim_block *b = calloc(1, sizeof *b);
    if (!b || !(b->charge = sim_take(ctx->card, SIM_MODULE, SIM_GRANULE, bytes))) return free(b), NULL;
    b->ctx = ctx;
    b->next = blocks;
    return blocks = b;
}

static void leave_block(struct sim_block *b)
{
    if (--b->pieces) return;
    for (struct sim_block **p = &blocks; *p; p = &(*p)->next)
        if (*p == b) {
            *p = b->next;
            break;
        }
    sim_give(b->charge);
    free(b);
}

/* ---- pieces ---- */

static void count(struct sim_load *l, struct grant before)
{
    struct grant now = grant_of(l);
    struct room *r = room_of(l->ctx);
    r->weight += now.weight - before.weight;
    r->pieces += now.pieces - before.pieces;
    set_slack(l->ctx);
}

/* Adds a piece to a load: of this function, or, if NULL, of the whole image with all its functions. */
static bool take_piece(struct sim_load *l, const struct sim_kernel *kernel, uint64_t bytes, uint64_t unit)
{
    struct grant before = grant_of(l);
    struct sim_piece *p = calloc(1, sizeof *p);
    uint64_t taken = in_percent(bytes);
    if (!p) return false;
    if (unit > sim.policy.module_unit) unit = sim.policy.module_unit;
    if (has_block_of_its_own(taken)) p->charge = sim_take(l->ctx->card, SIM_MODULE, sim_round(taken, sim.granule), taken);
    else if ((p->block = block_for(l->ctx, sim_round(taken, unit)))) p->block->used += sim_round(taken, unit), p->block->pieces++;
    if (!p->charge && !p->block) return free(p), false;
    p->kernel = kernel;
    p->next = l->pieces;
    l->pieces = p;
    if (!kernel) l->code = true;
    if (p->charge) {
        uint64_t own = grant_of(l).own - before.own, held = sim_round(taken, SIM_GRANULE);
        sim_lock(&sim.host);
        sim_allow(&sim.host, p->charge, own > held ? own - held : 0);
        sim_unlock(&sim.host);
    }
    count(l, before);
    return true;
}

static void drop_pieces(struct sim_load *l)
{
    struct room *r = room_of(l->ctx);
    uint64_t pieces = grant_of(l).pieces;
    for (struct sim_piece *p = l->pieces, *next; p; p = next) {
        next = p->next;
        if (p->block) leave_block(p->block);
        sim_give(p->charge);
        free(p);
    }
    l->pieces = NULL;
    l->code = false;
    r->pieces -= pieces;
    r->weight = least_of(r->weight, r->pieces * (SIM_GRANULE - LARGE));
    set_slack(l->ctx);
}

/* ---- loads ---- */

struct sim_load *sim_load_of(struct sim_module *m, struct sim_ctx *ctx, bool make)
{
    ctx = sim_owner(ctx);
    for (struct sim_load *l = m->loads; l; l = l->next)
        if (l->ctx == ctx) return l;
    const struct sim_image *image = make ? choose(m, ctx) : NULL;
    struct sim_load *l = image ? calloc(1, sizeof *l) : NULL;
    if (!l) return NULL;
    *l = (struct sim_load){.ctx = ctx, .image = image, .next = m->loads};
    return m->loads = l;
}

/* The answer where sim_load_of returned NULL. */
CUresult sim_no_load(const struct sim_module *m, struct sim_ctx *ctx)
{
    return choose(m, sim_owner(ctx)) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_NO_BINARY_FOR_GPU;
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

static CUresult take_with_variables(struct sim_load *l, const struct sim_kernel *kernel, uint64_t bytes, uint64_t unit)
{
    bool variables = !l->globals_at;
    CUresult r = sim_load_globals(l);
    if (r || !bytes) return r;
    if (take_piece(l, kernel, bytes, unit)) return CUDA_SUCCESS;
    if (variables && l->globals_at) drop_globals(l); /* all or nothing */
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Loads the rest of the image as one piece. */
CUresult sim_load_code(struct sim_load *l)
{
    uint64_t bytes = l->image->code_bytes;
    if (l->code) return sim_load_globals(l);
    for (const struct sim_piece *p = l->pieces; p; p = p->next) bytes -= least_of(bytes, p->kernel->bytes);
    CUresult r = take_with_variables(l, NULL, bytes, PIECE_UNIT);
    if (!r) l->code = true;
    return r;
}

static const struct sim_kernel *kernel_of(const struct sim_load *l, const char *name)
{
    for (const struct sim_kernel *k = l->image->kernels; k; k = k->next)
        if (!strcmp(k->name, name)) return k;
    return NULL;
}

static bool has_piece(const struct sim_load *l, const struct sim_kernel *k)
{
    for (const struct sim_piece *p = l->pieces; p; p = p->next)
        if (p->kernel == k) return true;
    return false;
}

bool sim_is_loaded(const struct sim_load *l, const char *function)
{
    const struct sim_kernel *k = kernel_of(l, function);
    return l->code || (k && has_piece(l, k));
}

/* Loads one function, if the image tells its functions apart. The code that all functions share is loaded with the first. */
CUresult sim_load_one(struct sim_load *l, const char *function)
{
    const struct sim_kernel *k = sim.policy.module_functions ? kernel_of(l, function) : NULL;
    if (!k || l->code) return sim_load_code(l);
    if (has_piece(l, k)) return sim_load_globals(l);
    if (l->pieces) return take_with_variables(l, k, k->bytes, FUNCTION_UNIT);
    uint64_t common = l->image->code_bytes;
    for (const struct sim_kernel *other = l->image->kernels; other; other = other->next) common -= other->bytes;
    return take_with_variables(l, k, common + k->bytes, PIECE_UNIT);
}

/* If the context ends, the region of the variables is freed with it. */
void sim_load_drop(struct sim_load *l, bool with_context)
{
    drop_pieces(l);
    if (l->globals_at && !with_context) drop_globals(l);
    sim_functions_free(l->functions);
    free(l);
}

void sim_code_forget(struct sim_ctx *ctx)
{
    for (struct room **p = &rooms; *p; p = &(*p)->next)
        if ((*p)->ctx == ctx) {
            struct room *r = *p;
            *p = r->next;
            free(r);
            return;
        }
}
