/* Streams, events, and waiting. */
#include "local.h"

#include "../state/noise.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_NAP_NS 50000000ull

/* ---- submitting work ---- */

/* Destroyed streams. Their memory stays, because some programs use streams that they destroyed. With SIMGPU_STREAMS_AGAIN the next stream gets
 * that memory, and so the same handle, as with a real driver. */
static struct sim_stream *destroyed;

struct sim_stream *sim_stream_new(void)
{
    struct sim_stream *s = destroyed;
    if (!s || !sim.streams_again) return malloc(sizeof *s);
    destroyed = s->next;
    return s;
}

void sim_stream_gone(struct sim_stream *st)
{
    st->magic = 0;
    st->next = destroyed;
    destroyed = st;
}

void sim_stream_init(struct sim_ctx *ctx, struct sim_stream *st, unsigned flags, int priority)
{
    *st = (struct sim_stream){.magic = MAGIC_STREAM, .ctx = ctx, .flags = flags, .priority = priority,
                              .blocking = !(flags & 1), .id = ++sim.next_number};
    st->queue = (uint16_t)(st == &ctx->legacy ? 0 : 1 + ctx->next_queue++ % (SIM_QUEUES - 1));
}

static struct sim_stream *per_thread_stream(struct sim_ctx *ctx)
{
    long thread = syscall(SYS_gettid);
    for (struct sim_stream *s = ctx->streams; s; s = s->next)
        if (s->per_thread && s->thread == thread) return s;
    struct sim_stream *s = sim_stream_new();
    if (!s) return &ctx->legacy;
    sim_stream_init(ctx, s, 0, 0);
    s->per_thread = true;
    s->thread = thread;
    s->next = ctx->streams;
    return ctx->streams = s;
}

struct sim_stream *sim_stream_of(struct sim_ctx *ctx, CUstream handle)
{
    if (!handle || handle == CU_STREAM_LEGACY) return &ctx->legacy;
    if (handle == CU_STREAM_PER_THREAD) return per_thread_stream(ctx);
    return SIM_VALID(handle, STREAM) && SIM_VALID(handle->ctx, CTX) ? handle : NULL;
}

/* A stream that the program has made has a context, even if none is current. */
CUresult sim_enter_for(CUstream handle, struct sim_ctx **ctx)
{
    CUresult r = sim_enter();
    if (r) return r;
    bool made = (uintptr_t)handle > 2 && SIM_VALID(handle, STREAM);
    *ctx = sim_current() || !made ? sim_current() : handle->ctx;
    r = sim_context_check(*ctx);
    return r ? sim_leave(r) : CUDA_SUCCESS;
}

/* If a blocking stream shares its queue with a non-blocking one, both are blocking: a false dependency, as on a card with fewer queues than
 * the program has streams. */
static void order(struct sim_stream *st, struct sim_item *item)
{
    struct sim_ctx *c = st->ctx;
    item->queue = st->queue;
    item->priority = (int8_t)st->priority;
    if (st->legacy) item->barrier = 1;
    else if (st->blocking) {
        item->after = c->last_legacy;
        sim.host.state->contexts[c->id].blocking |= 1u << st->queue;
    }
}

/* Called with the mutex, which is released while a full queue drains: as on a real card, a launch blocks then. */
CUresult sim_submit(struct sim_stream *st, struct sim_item item, uint64_t *seq)
{
    struct sim_ctx *c = st->ctx;
    for (;;) {
        uint64_t now = sim_now();
        sim_lock(&sim.host);
        sim_reap_sometimes(&sim.host, now);
        sim_advance(&sim.host, now);
        if (!sim_ring_full(&sim.host, c->id)) break;
        uint64_t oldest = sim.host.state->contexts[c->id].tail;
        uint64_t when = sim_earliest(&sim.host, c->id, oldest, now);
        sim_unlock(&sim.host);
        sim_pause();
        sim_nap_until(when < now + MAX_NAP_NS ? when : now + MAX_NAP_NS);
        sim_resume();
        if (c->magic != MAGIC_CTX) return CUDA_ERROR_CONTEXT_IS_DESTROYED; /* destroyed by another thread: its queue never drains */
    }
    order(st, &item);
    uint64_t given = sim_enqueue(&sim.host, c->id, item, sim.host.state->clock_ns);
    sim_unlock(&sim.host);
    st->last_seq = given;
    if (st->legacy) c->last_legacy = given;
    if (seq) *seq = given;
    return CUDA_SUCCESS;
}

/* ---- waiting: called with the mutex, which is released meanwhile ---- */

