/* The memory of graphs: one store per process and device (CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), shared by all graphs.
 *
 * It grows when a graph with allocations is instantiated, uploaded or launched, and shrinks when it is trimmed. Its driver
 * calls take turns at the store, as allocations do at a pool (pool.c): the call reserves what the store can grow by, and the
 * charge becomes what the driver has before the turn goes on. Whether graphs use each other's memory is the driver's
 * business, so the most that the store can become is
 *
 *      in use + what the other graphs needed since the last trim + what this graph needs (nodes.c)
 *
 * Near the quota the store is trimmed first, and then what the others needed is not there any more. What a graph needs is read and
 * written with the store's turn only; while it changes, the larger need holds. A graph without memory nodes costs a look at one
 * bit. */
#include "memory/graph.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/records.h"
#include "memory/api_pool.h"
#include "memory/devices.h"
#include "memory/kept_blocks.h"
#include "memory/kernel_nodes.h"
#include "memory/nodes.h"
#include "memory/pool_shrink.h"
#include "memory/streams.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEVICES 64
#define AT_THE_MARGIN 3

struct store {
    struct fr_mutex turn;
    uint64_t charged; /* all under `turn` */
    uint64_t kept;    /* needs of graphs that ran since the last trim */
    uint32_t trims, era;
    _Atomic bool any, stale;
};

static FR_LARGE struct store stores[DEVICES];
_Atomic uint64_t fr_graphs_with_memory[FR_GRAPH_BITS / 64];

/* A forked child has none of its parent's graphs. */
static void take_over(struct store *s)
{
    uint32_t era = atomic_load_explicit(&fr_era, memory_order_relaxed);
    if (likely(s->era == era)) return;
    s->era = era;
    s->charged = s->kept = 0;
}

/* ---- the charge: with the store's turn ---- */

static uint64_t attribute(CUdevice d, int which, uint64_t otherwise)
{
    uint64_t bytes = 0;
    return REAL(cuDeviceGetGraphMemAttribute)(d, which, &bytes) ? otherwise : bytes;
}

/* Makes the charge what the driver has, and ends the reservation. */
static void compare(CUdevice d, struct fr_op *op)
{
    struct store *s = &stores[d];
    struct fr_op back;
    int card = fr_card_of(d);
    uint64_t now = attribute(d, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, s->charged), before = s->charged;
    uint64_t more = now > before ? now - before : 0, kept = more < op->reserved ? more : op->reserved;
    s->charged = now;
    fr_op_end(op, kept);
    if (unlikely(more > kept)) fr_charge(card, more - kept);
    if (now >= before) return;
    fr_free_begin(&back, card);
    fr_free_end(&back, before - now);
}

static void enter(CUdevice d)
{
    fr_mutex_lock(&stores[d].turn);
    take_over(&stores[d]);
    stores[d].any = true;
}

static void leave(CUdevice d)
{
    struct store *s = &stores[d];
    struct fr_op none = {.card = FR_NO_CARD};
    while (true) {
        while (atomic_exchange(&s->stale, false)) compare(d, &none);
        fr_mutex_unlock(&s->turn);
        if (likely(!atomic_load(&s->stale)) || !fr_mutex_try(&s->turn)) return;
    }
}

static void settle(CUdevice d)
{
    if (d < 0 || d >= DEVICES) return;
    atomic_store(&stores[d].stale, true);
    if (!fr_mutex_try(&stores[d].turn)) return;
    take_over(&stores[d]);
    leave(d);
}

static CUresult trim(CUdevice d)
{
    struct fr_op none = {.card = FR_NO_CARD};
    enter(d);
    CUresult r = REAL(cuDeviceGraphMemTrim)(d);
    if (!r) {
        stores[d].kept = 0;
        stores[d].trims++;
    }
    compare(d, &none);
    leave(d);
    return r;
}

void fr_graphs_trim(int card)
{
    for (CUdevice d = 0; d < DEVICES; d++)
        if (stores[d].any && fr_card_of(d) == card) trim(d);
}

/* ---- a call that may make the store grow ---- */

struct call {
    struct fr_op op;
    CUgraphExec exec; /* NULL: it is being made */
    CUdevice device;
    uint64_t need;
    uint64_t kept, trims; /* what the graph needed when it ran last, and how many trims there had been */
    uint64_t missing;     /* what has to be reserved */
};

static uint64_t growth(const struct call *c)
{
    const struct store *s = &stores[c->device];
    uint64_t used = attribute(c->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, s->charged);
    uint64_t others = s->kept - (c->trims == s->trims ? c->kept : 0), most = used + others + c->need;
    return most > s->charged ? most - s->charged : 0;
}

