/* The card's memory behind allocation nodes, on the device that a node names, wherever the graph is launched. A process reserves memory for
 * graphs on each device. It grows at instantiation, upload or launch, by policy, and stays until a trim. A graph needs the most that it
 * holds at any moment or, without reuse, the sum of its nodes. Executable graphs share the reserved memory, or each keeps its own:
 *
 *      reserved >= used by live allocations + kept by executable graphs        at a launch: + what the graph needs
 *
 * A trim frees all memory that no live allocation uses, so executable graphs lose what they kept (`epoch`). */
#include "graph.h"

#include <stdlib.h>

static uint64_t least_of(uint64_t a, uint64_t b) { return a < b ? a : b; }
static size_t granules(size_t bytes) { return (size_t)sim_round(bytes, SIM_GRANULE); }

/* ---- what a graph needs ---- */

static bool is_on(const struct sim_node *n, int device) { return n->p.type == N_ALLOC && n->p.alloc.poolProps.location.id == device; }

/* Several allocations of a graph may have the same address, one after the other. So this is the next free of that address. */
static struct sim_node *free_of(const struct sim_node *alloc)
{
    for (struct sim_node *n = alloc->next; n; n = n->next)
        if (n->p.type == N_FREE && n->p.free.dptr == alloc->p.alloc.dptr) return n;
    return NULL;
}

static void mark_before(struct sim_node *a)
{
    for (size_t i = 0; i < a->before_count; i++)
        if (a->before[i] && !a->before[i]->is_before) {
            a->before[i]->is_before = true;
            mark_before(a->before[i]);
        }
}

/* The list is in an order in which the nodes can run: each was added after the nodes on which it depends. */
static void mark_after(struct sim_node *a)
{
    for (struct sim_node *n = a->next; n; n = n->next)
        for (size_t i = 0; i < n->before_count; i++) n->is_after |= n->before[i] == a || (n->before[i] && n->before[i]->is_after);
}

/* Are all earlier allocations at this address freed before? */
static bool free_before(const struct sim_graph *g, CUdeviceptr at)
{
    for (const struct sim_node *n = g->first; n; n = n->next) {
        const struct sim_node *f = n->p.type == N_ALLOC && n->p.alloc.dptr == at ? free_of(n) : NULL;
        if (n->p.type == N_ALLOC && n->p.alloc.dptr == at && (!f || !f->is_before)) return false;
    }
    return true;
}

/* The address of an allocation that is freed before a node with these dependencies runs, or 0. */
CUdeviceptr sim_graph_reused_address(struct sim_graph *g, struct sim_node *const *before, size_t count, const CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    if (!sim.policy.graph_reuse) return 0;
    for (struct sim_node *n = g->first; n; n = n->next) n->is_before = false;
    for (size_t i = 0; i < count; i++) {
        if (!before[i] || before[i]->is_before) continue;
        before[i]->is_before = true;
        mark_before(before[i]);
    }
    for (const struct sim_node *n = g->first; n; n = n->next)
        if (is_on(n, p->poolProps.location.id) && granules(n->p.alloc.bytesize) >= granules(p->bytesize) && free_before(g, n->p.alloc.dptr))
            return n->p.alloc.dptr;
    return 0;
}

static uint64_t fullest(struct sim_graph *g, int device, uint64_t *rest);

/* Called once for every node, children before their parents. */
static void measure(struct sim_node *n, int device)
{
    n->held = n->left = is_on(n, device) ? granules(n->p.alloc.bytesize) : 0;
    if (n->p.type == N_GRAPH) n->held = fullest(n->p.child.graph, device, &n->left);
}

/* Memory is reused only if the edges put the free first, so everything else may be held when node a runs. */
static uint64_t held_with(struct sim_graph *g, struct sim_node *a)
{
    uint64_t sum = 0;
    for (struct sim_node *n = g->first; n; n = n->next) n->is_before = n->is_after = false;
    mark_before(a);
    mark_after(a);
    for (struct sim_node *n = g->first; n; n = n->next) {
        if (n->is_after) continue;
        const struct sim_node *f = n->p.type == N_ALLOC ? free_of(n) : NULL;
        if (!f || !f->is_before) sum += n->is_before ? n->left : n->held;
    }
    return sum;
}

