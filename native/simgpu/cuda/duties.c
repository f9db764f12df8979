/* Work that the host does for a stream in stream order: callbacks, writing a word, waiting until a word has the right value. One thread of the
 * process does all of it. A callback and a wait block their stream; a write does not. */
#include "clock.h"
#include "local.h"

#include <pthread.h>
#include <stdlib.h>

#define POLL_NS 50000ull
#define MAX_NAP_NS 20000000ull

enum duty_kind { CALL, STREAM_CALL, WRITE, WAIT };
enum { AT_LEAST = 0, EQUAL = 1, AND = 2, NOR = 3 };

struct duty {
    enum duty_kind kind;
    CUhostFn fn;
    CUstreamCallback stream_fn;
    CUstream stream;
    void *data; /* argument of the callback, or the word */
    uint64_t value;
    unsigned width, condition;
    uint32_t context, generation;
    uint64_t seq;
    struct duty *next;
};

static struct duty *duties;
static _Atomic uint32_t changed; /* a futex: changes with every new duty */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool running;

static uint64_t read_word(const struct duty *d)
{
    if (d->width == 4) return atomic_load((_Atomic uint32_t *)d->data);
    return atomic_load((_Atomic uint64_t *)d->data);
}

static void write_word(const struct duty *d)
{
    if (d->width == 4) atomic_store((_Atomic uint32_t *)d->data, (uint32_t)d->value);
    else atomic_store((_Atomic uint64_t *)d->data, d->value);
}

static bool word_is_right(const struct duty *d)
{
    uint64_t word = read_word(d);
    switch (d->condition) {
    case AT_LEAST: return d->width == 4 ? (int32_t)((uint32_t)word - (uint32_t)d->value) >= 0 : (int64_t)(word - d->value) >= 0;
    case EQUAL: return word == d->value;
    case AND: return (word & d->value) != 0;
    default: return d->width == 4 ? (uint32_t)~(word | d->value) != 0 : ~(word | d->value) != 0;
    }
}

/* Is the duty due? If not, *when is the earliest time. */
static bool due(const struct duty *d, uint64_t *when)
{
    uint64_t now = sim_now();
    sim_lock(&sim.host);
    sim_advance(&sim.host, now);
    const struct sim_item *it = &sim.host.state->rings[d->context][d->seq % SIM_RING];
    bool over = sim_item_done(&sim.host, d->context, d->generation, d->seq);
    bool come = over || (d->kind != WRITE && it->state == SIM_STARTED);
    uint64_t earliest = come ? now : sim_earliest(&sim.host, d->context, d->seq, now);
    sim_unlock(&sim.host);
    if (come && !over && d->kind == WAIT && !word_is_right(d)) come = false, earliest = now;
    if (earliest < now + POLL_NS) earliest = now + POLL_NS;
    if (!come && earliest < *when) *when = earliest;
    return come;
}

static void finish(const struct duty *d)
{
    sim_lock(&sim.host);
    if (!sim_item_done(&sim.host, d->context, d->generation, d->seq)) sim_complete(&sim.host, d->context, d->seq, sim_now());
    sim_unlock(&sim.host);
}

static void perform(struct duty *d)
{
    if (d->kind == CALL) d->fn(d->data);
    if (d->kind == STREAM_CALL) d->stream_fn(d->stream, CUDA_SUCCESS, d->data);
    if (d->kind == WRITE) write_word(d);
    else finish(d);
    free(d);
}

/* Removes the first duty that is due from the list. */
static struct duty *next_due(uint64_t *when)
{
    for (struct duty **p = &duties; *p; p = &(*p)->next)
        if (due(*p, when)) {
            struct duty *d = *p;
            *p = d->next;
            return d;
        }
    return NULL;
}

static void *attend(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&mutex);
    for (;;) {
        uint32_t heard = atomic_load(&changed);
        uint64_t when = sim_now() + MAX_NAP_NS;
        struct duty *d = next_due(&when);
        bool none = !duties;
        pthread_mutex_unlock(&mutex);
        if (d) perform(d);
        else clock_wait(&changed, heard, none ? 0 : when);
        pthread_mutex_lock(&mutex);
    }
    return NULL;
}

static bool have_thread(void)
{
    pthread_t thread;
    pthread_mutex_lock(&mutex);
    if (!running && pthread_create(&thread, NULL, attend, NULL) == 0) {
        pthread_detach(thread);
        running = true;
    }
    pthread_mutex_unlock(&mutex);
    return running;
}

