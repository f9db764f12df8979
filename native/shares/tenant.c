/* One process of a container: launches kernels in one of the ways that real programs do, from its arrival to its departure.
 *
 *     tenant BOARD SEAT ARRIVE_MS DEPART_MS key=value ...
 *
 *     loop=async    launch without ever waiting; only the driver's own queue limits it
 *     loop=sync     one kernel, wait, next
 *     loop=burst    n kernels (and a copy, a fill) over the streams, wait: a training step
 *     loop=graph    n kernels captured once, launched as a graph, wait after every fourth
 *     loop=service  requests arrive at random (rate= per second), each is n kernels and a wait; its latency is recorded
 *     loop=copies   copies of copy= MiB within the card, and nothing else; only the driver's own queue limits them
 *     loop=idle     a context, and nothing else
 *     kernels=US:GRID,...  the kernels, launched in turn or at random (pick=random, seed=); each with a function of its own, unless
 *                          hidden=1: then all have one function and grid, and only a parameter sets the length
 *     n= streams= copy=MiB fill=MiB think=US */
#include "board.h"
#include "driver.h"

#include "clock.h"

#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define KERNELS 8
#define STREAMS 16
#define MS 1000000ull

static struct {
    char loop[16];
    unsigned us[KERNELS], grid[KERNELS], kernels, n, streams, think_us;
    size_t copy, fill;
    bool random, hidden;
    double rate, spread;
    uint64_t seed;
} how = {.loop = "async", .n = 16, .streams = 1, .seed = 1};

static CUfunction functions[KERNELS];
static CUstream streams[STREAMS];
static CUdeviceptr from, to;
static CUgraphExec graph;
static struct board *board;
static struct seat *seat;
static uint64_t leaves; /* time of the departure */

static void must(CUresult r, const char *what)
{
    if (!r) return;
    fprintf(stderr, "tenant: %s answers %d\n", what, (int)r);
    exit(3);
}

static double uniform(void) /* 0 < u <= 1 */
{
    how.seed = how.seed * 6364136223846793005ull + 1442695040888963407ull;
    return (double)((how.seed >> 33) + 1) / 2147483648.0;
}

/* ---- arguments ---- */

static void read_kernels(char *list)
{
    char *save = NULL;
    for (char *k = strtok_r(list, ",", &save); k && how.kernels < KERNELS; k = strtok_r(NULL, ",", &save)) {
        char *grid = strchr(k, ':');
        how.us[how.kernels] = (unsigned)atoi(k);
        how.grid[how.kernels++] = grid ? (unsigned)atoi(grid + 1) : 1024;
    }
}

static void read_word(char *word)
{
    char *value = strchr(word, '=');
    if (!value) return;
    *value++ = 0;
    if (!strcmp(word, "loop")) snprintf(how.loop, sizeof how.loop, "%s", value);
    else if (!strcmp(word, "kernels")) read_kernels(value);
    else if (!strcmp(word, "n")) how.n = (unsigned)atoi(value);
    else if (!strcmp(word, "streams")) how.streams = (unsigned)atoi(value);
    else if (!strcmp(word, "copy")) how.copy = (size_t)atoi(value) << 20;
    else if (!strcmp(word, "fill")) how.fill = (size_t)atoi(value) << 20;
    else if (!strcmp(word, "think")) how.think_us = (unsigned)atoi(value);
    else if (!strcmp(word, "pick")) how.random = !strcmp(value, "random");
    else if (!strcmp(word, "hidden")) how.hidden = atoi(value);
    else if (!strcmp(word, "rate")) how.rate = atof(value);
    else if (!strcmp(word, "spread")) how.spread = atof(value);
    else if (!strcmp(word, "seed")) how.seed ^= strtoull(value, NULL, 10) * 0x9e3779b97f4a7c15ull;
}

/* ---- the card ---- */

static void load_kernels(void)
{
    char text[4096] = ".version 7.0\n.target sm_80\n.address_size 64\n", name[8];
    CUmodule module;
    for (unsigned i = 0; i < KERNELS; i++) {
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, "// simgpu: time_us=$0\n.visible .entry k%u(.param .u64 us) { ret; }\n", i);
    }
    must(cuModuleLoadData(&module, text), "cuModuleLoadData");
    for (unsigned i = 0; i < KERNELS; i++) {
        snprintf(name, sizeof name, "k%u", how.hidden ? 0 : i);
        must(cuModuleGetFunction(&functions[i], module, name), "cuModuleGetFunction");
    }
}

static void launch(unsigned turn, CUstream stream, double factor)
{
    unsigned k = how.random ? (unsigned)(uniform() * how.kernels) % how.kernels : turn % how.kernels;
    uint64_t us = (uint64_t)(how.us[k] * factor + 0.5);
    must(cuLaunchKernel(functions[k], how.grid[how.hidden ? 0 : k], 1, 1, 256, 1, 1, 0, stream, (void *[]){&us}, NULL), "cuLaunchKernel");
}

