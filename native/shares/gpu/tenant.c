/* gpu-tenant: one process of a container on a real card. It is a plain program that uses the driver API, and has no knowledge of the library
 * that may be in between.
 *
 *     gpu-tenant BOARD SEAT PTX key=value ...     launches from the board's start to its end; PTX: the folder with the kernels
 *     gpu-tenant amount PTX KIND US BLOCKS        prints the amount of work of this kind for a kernel that takes US microseconds
 *
 *     loop=async    launches without waiting, until work for about 200 ms is queued
 *     loop=sync     one kernel, wait, next
 *     loop=burst    n kernels over the streams, wait
 *     loop=graph    n kernels captured once, launched as a graph, wait after every fourth
 *     loop=idle     a context, and nothing else
 *     kernels=KIND:US:BLOCKS:AMOUNT,...  in turn; KIND is spin, memory or matmul; BLOCKS 0: four for every SM
 *     n= streams=
 *
 * Only kernels that were done when the window ended are counted, not all that were launched: a thread looks at events behind the launches.
 * Then the process ends at once, even if it still has work queued. */
#include "tenant.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

static struct {
    char loop[16];
    unsigned n, streams;
} how = {.loop = "async", .n = 16, .streams = 1};

static struct kernel kernels[KERNELS];
static unsigned kernel_count;
static CUstream streams[STREAMS];
static CUgraphExec graph;
static struct board *board;
static struct seat *seat;
static struct queue queues[STREAMS];
static unsigned batch = 1; /* kernels between two events of a stream */

/* ---- arguments ---- */

static void read_kernels(char *list)
{
    char *save = NULL;
    for (char *k = strtok_r(list, ",", &save); k && kernel_count < KERNELS; k = strtok_r(NULL, ",", &save)) {
        struct kernel *new = &kernels[kernel_count++];
        unsigned long long us = 0, amount = 0;
        if (sscanf(k, "%15[a-z]:%llu:%u:%llu", new->kind, &us, &new->blocks, &amount) != 4 || !us) fail("a kernel is KIND:US:BLOCKS:AMOUNT");
        new->us = us, new->amount = amount;
    }
}

static void read_word(char *word)
{
    char *value = strchr(word, '=');
    if (!value) fail(word);
    *value++ = 0;
    if (!strcmp(word, "loop")) snprintf(how.loop, sizeof how.loop, "%s", value);
    else if (!strcmp(word, "kernels")) read_kernels(value);
    else if (!strcmp(word, "n")) how.n = (unsigned)atoi(value);
    else if (!strcmp(word, "streams")) how.streams = (unsigned)atoi(value);
    else fail(word);
}

/* ---- launching ---- */

static void launch(unsigned turn, CUstream stream) { launch_kernel(&kernels[turn % kernel_count], stream); }

static void make_graph(void)
{
    CUgraph g;
    MUST(cuStreamBeginCapture_v2(streams[0], THREAD_LOCAL));
    for (unsigned i = 0; i < how.n; i++) launch(i, streams[0]);
    MUST(cuStreamEndCapture(streams[0], &g));
    MUST(cuGraphInstantiateWithFlags(&graph, g, 0));
}

/* Records an event about every millisecond, and queues 200 ms of work, but at least two batches ahead of the card. */
static void prepare(void)
{
    uint64_t us = 0;
    open_context();
    for (unsigned i = 0; i < kernel_count; i++) load_kernel(&kernels[i]), us += kernels[i].us;
    for (unsigned i = 0; i < how.streams; i++) MUST(cuStreamCreate(&streams[i], NON_BLOCKING));
    if (!kernel_count) return;
    batch = kernel_count;
    while (batch * us / kernel_count < 1000) batch += kernel_count;
    if (!strcmp(how.loop, "graph")) make_graph(), batch = how.n;
    for (unsigned i = 0; i < how.streams; i++) queue_open(&queues[i], streams[i], 200000 / (batch * us / kernel_count));
}

static void async_once(unsigned turn)
{
    unsigned s = turn % how.streams;
    for (unsigned i = 0; i < batch; i++) launch(i, streams[s]);
    queue_mark(&queues[s]);
}

static void sync_once(unsigned turn)
{
    launch(turn, streams[0]);
    MUST(cuStreamSynchronize(streams[0]));
    atomic_fetch_add(&seat->done, 1);
}

static void burst_once(unsigned turn)
{
    for (unsigned i = 0; i < how.n; i++) launch(turn * how.n + i, streams[i % how.streams]);
    MUST(cuCtxSynchronize());
    atomic_fetch_add(&seat->done, how.n);
}

static void graph_once(unsigned turn)
{
    MUST(cuGraphLaunch(graph, streams[0]));
    queue_mark(&queues[0]);
    if (turn % 4 == 3) MUST(cuStreamSynchronize(streams[0]));
}

static void idle_once(unsigned turn) { (void)turn, sleep_ms(1); }

static void (*loop(void))(unsigned)
{
    static const struct { const char *name; void (*once)(unsigned); } loops[] = {
        {"async", async_once}, {"sync", sync_once}, {"burst", burst_once}, {"graph", graph_once}, {"idle", idle_once}};
    for (size_t i = 0; i < sizeof loops / sizeof *loops; i++)
        if (!strcmp(how.loop, loops[i].name)) return loops[i].once;
    fail("no such loop");
}

/* ---- counting ---- */

static void *count(void *unused)
{
    set_context();
    for (uint64_t end = board->end_ns; now_ns() < end; sleep_ms(1))
        for (unsigned i = 0; i < how.streams; i++) atomic_fetch_add(&seat->done, queue_take(&queues[i]) * batch);
    atomic_store(&seat->ended_ns, now_ns());
    _exit(0);
    return unused;
}

static void take_part(int index)
{
    pthread_t counter;
    seat = &board->seats[index];
    prepare();
    atomic_fetch_add(&board->ready, 1);
    while (!atomic_load(&board->go)) sleep_ms(1);
    while (now_ns() < board->start_ns) sleep_until(board->start_ns);
    if (pthread_create(&counter, NULL, count, NULL)) fail("no thread");
    void (*once)(unsigned) = loop();
    for (unsigned turn = 0;; turn++) once(turn);
}

int main(int n, char **arguments)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (n == 6 && !strcmp(arguments[1], "amount")) return print_amount(arguments + 2);
    if (n < 4) return fprintf(stderr, "usage: gpu-tenant BOARD SEAT PTX key=value ... | amount PTX KIND US BLOCKS\n"), 2;
    int fd = open(arguments[1], O_RDWR | O_CLOEXEC), index = atoi(arguments[2]);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || board == MAP_FAILED || index < 0 || index >= SEATS) return perror(arguments[1]), 2;
    texts = arguments[3];
    for (int i = 4; i < n; i++) read_word(arguments[i]);
    if (how.streams < 1 || how.streams > STREAMS) fail("streams");
    if (!kernel_count && strcmp(how.loop, "idle")) fail("no kernels");
    take_part(index);
}
