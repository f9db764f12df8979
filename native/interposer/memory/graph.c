/* The memory of graphs: one store per process and device (CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), shared by all graphs. An
 * allocation node names its device, so a graph may have memory in several stores, whichever stream it is launched in.
 *
 * The store grows when a graph with allocations is instantiated, uploaded or launched, and shrinks when it is trimmed. Driver
 * calls that change it take turns, as allocations from a pool do (pool.c): the call reserves the most that the store can grow
 * by, and the charge becomes what the driver has, before the turn is passed on. Whether graphs use each other's memory is up to
 * the driver, so the store can become at most
 *
 *      in use + what the other graphs needed since the last trim + what this graph needs (nodes.c)
 *
 * where memory that was in use at the last trim still counts as in use: a trim leaves it with its graph, even if it is freed
 * later.
 *
 * Near the quota the store is trimmed first; after that the needs of the other graphs no longer count. What a graph needs is
 * read and written only during the store's turn; while it changes, the larger need holds. A graph without memory nodes costs a
 * look at one bit. */
#include "memory/graph.h"

#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/oom_retry.h"
#include "ledger/objects.h"
#include "ledger/records.h"
#include "memory/api_pool.h"
#include "memory/devices.h"
#include "memory/graph_kernels.h"
#include "memory/kept_blocks.h"
#include "memory/kernel_nodes.h"
#include "memory/nodes.h"
#include "memory/pool_shrink.h"
#include "memory/streams.h"
#include "memory/turn.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEVICES FR_GRAPH_DEVICES
#define AT_THE_MARGIN 3

struct store {
    struct fr_turn turn;
    uint64_t charged; /* these fields change only under `turn` */
    uint64_t kept;    /* needs of graphs that ran since the last trim */
    uint64_t in_use;  /* at the last trim */
    uint32_t trims, era;
    _Atomic bool any;
};

static FR_LARGE struct store stores[DEVICES];
static _Atomic uint64_t devices_known; /* devices on which some graph has memory */

/* A forked child has none of its parent's graphs. */
static void take_over(struct store *s)
{
    uint32_t era = atomic_load_explicit(&fr_era, memory_order_relaxed);
    if (likely(s->era == era)) return;
    s->era = era;
    s->charged = s->kept = s->in_use = 0;
}

/* ---- the charge: during the store's turn ---- */

static uint64_t attribute(CUdevice d, int which, uint64_t otherwise)
{
    uint64_t bytes = 0;
    return REAL(cuDeviceGetGraphMemAttribute)(d, which, &bytes) ? otherwise : bytes;
}

/* Sets the charge to what the driver has, and ends the reservation. */
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

static void look(void *store)
{
    struct store *s = store;
    struct fr_op none = {.card = FR_NO_CARD};
    take_over(s);
    compare((CUdevice)(s - stores), &none);
}

static void enter(CUdevice d)
{
    fr_turn_take(&stores[d].turn, fr_card_of(d));
    take_over(&stores[d]);
    stores[d].any = true;
}

static void leave(CUdevice d) { fr_turn_give(&stores[d].turn, look, &stores[d]); }

static void settle(CUdevice d)
{
    if (d >= 0 && d < DEVICES) fr_turn_settle(&stores[d].turn, fr_card_of(d), look, &stores[d]);
}

