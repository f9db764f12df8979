/* Roles that try to hide a long kernel from the events by which the library knows what is in flight. */
#include "player.h"

#include "driver.h"

#include <stdio.h>
#include <stdlib.h>

CUresult cuMemHostAlloc(void **, size_t, unsigned);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *, void *, unsigned);
CUresult cuStreamWaitValue32_v2(CUstream, CUdeviceptr, uint32_t, unsigned);
CUresult cuStreamBeginCapture_v2(CUstream, unsigned);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuGraphDestroy(CUgraph);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamQuery(CUstream);
CUresult cuEventCreate(CUevent *, unsigned);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventQuery(CUevent);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphExecDestroy(CUgraphExec);
CUresult cuGraphLaunch(CUgraphExec, CUstream);

#define OWN_STREAM ((CUstream)2) /* the thread's own default stream */
#define SHORT_US 1000

static void must(CUresult r, const char *what)
{
    if (!r) return;
    fprintf(stderr, "player: %s answers %d\n", what, (int)r);
    exit(3);
}

static CUstream new_stream(void)
{
    CUstream s;
    must(cuStreamCreate(&s, 1), "cuStreamCreate");
    return s;
}

/* With another shape it counts as another kernel, whose length is unknown. */
static void launch(CUstream s, uint64_t us, unsigned blocks)
{
    must(cuLaunchKernel(player_kernel(), blocks, 1, 1, 256, 1, 1, 0, s, (void *[]){&us}, NULL), "cuLaunchKernel");
}

static void await(CUresult (*query)(void *), void *what, void (*meanwhile)(void))
{
    while (query(what) == CUDA_ERROR_NOT_READY && clock_now() < part.end) {
        if (meanwhile) meanwhile();
        clock_sleep_until(clock_now() + 2 * MS);
    }
}
static CUresult of_stream(void *s) { return cuStreamQuery((CUstream)s); }
static CUresult of_event(void *e) { return cuEventQuery((CUevent)e); }

/* A short kernel of known length leaves a batch open. The long one, which looks short, goes into that batch. */
static void hide_in_open_batch(CUstream s, unsigned blocks)
{
    for (int i = 0; i < 2; i++) {
        launch(s, SHORT_US, 1);
        launch(s, 20, blocks);
        must(cuStreamSynchronize(s), "cuStreamSynchronize");
    }
    launch(s, SHORT_US, 1);
    launch(s, part.us, blocks);
}

static void teach(CUstream s)
{
    for (int i = 0; i < 40; i++) launch(s, SHORT_US, 1), must(cuStreamSynchronize(s), "cuStreamSynchronize");
}

#define OLD 64
static CUevent old_events[OLD];
static CUstream idle_stream;

static void record_old_events(void)
{
    for (int i = 0; i < OLD; i++) cuEventRecord(old_events[i], idle_stream);
}

/* The driver reuses handles of destroyed events for events of the library. */
void play_old_events(void)
{
    CUstream s = new_stream();
    idle_stream = new_stream();
    for (int i = 0; i < OLD; i++) must(cuEventCreate(&old_events[i], 0), "cuEventCreate");
    for (int i = 0; i < OLD; i++) must(cuEventDestroy_v2(old_events[i]), "cuEventDestroy");
    while (clock_now() < part.end) {
        launch(s, part.us, 1024);
        await(of_stream, s, record_old_events);
    }
}

/* n streams are held back by a word that is never written. One more is used; no held stream shares its queue on the card. */
#define QUEUES 31
void play_many_streams(void)
{
    void *word;
    CUdeviceptr at;
    must(cuMemHostAlloc(&word, 4096, 2), "cuMemHostAlloc");
    must(cuMemHostGetDevicePointer_v2(&at, word, 0), "cuMemHostGetDevicePointer");
    CUstream s = new_stream();
    for (unsigned i = 1; i <= part.n; i++) {
        CUstream held = new_stream();
        if (i % QUEUES == 0) continue;
        must(cuStreamWaitValue32_v2(held, at, 1, 1), "cuStreamWaitValue32");
        launch(held, 10, 1);
    }
    while (clock_now() < part.end) {
        launch(s, part.us, 1024);
        must(cuStreamSynchronize(s), "cuStreamSynchronize");
    }
}

/* Another stream is captured while a batch is open. */
void play_capture_beside(void)
{
    CUstream s = new_stream(), captured = new_stream();
    teach(s);
    for (unsigned blocks = 2; clock_now() < part.end; blocks++) {
        CUgraph graph;
        hide_in_open_batch(s, blocks);
        must(cuStreamBeginCapture_v2(captured, 2), "cuStreamBeginCapture");
        await(of_stream, s, NULL);
        must(cuStreamEndCapture(captured, &graph), "cuStreamEndCapture");
        must(cuGraphDestroy(graph), "cuGraphDestroy");
    }
}