static uint64_t fullest(struct sim_graph *g, int device, uint64_t *rest)
{
    uint64_t most = 0;
    *rest = 0;
    for (struct sim_node *n = g->first; n; n = n->next) measure(n, device);
    for (struct sim_node *n = g->first; n; n = n->next) {
        if (!n->held) continue;
        if (n->p.type == N_GRAPH || !free_of(n)) *rest += n->left;
        uint64_t bytes = held_with(g, n);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* The first allocation at an address is the largest one: only an allocation that fits into it gets the same address. */
static bool is_first_at_its_address(const struct sim_graph *g, const struct sim_node *alloc)
{
    const struct sim_node *n = g->first;
    while (n->p.type != N_ALLOC || n->p.alloc.dptr != alloc->p.alloc.dptr) n = n->next;
    return n == alloc;
}

static uint64_t sum_of(const struct sim_graph *g, int device)
{
    uint64_t sum = 0;
    for (const struct sim_node *n = g->first; n; n = n->next)
        if (n->p.type == N_GRAPH) sum += sum_of(n->p.child.graph, device);
        else if (is_on(n, device) && is_first_at_its_address(g, n)) sum += granules(n->p.alloc.bytesize);
    return sum;
}

void sim_exec_measure(struct sim_exec *e)
{
    uint64_t rest;
    for (int device = 0; device < SIM_CARDS; device++) {
        uint64_t sum = sum_of(e->graph, device);
        e->on[device].sum = sum;
        e->on[device].need = sum && sim.policy.graph_reuse ? least_of(fullest(e->graph, device, &rest), sum) : sum;
    }
}

/* ---- reserved memory ---- */

static bool keep_charge(struct sim_device *d, uint32_t charge)
{
    uint32_t *grown = realloc(d->graph_charges, (d->graph_charge_count + 1) * sizeof *grown);
    if (!grown) return false;
    d->graph_charges = grown;
    d->graph_charges[d->graph_charge_count++] = charge;
    return true;
}

/* Memory is reserved in granules, so that any part can be freed. */
static bool add_granule(struct sim_device *d)
{
    uint32_t charge = sim_take(d->card, SIM_GRAPH, SIM_GRANULE, 0);
    if (!charge) return false;
    if (!keep_charge(d, charge)) return sim_give(charge), false;
    d->graph_reserved += SIM_GRANULE;
    return true;
}

static void drop_granule(struct sim_device *d)
{
    sim_give(d->graph_charges[--d->graph_charge_count]);
    d->graph_reserved -= SIM_GRANULE;
}

static uint64_t growth_by(uint64_t missing, uint64_t sum)
{
    uint64_t most = sim_round(sum, SIM_GRANULE), step = sim_round(missing, sim.policy.graph_step);
    if (sim.policy.graph_percent > 100) return sim_round(most / 100 * sim.policy.graph_percent, SIM_GRANULE);
    return step < most ? step : most;
}

/* Makes sure that this many bytes are reserved; if the card is nearly full, no more than that. If that fails, frees what it took. */
static CUresult reserve(struct sim_device *d, uint64_t bytes, uint64_t sum)
{
    uint64_t before = d->graph_reserved, until = before + (bytes > before ? growth_by(bytes - before, sum) : 0);
    while (d->graph_reserved < until && add_granule(d)) {}
    if (d->graph_reserved < bytes) {
        while (d->graph_reserved > before) drop_granule(d);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_bound("the growth of graph memory", d->graph_reserved - before, sim_round(sum, SIM_GRANULE));
    if (d->graph_reserved > d->graph_reserved_high) d->graph_reserved_high = d->graph_reserved;
    return CUDA_SUCCESS;
}

/* Memory that the graph kept from earlier launches is available to all graphs now. */
static void yield_on(struct sim_exec *e, int device)
{
    struct sim_device *d = &sim.devices[device];
    if (e->on[device].epoch == d->graph_epoch) d->graph_kept -= e->on[device].kept;
    e->on[device].kept = 0;
}

void sim_exec_yield(struct sim_exec *e)
{
    for (int device = 0; device < SIM_CARDS; device++) yield_on(e, device);
}

static void keep(struct sim_exec *e, int device, uint64_t bytes)
{
    yield_on(e, device);
    if (sim.policy.graph_shared) return;
    e->on[device].epoch = sim.devices[device].graph_epoch;
    e->on[device].kept = bytes;
    sim.devices[device].graph_kept += bytes;
}

/* If graphs share nothing, the graph keeps this memory from now on. */
static CUresult reserve_on(struct sim_exec *e, int device)
{
    struct sim_device *d = &sim.devices[device];
    uint64_t kept = e->on[device].epoch == d->graph_epoch ? e->on[device].kept : 0;
    CUresult r = reserve(d, d->graph_used + d->graph_kept - kept + e->on[device].need, e->on[device].sum);
    if (!r) keep(e, device, e->on[device].need);
    return r;
}

/* If one device has no room, memory taken on the others stays reserved. */
CUresult sim_exec_reserve(struct sim_exec *e)
{
    CUresult r = CUDA_SUCCESS;
    for (int device = 0; device < SIM_CARDS && !r; device++)
        if (e->on[device].sum) r = reserve_on(e, device);
    return r;
}

/* Memory that is allocated now no longer counts as kept by the graph. */
void sim_exec_launched(struct sim_exec *e, const uint64_t *used)
{
    for (int device = 0; device < SIM_CARDS; device++) {
        uint64_t now = sim.devices[device].graph_used, live = now > used[device] ? now - used[device] : 0, need = e->on[device].need;
        if (e->on[device].sum) keep(e, device, live < need ? need - live : 0);
    }
}

API CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!sim_device_valid(device)) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    struct sim_device *d = &sim.devices[device];
    d->graph_epoch++;
    d->graph_kept = 0;
    while (d->graph_charge_count && d->graph_reserved > d->graph_used) drop_granule(d);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int what, void *out)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!sim_device_valid(device)) return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!out || what < 0 || what > 3) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_device *d = &sim.devices[device];
    *(uint64_t *)out = (uint64_t[]){d->graph_used, d->graph_used_high, d->graph_reserved, d->graph_reserved_high}[what];
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceSetGraphMemAttribute(CUdevice device, int what, void *value)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!sim_device_valid(device) || !value || *(uint64_t *)value || (what != 1 && what != 3)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_device *d = &sim.devices[device];
    if (what == 1) d->graph_used_high = d->graph_used;
    else d->graph_reserved_high = d->graph_reserved;
    return sim_leave(CUDA_SUCCESS);
}

/* ---- allocations of a launched graph ---- */

CUresult sim_graph_alloc(struct sim_node *n, struct sim_ctx *ctx)
{
    int device = n->p.alloc.poolProps.location.id;
    struct sim_device *d = &sim.devices[device];
    if (sim_region_at(n->p.alloc.dptr)) return CUDA_ERROR_INVALID_VALUE; /* still allocated by an earlier launch */
    struct sim_region r = {.va = n->p.alloc.dptr, .size = n->p.alloc.bytesize, .kind = R_GRAPH, .ctx = ctx, .device = device,
                           .bytes = sim_bytes_new(n->p.alloc.bytesize)};
    if (!r.bytes || !sim_region_add(r)) return CUDA_ERROR_OUT_OF_MEMORY;
    d->graph_used += granules(r.size);
    if (d->graph_used > d->graph_used_high) d->graph_used_high = d->graph_used;
    return CUDA_SUCCESS;
}

CUresult sim_graph_free(struct sim_region *r)
{
    if (!r || r->kind != R_GRAPH) return CUDA_ERROR_INVALID_VALUE;
    sim.devices[r->device].graph_used -= granules(r->size);
    sim_bytes_drop(r->bytes);
    sim_region_remove(r);
    return CUDA_SUCCESS;
}