void sim_wait(uint32_t context, uint32_t generation, uint64_t seq)
{
    if (!seq) return;
    sim_pause();
    for (;;) {
        uint64_t now = sim_now(), when = now;
        sim_lock(&sim.host);
        sim_reap_sometimes(&sim.host, now);
        sim_advance(&sim.host, now);
        bool done = sim_item_done(&sim.host, context, generation, seq);
        if (!done) when = sim_earliest(&sim.host, context, seq, now);
        sim_unlock(&sim.host);
        if (done) break;
        if (when <= now) when = now + 50000; /* the end is unknown */
        sim_nap_until(when < now + MAX_NAP_NS ? when : now + MAX_NAP_NS);
    }
    sim_resume();
}

/* The oldest item that is not retired yet, and the one after the last; no items if the context is gone. */
static uint64_t tail_of(uint32_t id, uint32_t generation, uint64_t *head)
{
    const struct sim_context *c = &sim.host.state->contexts[id];
    sim_lock(&sim.host);
    bool there = c->generation == generation;
    uint64_t tail = there ? c->tail : UINT64_MAX;
    *head = there ? c->head : 0;
    sim_unlock(&sim.host);
    return tail;
}

void sim_wait_context(struct sim_ctx *ctx)
{
    uint32_t id = ctx->id, generation = ctx->generation;
    uint64_t end, head, seq = tail_of(id, generation, &end);
    while (seq < end) {
        sim_wait(id, generation, seq);
        uint64_t tail = tail_of(id, generation, &head);
        seq = tail > seq ? tail : seq + 1;
    }
}

bool sim_work_done(uint32_t context, uint32_t generation, uint64_t seq)
{
    if (!seq) return true;
    sim_lock(&sim.host);
    sim_advance(&sim.host, sim_now());
    bool done = sim_item_done(&sim.host, context, generation, seq);
    sim_unlock(&sim.host);
    return done;
}

/* The last item of a stream; for the legacy stream, also of the blocking streams for which it waits. */
static uint64_t last_of(struct sim_stream *st)
{
    uint64_t last = st->last_seq;
    for (struct sim_stream *s = st->legacy ? st->ctx->streams : NULL; s; s = s->next)
        if (s->blocking && s->last_seq > last) last = s->last_seq;
    return last;
}

bool sim_stream_idle(struct sim_stream *st) { return sim_work_done(st->ctx->id, st->ctx->generation, st->last_seq); }

static void wait_stream(struct sim_stream *st)
{
    struct sim_ctx *c = st->ctx;
    uint64_t last = last_of(st);
    if (st->legacy)
        for (struct sim_stream *s = c->streams; s; s = s->next)
            if (s->blocking) sim_wait(c->id, c->generation, s->last_seq);
    sim_wait(c->id, c->generation, last);
}

/* Frees memory at a synchronisation that began when numbers were at `from`; without a stream, of the whole context. */
void sim_synchronised(const struct sim_ctx *ctx, const struct sim_stream *st, uint64_t from)
{
    sim_late_synchronised(ctx, st, from);
    sim_pools_at_sync();
}

/* ---- the calls ---- */

static CUresult enter_stream(CUstream handle, struct sim_stream **st)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_for(handle, &c);
    if (r) return r;
    *st = sim_stream_of(c, handle);
    return *st ? CUDA_SUCCESS : sim_leave(CUDA_ERROR_INVALID_HANDLE);
}

