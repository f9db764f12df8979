/* The memory of graphs: one store per process and device (CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), shared by all graphs. It
 * grows when a graph is uploaded or launched, up to what allocations hold already plus what this graph holds at its
 * fullest, and shrinks when it is trimmed. So before a launch
 *
 *      charged + reservations of the launches on their way >= used + needs of the launches on their way
 *
 * is made true; the last launch on its way brings the charge to what the driver has. A graph without memory nodes costs
 * a look at one bit. */
#include "pace.h"
#include "pool.h"

#define DEVICES 64
#define FILTER 4096
#define PATIENCE 64
#define AT_THE_MARGIN 3

struct store {
    _Atomic uint64_t version;
    uint64_t charged, needs, promised;
    uint32_t calls;
    _Atomic bool any;
};

static struct fr_lock lock;
static FR_LARGE struct store stores[DEVICES];
static uint32_t stores_era;
static _Atomic uint64_t filter[FILTER / 64]; /* graphs with memory have their bit set; never cleared */

static void enter(void)
{
    fr_lock(&lock);
    uint32_t era = atomic_load_explicit(&fr_era, memory_order_relaxed);
    if (likely(stores_era == era)) return;
    stores_era = era;
    for (int i = 0; i < DEVICES; i++) stores[i] = (struct store){0};
}

static size_t bit_of(CUgraphExec e)
{
    return ((uintptr_t)e >> 4 ^ (uintptr_t)e >> 16) % FILTER;
}

static bool may_have_memory(CUgraphExec e)
{
    size_t bit = bit_of(e);
    return atomic_load_explicit(&filter[bit / 64], memory_order_relaxed) >> bit % 64 & 1;
}

/* ---- the charge ---- */

static uint64_t attribute(CUdevice d, int which)
{
    uint64_t bytes = 0;
    return REAL(cuDeviceGetGraphMemAttribute)(d, which, &bytes) ? 0 : bytes;
}

/* Takes the lock when what was read is still true; after many attempts takes it anyway and says so. */
static bool enter_with(CUdevice d, int which, uint64_t *value)
{
    for (int i = 0; i < PATIENCE; i++) {
        uint64_t version = atomic_load(&stores[d].version);
        *value = attribute(d, which);
        enter();
        if (atomic_load_explicit(&stores[d].version, memory_order_relaxed) == version) return true;
        if (i < PATIENCE - 1) fr_unlock(&lock);
    }
    return false;
}

struct change {
    uint64_t kept, back, beyond;
};

/* As long as launches are on their way, nothing that they may rely on goes back. */
static struct change compare(struct store *s, uint64_t now, uint64_t reserved, bool sure)
{
    struct change c = {0};
    if (s->calls || !sure) c.kept = reserved;
    else if (now < s->charged) c.back = s->charged - now;
    else {
        c.kept = now - s->charged < reserved ? now - s->charged : reserved;
        c.beyond = now - s->charged - c.kept;
    }
    s->charged += c.kept + c.beyond - c.back;
    atomic_fetch_add(&s->version, 1);
    return c;
}

static void apply(int card, struct fr_op *op, struct change c)
{
    struct fr_op back;
    fr_end(op, c.kept);
    if (c.back) {
        fr_free_begin(&back, card);
        fr_free_end(&back, c.back);
    }
    if (c.beyond) fr_charge(card, c.beyond);
}

static void settle(CUdevice d)
{
    uint64_t now;
    struct fr_op op = {.card = FR_NO_CARD};
    if (d < 0 || d >= DEVICES) return;
    bool sure = enter_with(d, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now);
    struct change c = compare(&stores[d], now, 0, sure);
    fr_unlock(&lock);
    apply(fr_card_of(d), &op, c);
}

static CUresult trim(CUdevice d)
{
    struct fr_op op;
    fr_free_begin(&op, fr_card_of(d));
    CUresult r = REAL(cuDeviceGraphMemTrim)(d);
    settle(d);
    fr_free_end(&op, 0);
    return r;
}

void fr_graphs_trim(int card)
{
    for (CUdevice d = 0; d < DEVICES; d++)
        if (stores[d].any && fr_card_of(d) == card) trim(d);
}

