/* Computes a policy from a seed, and prints a policy as JSON. */
#include "policy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KIB 1024u
#define MIB (1024u * KIB)
#define GRANULE (2 * MIB)
#define LARGEST_STEP (32 * MIB)
#define COUNT(list) (sizeof(list) / sizeof *(list))

static const struct sim_policy fixed = {
    .small_below = MIB, .small_unit = 512, .linear_percent = 100,
    .pool_step = LARGEST_STEP, .pool_percent = 100,
    .graph_reuse = true, .graph_shared = true, .graph_when = SIM_GRAPH_AT_UPLOAD, .graph_step = GRANULE, .graph_percent = 100,
    .module_packed = true, .module_unit = 64 * KIB, .module_functions = true, .module_percent = 100,
    .context_percent = 100,
};

/* SplitMix64: Steele, Lea, Flood, OOPSLA 2014. */
uint64_t sim_policy_hash(uint64_t seed, uint64_t n)
{
    uint64_t z = seed + (n + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

/* Every field has a number of its own, so that adding a field does not change the other fields for any seed. */
struct dice {
    uint64_t seed;
};

static uint32_t draw(const struct dice *d, uint64_t field, uint32_t sides)
{
    return (uint32_t)(sim_policy_hash(d->seed, field) >> 32) % sides;
}

static uint32_t between(const struct dice *d, uint64_t field, uint32_t least, uint32_t most)
{
    return least + draw(d, field, most - least + 1);
}

static void draw_linear(const struct dice *d, struct sim_policy *p)
{
    static const uint32_t below[] = {0, 64 * KIB, 512 * KIB, MIB}, units[] = {256, 512, 4096};
    p->small_below = below[draw(d, 1, COUNT(below))];
    p->small_unit = units[draw(d, 2, COUNT(units))];
    p->small_fit = (enum sim_fit)draw(d, 3, 3);
    p->small_classes = draw(d, 5, 3) == 0;
    p->linear_free_async = (enum sim_free_async)draw(d, 4, 4);
}

static void draw_pools(const struct dice *d, struct sim_policy *p)
{
    static const uint32_t steps[] = {1, 2, 4, 8, 16, 3, 5, 16};
    p->pool_fit = (enum sim_fit)draw(d, 10, 3);
    p->pool_step = steps[draw(d, 11, COUNT(steps))] * GRANULE;
    p->pool_doubles = draw(d, 12, 4) == 0;
    p->pool_shrink = (enum sim_shrink)draw(d, 13, 5);
    p->pool_shrink_every = between(d, 14, 1, 16);
    p->pool_reuse_at_sync = draw(d, 15, 2);
}

static void draw_graphs(const struct dice *d, struct sim_policy *p)
{
    static const uint32_t steps[] = {1, 2, 4, 8, 16};
    p->graph_reuse = draw(d, 20, 2);
    p->graph_shared = draw(d, 21, 2);
    p->graph_when = (enum sim_graph_when)draw(d, 22, 3);
    p->graph_step = (p->wild ? steps[draw(d, 23, COUNT(steps))] : 1) * GRANULE;
}

static void draw_modules(const struct dice *d, struct sim_policy *p)
{
    static const uint32_t units[] = {256, 4096, 64 * KIB};
    p->module_loading = (enum sim_loading)draw(d, 30, 3);
    p->module_newest = draw(d, 31, 2);
    p->module_unit = units[draw(d, 32, COUNT(units))];
    p->module_functions = draw(d, 33, 2);
    p->module_handles = draw(d, 36, 3) == 0;
    p->module_asks = draw(d, 34, 2);
    p->module_nodes = draw(d, 35, 2);
}

static void draw_contexts(const struct dice *d, struct sim_policy *p)
{
    p->context_percent = between(d, 40, 50, 100);
    p->stack_when = (enum sim_when)draw(d, 41, 2);
    p->printf_when = (enum sim_when)draw(d, 42, 2);
    p->heap_when = (enum sim_when)draw(d, 43, 2);
}

static void draw_time(const struct dice *d, struct sim_policy *p)
{
    static const uint32_t delays[] = {0, 0, 2000, 20000, 100000};
    p->yield_percent = between(d, 50, 0, 40);
    p->delay_ns = delays[draw(d, 51, COUNT(delays))];
}

/* Exceeds at least one bound, whatever the seed. */
static void exceed(const struct dice *d, struct sim_policy *p)
{
    uint32_t kinds = between(d, 60, 1, 31);
    if (kinds & 1) p->linear_percent = between(d, 61, 120, 200);
    if (kinds & 2) p->pool_percent = between(d, 62, 150, 400);
    if (kinds & 4) p->graph_percent = between(d, 63, 150, 400);
    if (kinds & 8) p->context_percent = between(d, 64, 110, 150);
    if (kinds & 16) p->module_percent = between(d, 65, 120, 200);
    p->module_packed = draw(d, 66, 2);
}

void sim_policy_draw(uint64_t seed, bool wild, struct sim_policy *p)
{
    struct dice d = {seed};
    *p = fixed;
    p->seed = seed;
    p->wild = wild;
    if (!seed) return;
    draw_linear(&d, p);
    draw_pools(&d, p);
    draw_graphs(&d, p);
    draw_modules(&d, p);
    draw_contexts(&d, p);
    draw_time(&d, p);
    if (wild) exceed(&d, p);
}

bool sim_policy_read(const char *text, struct sim_policy *out)
{
    char *end;
    bool wild = text && !strncmp(text, "wild", 4);
    if (wild) text = !text[4] ? "1" : text[4] == ':' ? text + 5 : "?";
    if (!text || !*text) text = "0";
    errno = 0;
    unsigned long long seed = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || (wild && !seed)) return false;
    sim_policy_draw(seed, wild, out);
    return true;
}

static bool is_step(uint32_t step) { return step && step % GRANULE == 0 && step <= LARGEST_STEP; }

bool sim_policy_bounded(const struct sim_policy *p)
{
    return p->small_below <= MIB && p->linear_percent <= 100 && is_step(p->pool_step) && p->pool_percent <= 100 && p->graph_step == GRANULE &&
           p->graph_percent <= 100 && p->module_packed && p->module_unit <= 64 * KIB && p->module_percent <= 100 && p->context_percent <= 100;
}

/* ---- as text ---- */

static const char *const fits[] = {"first", "best", "random"};
static const char *const frees[] = {"waits", "at once", "in stream", "at synchronisation"};
static const char *const shrinks[] = {"at synchronisation", "at free", "at allocation", "at any call", "at trim"};
static const char *const graph_times[] = {"at launch", "at upload", "at instantiate"};
static const char *const loadings[] = {"by environment", "lazy", "eager"};
static const char *const times[] = {"at set limit", "at first use"};

static void text(FILE *to, const char *name, const char *value) { fprintf(to, ", \"%s\": \"%s\"", name, value); }
static void number(FILE *to, const char *name, uint32_t value) { fprintf(to, ", \"%s\": %u", name, value); }
static void flag(FILE *to, const char *name, bool value) { fprintf(to, ", \"%s\": %s", name, value ? "true" : "false"); }

void sim_policy_print(const struct sim_policy *p, FILE *to)
{
    fprintf(to, "{\"seed\": %llu", (unsigned long long)p->seed);
    flag(to, "wild", p->wild);
    number(to, "small_below", p->small_below);
    number(to, "small_unit", p->small_unit);
    flag(to, "small_classes", p->small_classes);
    text(to, "small_fit", fits[p->small_fit]);
    number(to, "linear_percent", p->linear_percent);
    text(to, "linear_free_async", frees[p->linear_free_async]);
    text(to, "pool_fit", fits[p->pool_fit]);
    number(to, "pool_step", p->pool_step);
    flag(to, "pool_doubles", p->pool_doubles);
    text(to, "pool_shrink", shrinks[p->pool_shrink]);
    number(to, "pool_shrink_every", p->pool_shrink_every);
    flag(to, "pool_reuse_at_sync", p->pool_reuse_at_sync);
    number(to, "pool_percent", p->pool_percent);
    flag(to, "graph_reuse", p->graph_reuse);
    flag(to, "graph_shared", p->graph_shared);
    text(to, "graph_when", graph_times[p->graph_when]);
    number(to, "graph_step", p->graph_step);
    number(to, "graph_percent", p->graph_percent);
    text(to, "module_loading", loadings[p->module_loading]);
    flag(to, "module_packed", p->module_packed);
    flag(to, "module_newest", p->module_newest);
    number(to, "module_unit", p->module_unit);
    flag(to, "module_functions", p->module_functions);
    flag(to, "module_handles", p->module_handles);
    flag(to, "module_asks", p->module_asks);
    flag(to, "module_nodes", p->module_nodes);
    number(to, "module_percent", p->module_percent);
    number(to, "context_percent", p->context_percent);
    text(to, "stack_when", times[p->stack_when]);
    text(to, "printf_when", times[p->printf_when]);
    text(to, "heap_when", times[p->heap_when]);
    number(to, "yield_percent", p->yield_percent);
    number(to, "delay_ns", p->delay_ns);
    fprintf(to, "}\n");
}