/* In a record: `a` is what the graph needs, `b` its device and, in the upper half, the number of trims before; `bytes` what it kept. */
static void remember(CUgraphExec e, const struct call *c)
{
    struct fr_record r = {.class = FR_GRAPH_EXEC, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = (uintptr_t)e, .a = c->need,
                          .b = (uint64_t)(unsigned)c->device | c->trims << 32, .bytes = c->kept};
    size_t bit = fr_graph_bit(e);
    if (!c->need) return;
    atomic_fetch_or(&fr_graphs_with_memory[bit / 64], 1ull << bit % 64);
    fr_record_put(r);
}

static bool recall(CUgraphExec e, struct call *c)
{
    struct fr_record r;
    if (!fr_record_find(FR_GRAPH_EXEC, (uintptr_t)e, &r)) return false;
    c->exec = e;
    c->need = r.a;
    c->device = (CUdevice)(uint32_t)r.b;
    c->trims = r.b >> 32;
    c->kept = r.bytes;
    return true;
}

/* Takes the turn with enough reserved for the growth. False: there is no room, and the turn is not taken. */
static bool begin_at_once(struct call *c)
{
    enter(c->device);
    if (c->exec) recall(c->exec, c); /* it may have changed before our turn */
    c->missing = growth(c);
    if (c->op.card != FR_NO_CARD && c->op.reserved >= c->missing) return true;
    if (c->op.card == FR_NO_CARD && fr_op_begin(&c->op, fr_card_of(c->device), 0)) c->op.card = FR_NO_CARD;
    else if (c->missing <= c->op.reserved || fr_op_more(&c->op, c->missing - c->op.reserved)) return true;
    leave(c->device);
    fr_op_end(&c->op, 0);
    return false;
}

/* Launches of other threads that end make the growth smaller, so it is asked for again. */
static bool begin(struct call *c)
{
    c->op = (struct fr_op){.card = FR_NO_CARD};
    if (begin_at_once(c)) return true;
    int card = fr_card_of(c->device);
    for (int i = 0; i < AT_THE_MARGIN; i++) {
        trim(c->device);
        fr_kept_blocks_free();
        fr_pools_trim(card);
        if (fr_op_begin(&c->op, card, c->need)) c->op = (struct fr_op){.card = FR_NO_CARD};
        if (begin_at_once(c)) return true;
    }
    return false;
}

/* What the graph needs may stay its own until the next trim, also where the driver refused to run it after all. */
static void keep(struct call *c)
{
    struct store *s = &stores[c->device];
    s->kept += c->need - (c->trims == s->trims ? c->kept : 0);
    c->kept = c->need;
    c->trims = s->trims;
}

static void end(struct call *c)
{
    uint64_t kept = c->kept, trims = c->trims;
    keep(c);
    if (c->exec && (c->kept != kept || c->trims != trims)) remember(c->exec, c);
    compare(c->device, &c->op);
    leave(c->device);
}

static bool counts(uint64_t bytes, CUdevice device) { return bytes && device >= 0 && device < DEVICES; }

CUresult fr_graph_run(CUgraphExec e, CUstream s, CUstream given, CUresult (*real)(CUgraphExec, CUstream))
{
    struct call c = {.need = 0};
    if (!recall(e, &c) || !counts(c.need, c.device) || fr_stream_is_capturing(s)) return real(e, given);
    if (!begin(&c)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = real(e, given);
    end(&c);
    return result;
}

HOOK CUresult cuGraphUpload(CUgraphExec e, CUstream s)
{
    return likely(!fr_graph_may_have_memory(e)) ? REAL(cuGraphUpload)(e, s) : fr_graph_run(e, s, s, REAL(cuGraphUpload));
}
HOOK CUresult cuGraphUpload_ptsz(CUgraphExec e, CUstream s)
{
    return likely(!fr_graph_may_have_memory(e)) ? REAL(cuGraphUpload_ptsz)(e, s) : fr_graph_run(e, fr_per_thread(s), s, REAL(cuGraphUpload_ptsz));
}

/* ---- graphs come and go ---- */

/* Some drivers take the memory here already. */
struct instantiation {
    CUgraphExec *out;
    CUgraph graph;
    CUgraphNode *node;
    char *log;
    size_t size;
    unsigned long long flags;
    CUDA_GRAPH_INSTANTIATE_PARAMS *params;
    CUresult (*go)(struct instantiation *i);
};

static CUresult instantiate(struct instantiation *i)
{
    struct fr_need need = i->out && i->graph ? fr_graph_need(i->graph) : (struct fr_need){0, -1};
    struct call c = {.need = need.bytes, .device = need.device};
    if (!counts(c.need, c.device)) return i->go(i);
    if (!begin(&c)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = i->go(i);
    end(&c);
    if (!r) remember(*i->out, &c);
    return r;
}

static CUresult plain(struct instantiation *i) { return REAL(cuGraphInstantiate)(i->out, i->graph, i->node, i->log, i->size); }
static CUresult plain_v2(struct instantiation *i) { return REAL(cuGraphInstantiate_v2)(i->out, i->graph, i->node, i->log, i->size); }
static CUresult with_flags(struct instantiation *i) { return REAL(cuGraphInstantiateWithFlags)(i->out, i->graph, i->flags); }
static CUresult with_params(struct instantiation *i) { return REAL(cuGraphInstantiateWithParams)(i->out, i->graph, i->params); }
static CUresult with_params_ptsz(struct instantiation *i) { return REAL(cuGraphInstantiateWithParams_ptsz)(i->out, i->graph, i->params); }

HOOK CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph g, CUgraphNode *n, char *log, size_t size)
{
    return instantiate(&(struct instantiation){.out = out, .graph = g, .node = n, .log = log, .size = size, .go = plain});
}
HOOK CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph g, CUgraphNode *n, char *log, size_t size)
{
    return instantiate(&(struct instantiation){.out = out, .graph = g, .node = n, .log = log, .size = size, .go = plain_v2});
}
HOOK CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags)
{
    return instantiate(&(struct instantiation){.out = out, .graph = g, .flags = flags, .go = with_flags});
}
HOOK CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    return instantiate(&(struct instantiation){.out = out, .graph = g, .params = p, .go = with_params});
}
HOOK CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    return instantiate(&(struct instantiation){.out = out, .graph = g, .params = p, .go = with_params_ptsz});
}