/* The stream itself is captured and destroyed while its batch is open. */
void play_capture_ends(void)
{
    CUstream s = new_stream();
    CUevent done;
    must(cuEventCreate(&done, 0), "cuEventCreate");
    teach(s);
    for (unsigned blocks = 2; clock_now() < part.end; blocks++) {
        s = new_stream();
        hide_in_open_batch(s, blocks);
        must(cuEventRecord(done, s), "cuEventRecord");
        must(cuStreamBeginCapture_v2(s, 2), "cuStreamBeginCapture");
        must(cuStreamDestroy_v2(s), "cuStreamDestroy");
        await(of_event, done, NULL);
    }
}

static void nothing(void *unused) { (void)unused; }

/* The thread's own default stream, and a call that may make streams wait for the program. */
void play_thread_stream(void)
{
    CUstream other = new_stream();
    teach(OWN_STREAM);
    for (unsigned blocks = 2; clock_now() < part.end; blocks++) {
        hide_in_open_batch(OWN_STREAM, blocks);
        must(cuLaunchHostFunc(other, nothing, NULL), "cuLaunchHostFunc");
        await(of_stream, OWN_STREAM, NULL);
    }
}

/* ---- graphs with a host node, and a kernel behind it ---- */

static CUgraphExec graph_of(void (*wait)(void *), uint64_t us, unsigned blocks)
{
    CUgraph graph;
    CUgraphExec e;
    CUstream s = new_stream();
    must(cuStreamBeginCapture_v2(s, 2), "cuStreamBeginCapture");
    launch(s, 10, 1);
    must(cuLaunchHostFunc(s, wait, NULL), "cuLaunchHostFunc");
    launch(s, us, blocks);
    must(cuStreamEndCapture(s, &graph), "cuStreamEndCapture");
    must(cuGraphInstantiateWithFlags(&e, graph, 0), "cuGraphInstantiateWithFlags");
    must(cuGraphDestroy(graph), "cuGraphDestroy");
    must(cuStreamDestroy_v2(s), "cuStreamDestroy");
    return e;
}

/* n streams. Every graph is a new one, and so of unknown length. */
void play_host_nodes(void)
{
    CUstream streams[16];
    CUgraphExec graphs[16];
    unsigned n = part.n < 16 ? part.n : 16;
    for (unsigned i = 0; i < n; i++) streams[i] = new_stream();
    while (clock_now() < part.end) {
        for (unsigned i = 0; i < n; i++) {
            graphs[i] = graph_of(nothing, part.us, 1024);
            must(cuGraphLaunch(graphs[i], streams[i]), "cuGraphLaunch");
        }
        for (unsigned i = 0; i < n; i++) {
            must(cuStreamSynchronize(streams[i]), "cuStreamSynchronize");
            must(cuGraphExecDestroy(graphs[i]), "cuGraphExecDestroy");
        }
    }
}

static _Atomic unsigned may_go_on;

static void until_it_may(void *unused)
{
    (void)unused;
    while (!may_go_on && clock_now() < part.end) clock_sleep_until(clock_now() + MS);
}

static void release(void) { may_go_on = 1; }

static void launch_many(CUstream s, unsigned round)
{
    for (unsigned i = 0; i < part.n && clock_now() < part.end; i++) launch(s, part.us, part.before ? 2 + round * part.n + i : 1);
}

/* A host node waits until n kernels have been launched into another stream; sync=0: into the same. before=1: each kernel is a new one. */
void play_graph_waits(void)
{
    CUstream waits = new_stream(), other = part.sync ? new_stream() : waits;
    CUgraphExec e = graph_of(until_it_may, 1000, 1);
    teach(other);
    for (unsigned round = 0; clock_now() < part.end; round++) {
        may_go_on = 0;
        must(cuGraphLaunch(e, waits), "cuGraphLaunch");
        clock_sleep_until(clock_now() + 30 * MS); /* the turn is over */
        launch_many(other, round);
        release();
        await(of_stream, waits, NULL);
        await(of_stream, other, NULL);
    }
}

/* The host node is never let go on. */
void play_graph_never(void)
{
    CUstream waits = new_stream(), other = new_stream();
    CUgraphExec e = graph_of(until_it_may, 1000, 1);
    teach(other);
    must(cuGraphLaunch(e, waits), "cuGraphLaunch");
    for (unsigned round = 0; clock_now() < part.end; round++) launch_many(other, round);
}

static void sleeps(void *unused)
{
    (void)unused;
    uint64_t until = clock_now() + part.before * MS;
    while (clock_now() < until && clock_now() < part.end) clock_sleep_until(clock_now() + MS);
}

/* One graph after the other, with a host node that sleeps `before` ms. */
void play_graph_sleeps(void)
{
    CUstream s = new_stream();
    CUgraphExec e = graph_of(sleeps, part.us, 1);
    while (clock_now() < part.end) {
        must(cuGraphLaunch(e, s), "cuGraphLaunch");
        await(of_stream, s, NULL);
    }
}