static CUresult submit(struct sim_stream *st, struct duty what)
{
    struct duty *d = malloc(sizeof *d);
    struct sim_item item = {.kind = what.kind == WRITE ? SIM_MARK : SIM_HOST};
    if (!d || !have_thread()) return free(d), CUDA_ERROR_OUT_OF_MEMORY;
    *d = what;
    d->context = st->ctx->id;
    d->generation = st->ctx->generation;
    CUresult r = sim_submit(st, item, &d->seq);
    pthread_mutex_lock(&mutex);
    struct duty **p = &duties;
    while (*p) p = &(*p)->next;
    *p = d;
    atomic_fetch_add(&changed, 1);
    pthread_mutex_unlock(&mutex);
    clock_wake(&changed);
    return r;
}

static CUresult enter_stream(CUstream handle, struct sim_stream **st)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    *st = sim_stream_of(c, handle);
    return *st ? CUDA_SUCCESS : sim_leave(CUDA_ERROR_INVALID_HANDLE);
}

/* ---- callbacks ---- */

CUresult sim_submit_host(struct sim_stream *st, CUhostFn fn, void *data)
{
    return submit(st, (struct duty){.kind = CALL, .fn = fn, .data = data});
}

static CUresult launch_host(CUstream handle, CUhostFn fn, void *data)
{
    struct sim_stream *st;
    CUresult r = enter_stream(handle, &st);
    if (r) return r;
    if (!fn) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (sim_capturing(st)) {
        CUgraphNodeParams p = {.type = 3, .host = {fn, data}};
        return sim_leave(sim_capture_node(st, &p));
    }
    return sim_leave(sim_submit_host(st, fn, data));
}

API CUresult cuLaunchHostFunc(CUstream s, CUhostFn fn, void *data) { return launch_host(s, fn, data); }
API CUresult cuLaunchHostFunc_ptsz(CUstream s, CUhostFn fn, void *data) { return launch_host(SIM_PER_THREAD(s), fn, data); }

/* The mode only says how the driver's thread waits. */
#define MOST_MODE 1
static CUresult launch_host_v2(CUstream s, CUhostFn fn, void *data, unsigned mode) { return mode > MOST_MODE ? CUDA_ERROR_INVALID_VALUE : launch_host(s, fn, data); }
API CUresult cuLaunchHostFunc_v2(CUstream s, CUhostFn fn, void *data, unsigned mode) { return launch_host_v2(s, fn, data, mode); }
API CUresult cuLaunchHostFunc_v2_ptsz(CUstream s, CUhostFn fn, void *data, unsigned mode) { return launch_host_v2(SIM_PER_THREAD(s), fn, data, mode); }

static CUresult add_callback(CUstream handle, CUstreamCallback fn, void *data, unsigned flags)
{
    struct sim_stream *st;
    CUresult r = enter_stream(handle, &st);
    if (r) return r;
    if (!fn || flags) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (sim_capturing(st)) return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return sim_leave(submit(st, (struct duty){.kind = STREAM_CALL, .stream_fn = fn, .stream = handle, .data = data}));
}

API CUresult cuStreamAddCallback(CUstream s, CUstreamCallback f, void *d, unsigned x) { return add_callback(s, f, d, x); }
API CUresult cuStreamAddCallback_ptsz(CUstream s, CUstreamCallback f, void *d, unsigned x)
{
    return add_callback(SIM_PER_THREAD(s), f, d, x);
}

/* ---- words of memory ---- */

static CUresult word(CUstream handle, CUdeviceptr at, struct duty d)
{
    struct sim_stream *st;
    bool device;
    CUresult r = enter_stream(handle, &st);
    if (r) return r;
    if (sim_capturing(st)) return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    d.data = sim_region_find(at) && at % d.width == 0 ? sim_contents(at, d.width, &device) : NULL;
    if (!d.data || d.condition > NOR) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    return sim_leave(submit(st, d));
}

#define WORDS(name, kind_, width_, type, condition_)                                                                    \
    API CUresult name(CUstream s, CUdeviceptr at, type v, unsigned f)                                                   \
    {                                                                                                                   \
        return (void)f, word(s, at, (struct duty){.kind = kind_, .width = width_, .value = v, .condition = condition_}); \
    }                                                                                                                   \
    API CUresult name##_ptsz(CUstream s, CUdeviceptr at, type v, unsigned f) { return name(SIM_PER_THREAD(s), at, v, f); }

WORDS(cuStreamWriteValue32, WRITE, 4, uint32_t, 0)
WORDS(cuStreamWriteValue32_v2, WRITE, 4, uint32_t, 0)
WORDS(cuStreamWriteValue64, WRITE, 8, uint64_t, 0)
WORDS(cuStreamWriteValue64_v2, WRITE, 8, uint64_t, 0)
WORDS(cuStreamWaitValue32, WAIT, 4, uint32_t, f & 7)
WORDS(cuStreamWaitValue32_v2, WAIT, 4, uint32_t, f & 7)
WORDS(cuStreamWaitValue64, WAIT, 8, uint64_t, f & 7)
WORDS(cuStreamWaitValue64_v2, WAIT, 8, uint64_t, f & 7)