/* ---- an executable graph changes ---- */

struct change {
    CUgraphExec exec;
    struct call old; /* exec NULL: it had no memory */
    struct fr_need need;
};

/* What it kept before stays counted. */
static void set_need(const struct change *c, uint64_t bytes)
{
    struct call now = {.device = c->need.device};
    if (!bytes) return;
    enter(c->need.device);
    recall(c->exec, &now);
    now.need = bytes;
    remember(c->exec, &now);
    leave(c->need.device);
}

/* Launches of other threads may meet the graph as it was or as it will be. */
static struct change change_begin(CUgraphExec e, struct fr_need need)
{
    struct change c = {.exec = e, .need = need};
    if (fr_graph_may_have_memory(e) && recall(e, &c.old)) c.need.device = c.old.device;
    if (counts(need.bytes, c.need.device)) set_need(&c, need.bytes > c.old.need ? need.bytes : c.old.need);
    return c;
}

static void change_end(const struct change *c, CUresult r)
{
    struct fr_record old;
    if (!counts(c->need.bytes, c->need.device)) return;
    if (!r) set_need(c, c->need.bytes);
    else if (c->old.exec) set_need(c, c->old.need);
    else fr_record_take(FR_GRAPH_EXEC, (uintptr_t)c->exec, &old);
}

HOOK CUresult cuGraphExecUpdate(CUgraphExec e, CUgraph g, CUgraphNode *n, int *result)
{
    struct change c = change_begin(e, fr_graph_need(g));
    CUresult r = REAL(cuGraphExecUpdate)(e, g, n, result);
    change_end(&c, r);
    return r;
}
HOOK CUresult cuGraphExecUpdate_v2(CUgraphExec e, CUgraph g, CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO *info)
{
    struct change c = change_begin(e, fr_graph_need(g));
    CUresult r = REAL(cuGraphExecUpdate_v2)(e, g, info);
    change_end(&c, r);
    return r;
}

/* What else the graph holds cannot be seen any more, so the new child comes on top. */
static struct change child_begin(CUgraphExec e, CUgraph child)
{
    struct call old = {.need = 0};
    struct fr_need need = fr_graph_need(child);
    if (need.bytes && fr_graph_may_have_memory(e) && recall(e, &old)) need.bytes += old.need;
    return change_begin(e, need);
}

HOOK CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraph child)
{
    struct change c = child_begin(e, child);
    CUresult r = REAL(cuGraphExecChildGraphNodeSetParams)(e, n, child);
    change_end(&c, r);
    return r;
}
HOOK CUresult cuGraphExecNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraphNodeParams *p)
{
    struct change c;
    CUresult r = fr_node_used(p);
    if (r) return r;
    if (!p || p->type != CU_GRAPH_NODE_TYPE_GRAPH) return REAL(cuGraphExecNodeSetParams)(e, n, p);
    c = child_begin(e, p->child.graph);
    r = REAL(cuGraphExecNodeSetParams)(e, n, p);
    change_end(&c, r);
    return r;
}

HOOK CUresult cuGraphExecDestroy(CUgraphExec e)
{
    struct fr_record old;
    bool known = fr_graph_may_have_memory(e) && fr_record_take(FR_GRAPH_EXEC, (uintptr_t)e, &old);
    CUresult r = REAL(cuGraphExecDestroy)(e);
    if (known && r) fr_record_put(old);
    if (known) settle((CUdevice)(uint32_t)old.b);
    return r;
}

HOOK CUresult cuDeviceGraphMemTrim(CUdevice d)
{
    return d >= 0 && d < DEVICES && stores[d].any ? trim(d) : REAL(cuDeviceGraphMemTrim)(d);
}