static void make_graph(void)
{
    CUgraph g;
    must(cuStreamBeginCapture_v2(streams[0], 2), "cuStreamBeginCapture");
    for (unsigned i = 0; i < how.n; i++) launch(i, streams[0], 1);
    must(cuStreamEndCapture(streams[0], &g), "cuStreamEndCapture");
    must(cuGraphInstantiateWithFlags(&graph, g, 0), "cuGraphInstantiate");
}

static void prepare(void)
{
    CUcontext context;
    must(cuInit(0), "cuInit");
    must(cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate");
    load_kernels();
    for (unsigned i = 0; i < how.streams && i < STREAMS; i++) must(cuStreamCreate(&streams[i], 1), "cuStreamCreate");
    size_t room = how.copy > how.fill ? how.copy : how.fill;
    if (room) must(cuMemAlloc_v2(&from, room), "cuMemAlloc"), must(cuMemAlloc_v2(&to, room), "cuMemAlloc");
    if (!strcmp(how.loop, "graph")) make_graph();
}

/* ---- one iteration of each loop ---- */

static void sync_once(unsigned turn)
{
    launch(turn, streams[0], 1);
    must(cuStreamSynchronize(streams[0]), "cuStreamSynchronize");
}

/* At the departure a burst is not finished: it may be seconds of work. */
static void burst_once(unsigned turn)
{
    for (unsigned i = 0; i < how.n && clock_now() < leaves; i++) launch(turn * how.n + i, streams[i % how.streams], 1);
    if (how.copy) must(cuMemcpyDtoDAsync_v2(to, from, how.copy, streams[0]), "cuMemcpyDtoDAsync");
    if (how.fill) must(cuMemsetD8Async(to, 0, how.fill, streams[0]), "cuMemsetD8Async");
    must(cuCtxSynchronize(), "cuCtxSynchronize");
}

static void graph_once(unsigned turn)
{
    must(cuGraphLaunch(graph, streams[0]), "cuGraphLaunch");
    if (turn % 4 == 3) must(cuStreamSynchronize(streams[0]), "cuStreamSynchronize");
}

/* Requests queue at the service: the time that a request waits for earlier ones is part of its latency. The work of a request varies
 * log-normally around the kernels' times. */
static void service_once(unsigned turn)
{
    static uint64_t next;
    if (!next) next = atomic_load(&board->start_ns);
    next += (uint64_t)(-log(uniform()) / how.rate * 1e9);
    if (next > clock_now()) clock_sleep_until(next);
    double normal = sqrt(-2 * log(uniform())) * cos(6.283185307 * uniform());
    double factor = exp(how.spread * normal - how.spread * how.spread / 2);
    for (unsigned i = 0; i < how.n; i++) launch(turn * how.n + i, streams[0], factor);
    must(cuStreamSynchronize(streams[0]), "cuStreamSynchronize");
    uint32_t at = atomic_fetch_add(&seat->requests, 1);
    if (at < REQUESTS) seat->latency_us[at] = (uint32_t)((clock_now() - next) / 1000);
}

static void async_once(unsigned turn) { launch(turn, streams[turn % how.streams], 1); }

static void copies_once(unsigned turn)
{
    must(cuMemcpyAsync(turn & 1 ? to : from, turn & 1 ? from : to, how.copy, streams[turn % how.streams]), "cuMemcpyAsync");
}

static void run_until(uint64_t end)
{
    leaves = end;
    static const struct { const char *name; void (*once)(unsigned); } loops[] = {
        {"async", async_once}, {"sync", sync_once}, {"burst", burst_once}, {"graph", graph_once}, {"service", service_once},
        {"copies", copies_once}};
    void (*once)(unsigned) = NULL;
    for (size_t i = 0; i < sizeof loops / sizeof *loops; i++)
        if (!strcmp(how.loop, loops[i].name)) once = loops[i].once;
    for (unsigned turn = 0; once && clock_now() < end; turn++) {
        uint64_t from = clock_now();
        once(turn);
        uint32_t us = (uint32_t)((clock_now() - from) / 1000);
        if (us > atomic_load(&seat->longest_us)) atomic_store(&seat->longest_us, us);
        if (how.think_us) clock_sleep_until(clock_now() + how.think_us * 1000ull);
    }
    clock_sleep_until(end);
}

int main(int count, char **arguments)
{
    if (count < 5) return fprintf(stderr, "usage: tenant BOARD SEAT ARRIVE_MS DEPART_MS key=value ...\n"), 2;
    int fd = open(arguments[1], O_RDWR | O_CLOEXEC), index = atoi(arguments[2]);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || board == MAP_FAILED || index < 0 || index >= SEATS) return perror(arguments[1]), 2;
    seat = &board->seats[index];
    how.seed += (uint64_t)index;
    for (int i = 5; i < count; i++) read_word(arguments[i]);
    if (!how.kernels) read_kernels((char[]){"100:1024"});
    if (how.streams < 1 || how.streams > STREAMS) how.streams = 1;
    prepare();
    atomic_fetch_add(&board->ready, 1);
    while (!atomic_load(&board->go)) clock_wait(&board->go, 0, 0);
    uint64_t start = atomic_load(&board->start_ns);
    clock_sleep_until(start + (uint64_t)atoll(arguments[3]) * MS);
    run_until(start + (uint64_t)atoll(arguments[4]) * MS);
    return 0;
}