/* ---- a launch on its way ---- */

struct launch {
    struct fr_op op;
    CUdevice device;
    uint64_t need, reserved;
};

/* Announces the need; returns by how much the store may have to grow. */
static uint64_t announce(struct launch *l)
{
    uint64_t used;
    struct store *s = &stores[l->device];
    enter_with(l->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used);
    s->any = true;
    s->calls++;
    s->needs += l->need;
    uint64_t wanted = used + s->needs, have = s->charged + s->promised;
    atomic_fetch_add(&s->version, 1);
    fr_unlock(&lock);
    return wanted > have ? wanted - have : 0;
}

/* A launch that ended meanwhile may have reserved for this one's need too, and left it to the last one to settle. */
static void withdraw(struct launch *l)
{
    enter();
    stores[l->device].calls--;
    stores[l->device].needs -= l->need;
    atomic_fetch_add(&stores[l->device].version, 1);
    fr_unlock(&lock);
    settle(l->device);
}

static bool reserved(struct launch *l, bool patiently)
{
    int card = fr_card_of(l->device);
    uint64_t growth = announce(l);
    bool ok = !fr_begin(&l->op, card, patiently ? growth : 0);
    if (ok && !patiently && !fr_more(&l->op, growth)) {
        fr_end(&l->op, 0);
        ok = false;
    }
    if (!ok) return withdraw(l), false;
    l->reserved = growth;
    enter();
    stores[l->device].promised += growth;
    fr_unlock(&lock);
    return true;
}

/* Launches of other threads that end make the growth smaller, so it is asked for again. */
static bool begin(struct launch *l)
{
    if (reserved(l, false)) return true;
    int card = fr_card_of(l->device);
    for (int i = 0; i < AT_THE_MARGIN; i++) {
        trim(l->device);
        fr_pools_trim(card);
        if (reserved(l, true)) return true;
    }
    return false;
}

static void end(struct launch *l)
{
    uint64_t now;
    bool sure = enter_with(l->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now);
    struct store *s = &stores[l->device];
    s->calls--;
    s->needs -= l->need;
    s->promised -= l->reserved;
    struct change c = compare(s, now, l->reserved, sure);
    fr_unlock(&lock);
    apply(fr_card_of(l->device), &l->op, c);
}

static CUresult run(CUgraphExec e, CUstream s, CUstream given, CUresult (*real)(CUgraphExec, CUstream))
{
    struct fr_record r;
    if (!fr_record_find(FR_GRAPH_EXEC, (uintptr_t)e, &r) || fr_capturing(s)) return real(e, given);
    struct launch l = {.need = r.a, .device = (CUdevice)r.b};
    if (l.device < 0 || l.device >= DEVICES) return real(e, given);
    if (!begin(&l)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = real(e, given);
    end(&l);
    return result;
}

/* A launch is one piece of work on the card, to be paced as a kernel is. */
#define LAUNCH(name, stream, own)                                                                               \
    HOOK CUresult name(CUgraphExec e, CUstream s)                                                               \
    {                                                                                                           \
        if (fr_unpaced()) return likely(!may_have_memory(e)) ? REAL(name)(e, s) : run(e, stream, s, REAL(name)); \
        struct fr_ticket t;                                                                                     \
        fr_pace_enter(&t, &(struct fr_work){(uintptr_t)e, 0, s, own, 0});                                       \
        CUresult r = !may_have_memory(e) ? REAL(name)(e, s) : run(e, stream, s, REAL(name));                    \
        fr_pace_leave(&t, r);                                                                                   \
        return r;                                                                                               \
    }
LAUNCH(cuGraphLaunch, s, false)
LAUNCH(cuGraphLaunch_ptsz, fr_per_thread(s), true)

HOOK CUresult cuGraphUpload(CUgraphExec e, CUstream s)
{
    return likely(!may_have_memory(e)) ? REAL(cuGraphUpload)(e, s) : run(e, s, s, REAL(cuGraphUpload));
}
HOOK CUresult cuGraphUpload_ptsz(CUgraphExec e, CUstream s)
{
    return likely(!may_have_memory(e)) ? REAL(cuGraphUpload_ptsz)(e, s) : run(e, fr_per_thread(s), s, REAL(cuGraphUpload_ptsz));
}

/* ---- graphs come and go ---- */

static void remember(CUgraphExec e, struct fr_need need)
{
    struct fr_record r = {.class = FR_GRAPH_EXEC, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = (uintptr_t)e, .a = need.bytes,
                          .b = (uint64_t)(unsigned)need.device};
    size_t bit = bit_of(e);
    if (!need.bytes) return;
    atomic_fetch_or(&filter[bit / 64], 1ull << bit % 64);
    fr_record_put(r);
}

static CUresult instantiated(CUgraphExec *out, CUgraph g, CUresult r)
{
    if (!r) remember(*out, fr_graph_need(g));
    return r;
}

HOOK CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph g, CUgraphNode *n, char *log, size_t size)
{
    return instantiated(out, g, REAL(cuGraphInstantiate)(out, g, n, log, size));
}
HOOK CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph g, CUgraphNode *n, char *log, size_t size)
{
    return instantiated(out, g, REAL(cuGraphInstantiate_v2)(out, g, n, log, size));
}
HOOK CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags)
{
    return instantiated(out, g, REAL(cuGraphInstantiateWithFlags)(out, g, flags));
}