API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!out || flags > 1) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_stream *s = sim_stream_new();
    if (!s) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    sim_stream_init(c, s, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
    s->next = c->streams;
    *out = c->streams = s;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuStreamCreate(CUstream *out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

static CUresult destroy_stream(CUstream handle)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_stream *s = (uintptr_t)handle > 2 ? sim_stream_of(c, handle) : NULL;
    if (!s) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    for (struct sim_stream **p = &s->ctx->streams; *p; p = &(*p)->next)
        if (*p == s) {
            *p = s->next;
            break;
        }
    sim_capture_stream_ends(s);
    sim_stream_gone(s); /* its work continues */
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuStreamDestroy(CUstream s) { return destroy_stream(s); }
API CUresult cuStreamDestroy_v2(CUstream s) { return destroy_stream(s); }

static CUresult synchronize(CUstream handle)
{
    struct sim_stream *st;
    CUresult r = enter_stream(handle, &st);
    if (r) return r;
    if (sim_capturing(st)) return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    uint64_t from = sim.next_number;
    wait_stream(st);
    sim_synchronised(st->ctx, st, from);
    return sim_leave(sim_context_check(st->ctx));
}

API CUresult cuStreamSynchronize(CUstream s) { return synchronize(s); }
API CUresult cuStreamSynchronize_ptsz(CUstream s) { return synchronize(SIM_PER_THREAD(s)); }

static CUresult query(CUstream handle)
{
    struct sim_stream *st;
    sim_noise_cost(SIM_COST_QUERY_NS);
    CUresult r = enter_stream(handle, &st);
    if (r) return r;
    if (sim_capturing(st)) return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    bool done = true;
    for (struct sim_stream *s = st->legacy ? st->ctx->streams : NULL; s; s = s->next)
        if (s->blocking) done &= sim_stream_idle(s);
    return sim_leave(done && sim_stream_idle(st) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

API CUresult cuStreamQuery(CUstream s) { return query(s); }
API CUresult cuStreamQuery_ptsz(CUstream s) { return query(SIM_PER_THREAD(s)); }

enum stream_fact { FLAGS, PRIORITY, ID, CONTEXT, DEVICE };

static CUresult fact(CUstream handle, void *out, enum stream_fact which)
{
    struct sim_stream *st;
    CUresult r = enter_stream(handle, &st);
    if (r) return r;
    if (!out) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    switch (which) {
    case FLAGS: *(unsigned *)out = st->flags; break;
    case PRIORITY: *(int *)out = st->priority; break;
    case ID: *(unsigned long long *)out = st->id; break;
    case CONTEXT: *(CUcontext *)out = st->ctx; break;
    case DEVICE: *(CUdevice *)out = st->ctx->device; break;
    }
    return sim_leave(CUDA_SUCCESS);
}

#define FACT(name, type, which)                                                                \
    API CUresult name(CUstream s, type *out) { return fact(s, out, which); }                   \
    API CUresult name##_ptsz(CUstream s, type *out) { return fact(SIM_PER_THREAD(s), out, which); }
FACT(cuStreamGetFlags, unsigned, FLAGS)
FACT(cuStreamGetPriority, int, PRIORITY)
FACT(cuStreamGetId, unsigned long long, ID)
FACT(cuStreamGetCtx, CUcontext, CONTEXT)
FACT(cuStreamGetDevice, CUdevice, DEVICE)

/* ---- events ---- */

enum { EVENT_BLOCKING = 1, EVENT_NO_TIMING = 2, EVENT_INTERPROCESS = 4 };

static struct sim_event *shared_event(const struct sim_ev *e) { return &sim.host.state->events[e->slot - 1]; }

static uint32_t take_event(void)
{
    struct sim_state *s = sim.host.state;
    sim_lock(&sim.host);
    static uint32_t cursor;
    uint32_t found = 0;
    for (uint32_t i = 0; i < SIM_EVENTS && !found; i++) {
        uint32_t at = (cursor + i) % SIM_EVENTS;
        if (atomic_load(&s->events[at].state) == SIM_FREE) found = at + 1;
    }
    if (found) {
        struct sim_event *e = &s->events[found - 1];
        e->process = sim.host.slot;
        e->generation = ++s->generation;
        e->done = 1;
        e->ipc = e->context = 0;
        e->seq = e->end_ns = 0;
        atomic_store(&e->state, SIM_HELD);
        if (found > s->event_high) s->event_high = found;
        cursor = found % SIM_EVENTS;
    }
    sim_unlock(&sim.host);
    return found;
}

API CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    bool bad = flags > 7 || ((flags & EVENT_INTERPROCESS) && !(flags & EVENT_NO_TIMING));
    if (!out || bad) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_ev *e = calloc(1, sizeof *e);
    uint32_t slot = e ? take_event() : 0;
    if (!slot) return free(e), sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *e = (struct sim_ev){.magic = MAGIC_EVENT, .slot = slot, .ctx = c, .flags = flags};
    e->generation = shared_event(e)->generation;
    *out = e;
    return sim_leave(CUDA_SUCCESS);
}

static CUresult destroy_event(CUevent e)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(e, EVENT)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!e->imported) atomic_store(&shared_event(e)->state, SIM_FREE);
    e->magic = 0;
    free(e->captured);
    free(e);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuEventDestroy(CUevent e) { return destroy_event(e); }
API CUresult cuEventDestroy_v2(CUevent e) { return destroy_event(e); }

static CUresult record(CUevent e, CUstream handle)
{
    struct sim_stream *st;
    sim_noise_cost(SIM_COST_RECORD_NS);
    CUresult r = enter_stream(handle, &st);
    if (r) return r;
    if (!SIM_VALID(e, EVENT)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (sim_capturing(st)) return sim_capture_event(st, e), sim_leave(CUDA_SUCCESS);
    struct sim_item item = {.kind = SIM_MARK, .event = e->slot, .event_generation = e->generation};
    e->recorded = true;
    e->in_capture = false;
    e->capture = NULL;
    return sim_leave(sim_submit(st, item, NULL));
}

API CUresult cuEventRecord(CUevent e, CUstream s) { return record(e, s); }
API CUresult cuEventRecord_ptsz(CUevent e, CUstream s) { return record(e, SIM_PER_THREAD(s)); }
API CUresult cuEventRecordWithFlags(CUevent e, CUstream s, unsigned f) { return (void)f, record(e, s); }
API CUresult cuEventRecordWithFlags_ptsz(CUevent e, CUstream s, unsigned f) { return (void)f, record(e, SIM_PER_THREAD(s)); }

static bool event_done(const struct sim_ev *e)
{
    sim_lock(&sim.host);
    sim_advance(&sim.host, sim_now());
    bool done = shared_event(e)->done;
    sim_unlock(&sim.host);
    return done;
}

API CUresult cuEventQuery(CUevent e)
{
    sim_noise_cost(SIM_COST_QUERY_NS);
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(e, EVENT)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (e->in_capture) return sim_leave(CUDA_ERROR_CAPTURED_EVENT);
    return sim_leave(event_done(e) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

API CUresult cuEventSynchronize(CUevent e)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(e, EVENT)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (e->in_capture) return sim_leave(CUDA_ERROR_CAPTURED_EVENT);
    struct sim_event *shared = shared_event(e);
    if (!event_done(e)) sim_wait(shared->context, shared->context_generation, shared->seq);
    sim_pools_at_sync();
    return sim_leave(CUDA_SUCCESS);
}

static CUresult elapsed(float *out, CUevent a, CUevent b)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!SIM_VALID(a, EVENT) || !SIM_VALID(b, EVENT)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!a->recorded || !b->recorded || ((a->flags | b->flags) & EVENT_NO_TIMING)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (a->in_capture || b->in_capture) return sim_leave(CUDA_ERROR_CAPTURED_EVENT);
    if (!event_done(a) || !event_done(b)) return sim_leave(CUDA_ERROR_NOT_READY);
    int64_t ns = (int64_t)(shared_event(b)->end_ns - shared_event(a)->end_ns);
    *out = (float)((double)ns / 1e6);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuEventElapsedTime(float *out, CUevent a, CUevent b) { return elapsed(out, a, b); }
API CUresult cuEventElapsedTime_v2(float *out, CUevent a, CUevent b) { return elapsed(out, a, b); }

static CUresult wait_event(CUstream handle, CUevent e)
{
    struct sim_stream *st;
    CUresult r = enter_stream(handle, &st);
    if (r) return r;
    if (!SIM_VALID(e, EVENT)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (e->capture || sim_capturing(st)) return sim_leave(sim_capture_wait(st, e));
    const struct sim_event *shared = shared_event(e);
    if (event_done(e)) return sim_leave(CUDA_SUCCESS);
    struct sim_item item = {.kind = SIM_WAIT, .depends_context = shared->context,
                            .depends_generation = shared->context_generation, .depends_seq = shared->seq};
    return sim_leave(sim_submit(st, item, NULL));
}

API CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned f) { return (void)f, wait_event(s, e); }
API CUresult cuStreamWaitEvent_ptsz(CUstream s, CUevent e, unsigned f) { return (void)f, wait_event(SIM_PER_THREAD(s), e); }

/* ---- events of another process ---- */

struct ipc_event { uint64_t magic; uint32_t slot, generation; };
#define IPC_EVENT_MAGIC 0x5349475556454e54ull

API CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent e)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !SIM_VALID(e, EVENT) || !(e->flags & EVENT_INTERPROCESS)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    struct ipc_event h = {IPC_EVENT_MAGIC, e->slot, e->generation};
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle)
{
    struct sim_ctx *c;
    struct ipc_event h;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    memcpy(&h, &handle, sizeof h);
    if (!out || h.magic != IPC_EVENT_MAGIC || !h.slot || h.slot > SIM_EVENTS) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    const struct sim_event *shared = &sim.host.state->events[h.slot - 1];
    if (atomic_load(&shared->state) != SIM_HELD || shared->generation != h.generation) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    struct sim_ev *e = calloc(1, sizeof *e);
    if (!e) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *e = (struct sim_ev){.magic = MAGIC_EVENT, .slot = h.slot, .generation = h.generation, .ctx = c,
                         .flags = EVENT_NO_TIMING | EVENT_INTERPROCESS, .recorded = true, .imported = true};
    *out = e;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuStreamAttachMemAsync(CUstream s, CUdeviceptr p, size_t n, unsigned f)
{
    return (void)s, (void)p, (void)n, (void)f, sim_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
API CUresult cuStreamAttachMemAsync_ptsz(CUstream s, CUdeviceptr p, size_t n, unsigned f) { return cuStreamAttachMemAsync(s, p, n, f); }