static CUresult trim(CUdevice d)
{
    struct fr_op none = {.card = FR_NO_CARD};
    enter(d);
    CUresult r = REAL(cuDeviceGraphMemTrim)(d);
    if (!r) {
        stores[d].kept = 0;
        stores[d].in_use = attribute(d, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, stores[d].charged);
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

/* ---- a call that may make stores grow ---- */

struct part { /* one device's part of the call */
    struct fr_op op;
    CUdevice device;
    uint64_t need;
    uint64_t kept, trims; /* what the graph needed when it last ran, and how many trims there had been */
    uint64_t missing;     /* what has to be reserved */
};
struct call {
    CUgraphExec exec; /* NULL: it is being made */
    int count;
    struct part on[FR_GRAPH_DEVICES]; /* ascending by device; turns are taken in this order */
};

static uint64_t growth(const struct part *p)
{
    const struct store *s = &stores[p->device];
    uint64_t used = attribute(p->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, s->charged);
    uint64_t others = s->kept - (p->trims == s->trims ? p->kept : 0), most = (used > s->in_use ? used : s->in_use) + others + p->need;
    return most > s->charged ? most - s->charged : 0;
}

static uint64_t key_of(CUgraphExec e, CUdevice d) { return (uint64_t)(uintptr_t)e ^ (uint64_t)(unsigned)d << 56; }

/* In a record: `a` is what the graph needs on the device, `b` the number of trims before; `bytes` what it kept. */
static bool remember(CUgraphExec e, const struct part *p) /* false: no memory for it */
{
    struct fr_record r = {.class = FR_GRAPH_EXEC, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = key_of(e, p->device), .a = p->need,
                          .b = p->trims, .bytes = p->kept};
    atomic_fetch_or(&devices_known, 1ull << p->device);
    fr_graph_note(e);
    return fr_record_put(r);
}

static bool recall_part(CUgraphExec e, CUdevice d, struct part *p)
{
    struct fr_record r;
    if (!fr_record_find(FR_GRAPH_EXEC, key_of(e, d), &r)) return false;
    p->device = d;
    p->need = r.a;
    p->trims = r.b;
    p->kept = r.bytes;
    return true;
}

static void recall(CUgraphExec e, struct call *c)
{
    c->exec = e;
    c->count = 0;
    for (uint64_t left = fr_graph_is_plain(e) ? 0 : atomic_load_explicit(&devices_known, memory_order_relaxed); left; left &= left - 1)
        c->count += recall_part(e, __builtin_ctzll(left), &c->on[c->count]);
}

/* Takes the turn with enough reserved for the growth. False: it does not fit, and the turn is not taken. */
static bool begin_part(CUgraphExec e, struct part *p)
{
    enter(p->device);
    if (e) recall_part(e, p->device, p); /* it may have changed before this turn */
    p->missing = growth(p);
    if (p->op.card != FR_NO_CARD && p->op.reserved >= p->missing) return true;
    if (p->op.card == FR_NO_CARD && fr_op_begin(&p->op, fr_card_of(p->device), 0)) p->op.card = FR_NO_CARD;
    else if (p->missing <= p->op.reserved || fr_op_more(&p->op, p->missing - p->op.reserved)) return true;
    leave(p->device);
    return false;
}

/* Gives up a call whose first parts have their turns. */
static void give_up(struct call *c, int turns)
{
    for (int i = 0; i < turns; i++) leave(c->on[i].device);
    for (int i = 0; i < c->count; i++) fr_op_end(&c->on[i].op, 0);
}

/* Returns the number of the part that did not fit, or the number of all parts: then they have their turns. */
static int begin_at_once(struct call *c)
{
    int i = 0;
    while (i < c->count && begin_part(c->exec, &c->on[i])) i++;
    if (i < c->count) give_up(c, i);
    return i;
}

/* When launches of other threads end, the growth becomes smaller, so it is computed again. */
static bool begin(struct call *c)
{
    struct fr_retry patience = {0};
    for (int i = 0; i < c->count; i++) c->on[i].op = (struct fr_op){.card = FR_NO_CARD};
    int lacking = begin_at_once(c);
    for (int i = 0; i < AT_THE_MARGIN * c->count && lacking < c->count; i++) {
        struct part *p = &c->on[lacking];
        int card = fr_card_of(p->device);
        trim(p->device);
        fr_kept_blocks_free();
        fr_pools_trim(card);
        if (fr_op_begin_within(&p->op, card, p->need, &patience)) p->op = (struct fr_op){.card = FR_NO_CARD};
        lacking = begin_at_once(c);
    }
    return lacking == c->count;
}

/* What the graph needs may stay its own until the next trim, even if the driver refused to run it. */
static void keep(struct part *p)
{
    struct store *s = &stores[p->device];
    s->kept += p->need - (p->trims == s->trims ? p->kept : 0);
    p->kept = p->need;
    p->trims = s->trims;
}

static void end_part(CUgraphExec e, struct part *p)
{
    uint64_t kept = p->kept, trims = p->trims;
    keep(p);
    if (e && (p->kept != kept || p->trims != trims)) remember(e, p);
    compare(p->device, &p->op);
    leave(p->device);
}

static void end(struct call *c)
{
    for (int i = 0; i < c->count; i++) end_part(c->exec, &c->on[i]);
}

/* True if another thread changed the graph before this call's turns: it has memory on more devices now. */
static bool has_more(const struct call *c)
{
    struct call now;
    recall(c->exec, &now);
    return now.count > c->count;
}

static CUresult run(CUgraphExec e, CUstream s, CUstream given, CUresult (*real)(CUgraphExec, CUstream))
{
    struct call c;
    CUresult result = fr_graph_kernels_used(e, s);
    if (result) return result;
    recall(e, &c);
    if (!c.count) return real(e, given);
    for (bool begun = false; !begun || has_more(&c);) {
        if (begun) give_up(&c, c.count), recall(e, &c);
        if (!begin(&c)) return CUDA_ERROR_OUT_OF_MEMORY;
        begun = true;
    }
    result = real(e, given);
    end(&c);
    return result;
}

CUresult fr_graph_run(CUgraphExec e, CUstream s, CUstream given, CUresult (*real)(CUgraphExec, CUstream))
{
    return fr_capture_hold(s) ? fr_captured(real(e, given)) : run(e, s, given, real);
}

/* An upload is never captured: in a stream that is being captured the driver refuses it, or takes the memory at once. */
HOOK CUresult cuGraphUpload(CUgraphExec e, CUstream s)
{
    return likely(fr_graph_is_plain(e)) ? REAL(cuGraphUpload)(e, s) : run(e, s, s, REAL(cuGraphUpload));
}
HOOK CUresult cuGraphUpload_ptsz(CUgraphExec e, CUstream s)
{
    return likely(fr_graph_is_plain(e)) ? REAL(cuGraphUpload_ptsz)(e, s) : run(e, fr_per_thread(s), s, REAL(cuGraphUpload_ptsz));
}

/* ---- graphs that may wait ---- */

static _Atomic uint64_t waits_noted[FR_GRAPH_BITS / 64]; /* by fr_graph_bit; never cleared */

/* A graph that was changed keeps the mark. */
static void note_waits(CUgraphExec e, bool waits)
{
    size_t bit = fr_graph_bit(e);
    if (!waits) return;
    fr_record_put((struct fr_record){.class = FR_GRAPH_WAITS, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = (uintptr_t)e});
    atomic_fetch_or(&waits_noted[bit / 64], 1ull << bit % 64);
}

bool fr_graph_may_wait(CUgraphExec e)
{
    struct fr_record r;
    size_t bit = fr_graph_bit(e);
    bool noted = atomic_load_explicit(&waits_noted[bit / 64], memory_order_relaxed) >> bit % 64 & 1;
    return unlikely(noted) && fr_record_find(FR_GRAPH_WAITS, (uintptr_t)e, &r);
}

/* ---- making graphs ---- */

/* An instantiation; some drivers already take the memory here. */
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

static bool needs_of(CUgraph g, struct call *c)
{
    struct fr_needs needs;
    fr_graph_needs(g, &needs);
    c->exec = NULL;
    c->count = needs.count;
    for (int k = 0; k < needs.count; k++) c->on[k] = (struct part){.device = needs.on[k].device, .need = needs.on[k].bytes};
    return needs.waits;
}

static CUresult go(struct instantiation *i, bool waits)
{
    CUresult r = i->go(i);
    if (!r) note_waits(*i->out, waits);
    return r;
}

static void forget(CUgraphExec e, const struct call *c)
{
    struct fr_record gone;
    for (int i = 0; i < c->count; i++) fr_record_take(FR_GRAPH_EXEC, key_of(e, c->on[i].device), &gone);
}

static CUresult take_memory_and_go(struct instantiation *i)
{
    struct call c;
    bool waits = needs_of(i->graph, &c);
    if (!c.count) return go(i, waits);
    if (!begin(&c)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = go(i, waits);
    end(&c);
    bool known = true;
    for (int k = 0; k < c.count && !r; k++) known &= remember(*i->out, &c.on[k]);
    if (known) return r;
    forget(*i->out, &c);
    REAL(cuGraphExecDestroy)(*i->out);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* With the upload flag, the call also uploads the graph. */
static CUresult make(struct instantiation *i)
{
    struct fr_kernels kernels;
    CUresult r = CUDA_SUCCESS;
    if (!i->out || !i->graph) return i->go(i);
    fr_kernels_of_graph(&kernels, i->graph);
    if (i->params && i->params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) r = fr_kernels_load(&kernels, i->params->hUploadStream);
    if (!r) r = take_memory_and_go(i);
    if (!r) fr_graph_add_kernels(*i->out, &kernels);
    fr_kernels_drop(&kernels);
    return r;
}

/* Another thread may change the parameters and the returned values: the driver reads and writes our copies. */
static CUresult instantiate(struct instantiation *i)
{
    CUgraphExec made = NULL, *out = i->out;
    CUDA_GRAPH_INSTANTIATE_PARAMS own, *params = i->params;
    if (out) i->out = &made;
    if (params) own = *params, i->params = &own;
    CUresult r = make(i);
    if (params) *params = own;
    if (!r && out) *out = made;
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

/* ---- changing an executable graph ---- */

struct change {
    struct call old;
    struct fr_needs need;
};

/* What the graph kept before stays counted. */
static bool set_need(CUgraphExec e, struct fr_need need)
{
    struct part now = {.device = need.device};
    enter(need.device);
    recall_part(e, need.device, &now);
    now.need = need.bytes;
    bool known = remember(e, &now);
    leave(need.device);
    return known;
}

static uint64_t *need_on(struct call *c, CUdevice device)
{
    for (int i = 0; i < c->count; i++)
        if (c->on[i].device == device) return &c->on[i].need;
    return NULL;
}

/* Launches of other threads may find the graph as it was or as it will be. On a device where the changed graph needs no memory
 * any more, its old need stays in its record. False: no memory for a record; then the graph must not change. */
static bool change_begin(struct change *c)
{
    bool known = true;
    for (int i = 0; i < c->need.count; i++) {
        struct fr_need most = c->need.on[i];
        uint64_t *old = need_on(&c->old, most.device);
        if (old && *old > most.bytes) most.bytes = *old;
        known &= set_need(c->old.exec, most);
    }
    return known;
}

static void change_end(struct change *c, CUresult r)
{
    struct fr_record unused;
    for (int i = 0; i < c->need.count; i++) {
        struct fr_need need = c->need.on[i];
        uint64_t *old = need_on(&c->old, need.device);
        if (r && old) need.bytes = *old;
        if (r && !old) fr_record_take(FR_GRAPH_EXEC, key_of(c->old.exec, need.device), &unused);
        else set_need(c->old.exec, need);
    }
}

static void look_at_kernels(CUgraphExec e, CUgraph g)
{
    struct fr_kernels kernels;
    fr_kernels_of_graph(&kernels, g);
    fr_graph_add_kernels(e, &kernels);
    fr_kernels_drop(&kernels);
}

static bool update_begin(struct change *c, CUgraphExec e, CUgraph g)
{
    look_at_kernels(e, g);
    recall(e, &c->old);
    fr_graph_needs(g, &c->need);
    note_waits(e, c->need.waits);
    return change_begin(c);
}

HOOK CUresult cuGraphExecUpdate(CUgraphExec e, CUgraph g, CUgraphNode *n, int *result)
{
    struct change c;
    CUresult r = update_begin(&c, e, g) ? REAL(cuGraphExecUpdate)(e, g, n, result) : CUDA_ERROR_OUT_OF_MEMORY;
    change_end(&c, r);
    return r;
}
HOOK CUresult cuGraphExecUpdate_v2(CUgraphExec e, CUgraph g, CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO *info)
{
    struct change c;
    CUresult r = update_begin(&c, e, g) ? REAL(cuGraphExecUpdate_v2)(e, g, info) : CUDA_ERROR_OUT_OF_MEMORY;
    change_end(&c, r);
    return r;
}

/* The rest of the graph cannot be seen any more, so the new child's needs are added. */
static bool child_begin(struct change *c, CUgraphExec e, CUgraph child)
{
    look_at_kernels(e, child);
    recall(e, &c->old);
    fr_graph_needs(child, &c->need);
    note_waits(e, c->need.waits);
    for (int i = 0; i < c->need.count; i++) {
        uint64_t *old = need_on(&c->old, c->need.on[i].device);
        if (old) c->need.on[i].bytes += *old;
    }
    return change_begin(c);
}

HOOK CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraph child)
{
    struct change c;
    CUresult r = child_begin(&c, e, child) ? REAL(cuGraphExecChildGraphNodeSetParams)(e, n, child) : CUDA_ERROR_OUT_OF_MEMORY;
    change_end(&c, r);
    return r;
}
static CUresult set_params(CUgraphExec e, CUgraphNode n, CUgraphNodeParams *p)
{
    struct change c;
    CUresult r = fr_node_used(e, p);
    if (r) return r;
    if (!p || p->type != CU_GRAPH_NODE_TYPE_GRAPH) return REAL(cuGraphExecNodeSetParams)(e, n, p);
    r = child_begin(&c, e, p->child.graph) ? REAL(cuGraphExecNodeSetParams)(e, n, p) : CUDA_ERROR_OUT_OF_MEMORY;
    change_end(&c, r);
    return r;
}

/* Another thread may change the parameters, so the driver gets the copy that was checked. */
HOOK CUresult cuGraphExecNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraphNodeParams *p)
{
    if (!p) return REAL(cuGraphExecNodeSetParams)(e, n, p);
    CUgraphNodeParams own = *p;
    CUresult r = set_params(e, n, &own);
    if (!r) *p = own;
    return r;
}

/* During the turns of its devices: a launch at the same time then finds what the graph needs. And if a new graph gets the same
 * handle and has memory on the same devices, it is made after the old records under the handle are gone. */
static CUresult destroy_with_records(CUgraphExec e)
{
    struct call c;
    struct fr_record gone, kernels;
    recall(e, &c);
    bool has_kernels = fr_graph_kernels_ending(e, &kernels);
    for (int i = 0; i < c.count; i++) enter(c.on[i].device);
    CUresult r = REAL(cuGraphExecDestroy)(e);
    for (int i = 0; i < c.count && !r; i++) fr_record_take(FR_GRAPH_EXEC, key_of(e, c.on[i].device), &gone);
    for (int i = 0; i < c.count; i++) leave(c.on[i].device);
    if (has_kernels && !r) fr_graph_kernels_ended(&kernels);
    for (int i = 0; i < c.count; i++) settle(c.on[i].device);
    return r;
}

/* A new graph may get the handle as soon as the driver has it back, so the mark is taken off before, and put back if the driver refuses. */
HOOK CUresult cuGraphExecDestroy(CUgraphExec e)
{
    struct fr_record mark;
    bool waits = fr_graph_may_wait(e) && fr_record_take(FR_GRAPH_WAITS, (uintptr_t)e, &mark);
    CUresult r = fr_graph_is_plain(e) ? REAL(cuGraphExecDestroy)(e) : destroy_with_records(e);
    if (r) note_waits(e, waits);
    return r;
}

HOOK CUresult cuDeviceGraphMemTrim(CUdevice d)
{
    return d >= 0 && d < DEVICES && stores[d].any ? trim(d) : REAL(cuDeviceGraphMemTrim)(d);
}