/* With one flag the graph is uploaded at once. */
static CUresult with_params(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p,
                            CUresult (*real)(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *))
{
    if (!out || !g || !p || !(p->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) return instantiated(out, g, real(out, g, p));
    struct fr_need need = fr_graph_need(g);
    struct launch l = {.need = need.bytes, .device = need.device};
    if (!need.bytes || l.device < 0 || l.device >= DEVICES) return real(out, g, p);
    if (!begin(&l)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = real(out, g, p);
    end(&l);
    if (!r) remember(*out, need);
    return r;
}
HOOK CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    return with_params(out, g, p, REAL(cuGraphInstantiateWithParams));
}
HOOK CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    return with_params(out, g, p, REAL(cuGraphInstantiateWithParams_ptsz));
}

HOOK CUresult cuGraphExecUpdate(CUgraphExec e, CUgraph g, CUgraphNode *n, int *result)
{
    CUresult r = REAL(cuGraphExecUpdate)(e, g, n, result);
    if (!r) remember(e, fr_graph_need(g));
    return r;
}
HOOK CUresult cuGraphExecUpdate_v2(CUgraphExec e, CUgraph g, CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO *info)
{
    CUresult r = REAL(cuGraphExecUpdate_v2)(e, g, info);
    if (!r) remember(e, fr_graph_need(g));
    return r;
}

/* What else the graph holds cannot be seen any more, so the new child comes on top. */
static void add_child(CUgraphExec e, CUgraph child)
{
    struct fr_record r;
    struct fr_need need = fr_graph_need(child);
    if (!need.bytes) return;
    if (may_have_memory(e) && fr_record_find(FR_GRAPH_EXEC, (uintptr_t)e, &r)) need.bytes += r.a;
    remember(e, need);
}

HOOK CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraph child)
{
    CUresult r = REAL(cuGraphExecChildGraphNodeSetParams)(e, n, child);
    if (!r) add_child(e, child);
    return r;
}
HOOK CUresult cuGraphExecNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraphNodeParams *p)
{
    CUresult r = REAL(cuGraphExecNodeSetParams)(e, n, p);
    if (!r && p->type == CU_GRAPH_NODE_TYPE_GRAPH) add_child(e, p->child.graph);
    return r;
}

HOOK CUresult cuGraphExecDestroy(CUgraphExec e)
{
    struct fr_record old;
    bool known = may_have_memory(e) && fr_record_take(FR_GRAPH_EXEC, (uintptr_t)e, &old);
    CUresult r = REAL(cuGraphExecDestroy)(e);
    if (known && r) fr_record_put(old);
    if (known) settle((CUdevice)old.b);
    return r;
}

HOOK CUresult cuDeviceGraphMemTrim(CUdevice d)
{
    return d >= 0 && d < DEVICES && stores[d].any ? trim(d) : REAL(cuDeviceGraphMemTrim)(d);
}
