/* Small allocations: pieces of one context share blocks of 2 MiB, in units of the policy's size. A block is freed with its last piece. The
 * policy chooses the block and the position for a piece. */
#include "local.h"

#include <stdlib.h>
#include <string.h>

#define LEAST_UNIT 256
#define MOST_UNITS (SIM_GRANULE / LEAST_UNIT)

struct slab {
    struct sim_ctx *ctx;
    uint64_t va;
    uint32_t charge, used, size_class;
    struct sim_bytes *bytes;
    struct slab *next;
    uint8_t taken[MOST_UNITS];
};

struct place {
    struct slab *slab;
    uint32_t at, length; /* the whole gap, in units */
};

static struct slab *slabs;
static uint64_t draws; /* for the random fit */

static uint32_t units_in_a_slab(void) { return (uint32_t)(SIM_GRANULE / sim.policy.small_unit); }
static uint32_t units_of(size_t size) { return (uint32_t)((size + sim.policy.small_unit - 1) / sim.policy.small_unit); }

/* Size class by powers of two; 0 if all sizes share blocks. */
static uint32_t class_of(size_t size)
{
    return sim.policy.small_classes ? 64 - (uint32_t)__builtin_clzll((uint64_t)size) : 0;
}

/* The next gap of at least `wanted` units. For the first fit the gap's full length does not matter. */
static bool next_gap(const struct slab *s, uint32_t from, uint32_t wanted, struct place *out)
{
    uint32_t units = units_in_a_slab();
    for (uint32_t i = from, run = 0; i < units; i++) {
        run = s->taken[i] ? 0 : run + 1;
        bool whole = i + 1 == units || s->taken[i + 1] || sim.policy.small_fit == SIM_FIT_FIRST;
        if (run < wanted || !whole) continue;
        *out = (struct place){(struct slab *)s, i + 1 - run, run};
        return true;
    }
    return false;
}

/* Is the new gap, the last of `seen`, a better place than the best so far? */
static bool better(const struct place *new, const struct place *best, uint64_t seen)
{
    if (!best->slab) return true;
    if (sim.policy.small_fit == SIM_FIT_BEST) return new->length < best->length;
    return sim_policy_hash(sim.policy.seed, ++draws) % seen == 0;
}

static bool find_place(const struct sim_ctx *ctx, size_t size, uint32_t wanted, struct place *best)
{
    struct place gap;
    uint64_t seen = 0;
    *best = (struct place){0};
    for (const struct slab *s = slabs; s; s = s->next) {
        if (s->ctx != ctx || s->size_class != class_of(size) || units_in_a_slab() - s->used < wanted) continue;
        for (uint32_t from = 0; next_gap(s, from, wanted, &gap); from = gap.at + gap.length) {
            if (better(&gap, best, ++seen)) *best = gap;
            if (sim.policy.small_fit == SIM_FIT_FIRST) return true;
        }
    }
    if (best->slab && sim.policy.small_fit == SIM_FIT_RANDOM)
        best->at += (uint32_t)(sim_policy_hash(sim.policy.seed, ++draws) % (best->length - wanted + 1));
    return best->slab != NULL;
}

static struct slab *new_slab(struct sim_ctx *ctx, uint32_t size_class)
{
    struct slab *s = calloc(1, sizeof *s);
    struct sim_bytes *bytes = sim_bytes_new(SIM_GRANULE);
    uint32_t charge = s && bytes ? sim_take_linear(ctx->card, SIM_SLAB, SIM_GRANULE, 0) : 0;
    if (!charge) {
        sim_bytes_drop(bytes);
        return free(s), NULL;
    }
    s->ctx = ctx;
    s->charge = charge;
    s->size_class = size_class;
    s->bytes = bytes;
    s->va = sim_reserve_address(SIM_GRANULE);
    s->next = slabs;
    return slabs = s;
}

static void drop_slab(struct slab *s)
{
    for (struct slab **p = &slabs; *p; p = &(*p)->next)
        if (*p == s) {
            *p = s->next;
            break;
        }
    sim_give(s->charge);
    sim_release_address(s->va, SIM_GRANULE);
    sim_bytes_drop(s->bytes);
    free(s);
}

CUresult sim_alloc_small(struct sim_ctx *ctx, size_t size, CUdeviceptr *out)
{
    uint32_t units = units_of(size), unit = sim.policy.small_unit;
    struct place p;
    if (!find_place(ctx, size, units, &p)) p = (struct place){.slab = new_slab(ctx, class_of(size))};
    if (!p.slab) return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_region r = {.va = p.slab->va + (uint64_t)p.at * unit, .size = size, .offset = (size_t)p.at * unit, .kind = R_SMALL,
                           .ctx = ctx, .device = ctx->device, .bytes = p.slab->bytes, .owner = p.slab};
    if (!sim_region_add(r)) return CUDA_ERROR_OUT_OF_MEMORY;
    memset(p.slab->taken + p.at, 1, units);
    p.slab->used += units;
    *out = r.va;
    return CUDA_SUCCESS;
}

void sim_drop_small(const struct sim_region *r)
{
    struct slab *s = r->owner;
    uint32_t units = units_of(r->size);
    memset(s->taken + r->offset / sim.policy.small_unit, 0, units);
    s->used -= units;
    if (!s->used) drop_slab(s);
}

uint32_t sim_slab_charge(const struct sim_region *r) { return ((struct slab *)r->owner)->charge; }
