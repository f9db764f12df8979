/* Policies of the driver. Parts that must run under a policy are separate programs: this file, started again with SIMGPU_POLICY. */
#include "check.h"

#undef MIB
#include "../../simgpu/state/policy.c"

#include <pthread.h>
#include <sys/wait.h>

#undef MIB
#define MIB 1048576ull
#define BLOCK (2 * MIB)
#define SEEDS 24
#define MANY 5000
#define SLOTS 40
#define STREAMS 2
#define ATTRIBUTE_THRESHOLD 4
#define ATTRIBUTE_RESERVED 5

static char *self;

static CUcontext ctx;
static uint64_t context_bytes;

static uint64_t roundup(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

static void open_context(void)
{
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&ctx, 0, 0), CUDA_SUCCESS);
    context_bytes = used();
    EXPECT(context_bytes <= CONTEXT || strstr(getenv("SIMGPU_POLICY"), "wild"));
}

/* ---- the random program: whatever the policy, no call takes more than the table of bounds allows ---- */

enum kind { NOTHING, LINEAR, MANAGED, POOLED };

struct thing {
    enum kind kind;
    CUdeviceptr at;
    uint64_t size;
    int late_in; /* stream + 1; at the latest, a synchronisation of that stream frees it */
};

static struct thing things[SLOTS];
static CUstream streams[STREAMS];
static CUmemoryPool pools[2]; /* the default pool, and one with a maximum size */
static uint64_t dice_seed;

static uint32_t roll(uint32_t sides)
{
    dice_seed = dice_seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(dice_seed >> 33) % sides;
}

static uint64_t reserved(CUmemoryPool pool)
{
    uint64_t bytes = 0;
    EXPECT_EQ(cuMemPoolGetAttribute(pool, ATTRIBUTE_RESERVED, &bytes), CUDA_SUCCESS);
    return bytes;
}

static uint64_t graph_reserved(void)
{
    uint64_t bytes = 0;
    EXPECT_EQ(cuDeviceGetGraphMemAttribute(0, 2, &bytes), CUDA_SUCCESS);
    return bytes;
}

/* The blocks that contain pieces, each counted once, and everything that has blocks of its own. */
static uint64_t linear_bytes(bool with_late)
{
    CUdeviceptr blocks[SLOTS];
    uint64_t sum = 0;
    int count = 0;
    for (int i = 0; i < SLOTS; i++) {
        const struct thing *t = &things[i];
        if (t->kind == MANAGED) sum += roundup(t->size, BLOCK);
        if (t->kind != LINEAR || (t->late_in && !with_late)) continue;
        if (t->size >= MIB) {
            sum += roundup(t->size, BLOCK);
            continue;
        }
        CUdeviceptr block = t->at / BLOCK;
        bool known = false;
        EXPECT_EQ((t->at + t->size - 1) / BLOCK, block);
        for (int k = 0; k < count; k++) known |= blocks[k] == block;
        if (!known) blocks[count++] = block;
    }
    return sum + (uint64_t)count * BLOCK;
}

/* Any call may make pools shrink, so their sizes are read before and after the card's count. */
static void everything_is_accounted_for(void)
{
    uint64_t most = context_bytes + linear_bytes(true) + graph_reserved() + reserved(pools[0]) + reserved(pools[1]);
    uint64_t now = used();
    uint64_t least = context_bytes + linear_bytes(false) + graph_reserved() + reserved(pools[0]) + reserved(pools[1]);
    EXPECT(now <= most);
    EXPECT(now >= least);
    if (!ok_so_far) fprintf(stderr, "the card says %llu, between %llu and %llu were expected\n", (unsigned long long)now, (unsigned long long)least, (unsigned long long)most);
}

static void take_linear(struct thing *t)
{
    uint64_t size = 1 + roll(roll(2) ? 20000 : roll(2) ? MIB - 1 : 9 * MIB), before = used();
    CUresult r = roll(6) ? cuMemAlloc_v2(&t->at, size) : (t->kind = MANAGED, cuMemAllocManaged(&t->at, size, 1));
    EXPECT_EQ(r, CUDA_SUCCESS);
    EXPECT(used() <= before + roundup(size, BLOCK));
    t->kind = t->kind == MANAGED ? MANAGED : LINEAR;
    t->size = size;
}

static void take_pooled(struct thing *t)
{
    int which = (int)roll(2);
    uint64_t size = 1 + roll(roll(2) ? 300000 : 40 * MIB), before = reserved(pools[which]);
    CUresult r = cuMemAllocFromPoolAsync(&t->at, size, pools[which], streams[roll(STREAMS)]);
    EXPECT(reserved(pools[which]) <= before + roundup(size, 32 * MIB));
    EXPECT(!which || reserved(pools[1]) <= 128 * MIB);
    if (r) EXPECT(which == 1 && r == CUDA_ERROR_OUT_OF_MEMORY);
    t->kind = r ? NOTHING : POOLED;
}

static void let_go(struct thing *t)
{
    uint64_t before[2] = {reserved(pools[0]), reserved(pools[1])};
    int stream = (int)roll(STREAMS);
    bool late = t->kind == LINEAR && roll(2);
    EXPECT_EQ(late || t->kind == POOLED ? cuMemFreeAsync(t->at, streams[stream]) : cuMemFree_v2(t->at), CUDA_SUCCESS);
    for (int i = 0; i < 2; i++) EXPECT(reserved(pools[i]) <= before[i]);
    if (late) t->late_in = stream + 1;
    else *t = (struct thing){0};
}

static void synchronise(void)
{
    uint64_t before[2] = {reserved(pools[0]), reserved(pools[1])};
    int stream = (int)roll(STREAMS + 1);
    EXPECT_EQ(stream == STREAMS ? cuCtxSynchronize() : cuStreamSynchronize(streams[stream]), CUDA_SUCCESS);
    for (int i = 0; i < 2; i++) EXPECT(reserved(pools[i]) <= before[i]);
    for (int i = 0; i < SLOTS; i++)
        if (things[i].late_in && (stream == STREAMS || things[i].late_in == stream + 1)) things[i] = (struct thing){0};
}

/* Captures a graph of up to three allocations that are freed in the graph. */
static CUgraph capture(uint64_t *sum)
{
    CUdeviceptr p[3];
    CUgraph g = NULL;
    unsigned n = 1 + roll(3);
    EXPECT_EQ(cuStreamBeginCapture_v2(streams[0], 2), CUDA_SUCCESS);
    *sum = 0;
    for (unsigned i = 0; i < n; i++) {
        uint64_t size = 1 + roll(12 * MIB);
        EXPECT_EQ(cuMemAllocAsync(&p[i], size, streams[0]), CUDA_SUCCESS);
        *sum += roundup(size, BLOCK);
        if (roll(2)) continue;
        EXPECT_EQ(cuMemFreeAsync(p[i], streams[0]), CUDA_SUCCESS);
        p[i] = 0;
    }
    for (unsigned i = 0; i < n; i++)
        if (p[i]) EXPECT_EQ(cuMemFreeAsync(p[i], streams[0]), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(streams[0], &g), CUDA_SUCCESS);
    return g;
}

static void run_a_graph(void)
{
    static CUgraphExec kept;
    CUgraphExec e;
    uint64_t sum, bound, before = graph_reserved();
    CUgraph g = capture(&sum);
    bound = roundup(sum, 32 * MIB);
    EXPECT_EQ(graph_reserved(), before);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), CUDA_SUCCESS);
    EXPECT(graph_reserved() <= before + bound);
    for (int i = 0; i < 2; i++) {
        before = graph_reserved();
        EXPECT_EQ(cuGraphLaunch(e, streams[roll(STREAMS)]), CUDA_SUCCESS);
        EXPECT(graph_reserved() <= before + bound);
    }
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    if (kept && roll(2)) EXPECT_EQ(cuGraphExecDestroy(kept), CUDA_SUCCESS);
    kept = e;
    if (!roll(4)) EXPECT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
}

static void one_operation(void)
{
    struct thing *t = &things[roll(SLOTS)];
    if (t->late_in || !roll(12)) return synchronise();
    if (!roll(12)) return run_a_graph();
    if (t->kind) return let_go(t);
    roll(2) ? take_linear(t) : take_pooled(t);
}

static void give_all_back(void)
{
    for (int i = 0; i < SLOTS; i++)
        if (things[i].kind && !things[i].late_in) let_go(&things[i]);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    memset(things, 0, sizeof things);
    for (int i = 0; i < 2; i++) EXPECT_EQ(cuMemPoolTrimTo(pools[i], 0), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    EXPECT_EQ(used(), context_bytes);
    EXPECT_EQ(cuMemPoolDestroy(pools[1]) + cuCtxDestroy_v2(ctx), CUDA_SUCCESS);
}

static void random_program(void)
{
    CUmemPoolProps props = {.allocType = 1, .location = {1, 0}, .maxSize = 128 * MIB};
    dice_seed = strtoull(getenv("SIMGPU_POLICY"), NULL, 10) + 99;
    open_context();
    for (int i = 0; i < STREAMS; i++) EXPECT_EQ(cuStreamCreate(&streams[i], 1), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGetDefaultMemPool(&pools[0], 0) + cuMemPoolCreate(&pools[1], &props), CUDA_SUCCESS);
    for (int i = 0; i < 400 && ok_so_far; i++) {
        one_operation();
        everything_is_accounted_for();
    }
    if (ok_so_far) give_all_back();
}

/* ---- small programs that each show one choice of the policy; they print nothing ---- */

static struct sim_policy policy;

static CUdeviceptr take(uint64_t size)
{
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAlloc_v2(&p, size), CUDA_SUCCESS);
    return p;
}

static CUdeviceptr take_async(uint64_t size)
{
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAllocAsync(&p, size, NULL), CUDA_SUCCESS);
    return p;
}

static CUresult give(CUdeviceptr p) { return cuMemFree_v2(p); }
static CUresult give_async(CUdeviceptr p) { return cuMemFreeAsync(p, NULL); }

/* There are a gap of eight units, one of three, and the rest of the block: which one do three units go into? */
static void three_units(enum sim_fit fit, CUdeviceptr (*alloc)(uint64_t), CUresult (*release)(CUdeviceptr), uint64_t unit)
{
    CUdeviceptr eight = alloc(8 * unit), one = alloc(unit), three = alloc(3 * unit), last = alloc(unit), seen[64], p;
    int different = 0;
    EXPECT(one && last);
    EXPECT_EQ(release(eight) + release(three), CUDA_SUCCESS);
    for (int i = 0; i < 64; i++) {
        p = alloc(3 * unit);
        bool known = false;
        for (int k = 0; k < different; k++) known |= seen[k] == p;
        if (!known) seen[different++] = p;
        EXPECT_EQ(release(p), CUDA_SUCCESS);
    }
    if (fit == SIM_FIT_RANDOM) EXPECT(different > 1);
    else EXPECT(different == 1 && seen[0] == (fit == SIM_FIT_BEST ? three : eight));
}

static void small_fit(void)
{
    open_context();
    three_units(policy.small_fit, take, give, 4096);
}

static void pool_fit(void)
{
    CUmemoryPool pool;
    uint64_t keep = ~0ull;
    open_context();
    EXPECT_EQ(cuDeviceGetDefaultMemPool(&pool, 0) + cuMemPoolSetAttribute(pool, ATTRIBUTE_THRESHOLD, &keep), CUDA_SUCCESS);
    EXPECT_EQ(give_async(take_async(64 * MIB)), CUDA_SUCCESS); /* one chunk for all */
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    three_units(policy.pool_fit, take_async, give_async, MIB);
}

static void small_sharing(void)
{
    open_context();
    uint32_t below = policy.small_below;
    CUdeviceptr a = take(below ? below - 1 : 1), b = take(1);
    EXPECT_EQ(used(), context_bytes + (below && !policy.small_classes ? 1 : 2) * BLOCK);
    EXPECT_EQ(give(a) + give(b), CUDA_SUCCESS);
    if (below > 1) {
        a = take(below), b = take(below);
        EXPECT_EQ(used(), context_bytes + 2 * BLOCK);
    }
}

static void free_async_of_linear(void)
{
    CUstream s, other;
    CUmodule m;
    CUfunction f;
    open_context();
    EXPECT_EQ(cuStreamCreate(&s, 1) + cuStreamCreate(&other, 1) + cuModuleLoadData(&m, spin_ptx) + cuModuleGetFunction(&f, m, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(f, 1, s) + cuStreamSynchronize(s), CUDA_SUCCESS);
    uint64_t before = used();
    CUdeviceptr p = take(10 * MIB);
    EXPECT_EQ(spin_in(f, 100000, s), CUDA_SUCCESS);
    double from = seconds();
    EXPECT_EQ(cuMemFreeAsync(p, s), CUDA_SUCCESS);
    enum sim_free_async how = policy.linear_free_async;
    EXPECT((seconds() - from > 0.08) == (how == SIM_FREE_WAITS));
    EXPECT_EQ(used(), before + (how <= SIM_FREE_AT_ONCE ? 0 : 10 * MIB));
    EXPECT_EQ(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
    while (cuStreamQuery(s)) usleep(1000);
    EXPECT_EQ(used(), before + (how == SIM_FREE_AT_SYNC ? 10 * MIB : 0));
    EXPECT_EQ(cuStreamSynchronize(other), CUDA_SUCCESS);
    EXPECT_EQ(used(), before + (how == SIM_FREE_AT_SYNC ? 10 * MIB : 0));
    EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(used(), before);
}

/* One stream frees a piece after work; another allocates when that work is done, and again after a synchronisation. */
static void pool_reuse(void)
{
    CUmemoryPool pool;
    CUstream a, b;
    CUdeviceptr p, q;
    CUmodule m;
    CUfunction f;
    uint64_t keep = ~0ull;
    open_context();
    EXPECT_EQ(cuDeviceGetDefaultMemPool(&pool, 0) + cuMemPoolSetAttribute(pool, ATTRIBUTE_THRESHOLD, &keep), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&a, 1) + cuStreamCreate(&b, 1) + cuModuleLoadData(&m, spin_ptx) + cuModuleGetFunction(&f, m, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAllocAsync(&p, 64 * MIB, a) + spin_in(f, 1000, a) + cuMemFreeAsync(p, a), CUDA_SUCCESS);
    while (cuStreamQuery(a)) usleep(1000);
    EXPECT_EQ(cuMemAllocAsync(&q, 64 * MIB, b), CUDA_SUCCESS);
    EXPECT_EQ(p == q, !policy.pool_reuse_at_sync);
    EXPECT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
    uint64_t before = reserved(pool);
    if (p != q) EXPECT_EQ(cuMemAllocAsync(&q, 64 * MIB, b), CUDA_SUCCESS);
    EXPECT_EQ(p, q);
    EXPECT_EQ(reserved(pool), before);
}

static void pool_shrinking(void)
{
    CUmemoryPool pool;
    open_context();
    enum sim_shrink when = policy.pool_shrink;
    EXPECT_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    EXPECT_EQ(give_async(take_async(96 * MIB)), CUDA_SUCCESS);
    if (when == SIM_SHRINK_AT_FREE) EXPECT_EQ(reserved(pool), 0);
    else if (when != SIM_SHRINK_AT_ANY_CALL) EXPECT_EQ(reserved(pool), 96 * MIB);
    if (when != SIM_SHRINK_AT_SYNC)
        for (uint32_t i = 0; i < 16; i++) used();
    if (when == SIM_SHRINK_AT_ANY_CALL) EXPECT_EQ(reserved(pool), 0);
    EXPECT_EQ(cuStreamSynchronize(NULL), CUDA_SUCCESS);
    EXPECT_EQ(reserved(pool), when == SIM_SHRINK_AT_ALLOC || when == SIM_SHRINK_AT_TRIM ? 96 * MIB : 0);
    CUdeviceptr p = take_async(MIB);
    EXPECT_EQ(reserved(pool) == 96 * MIB, when == SIM_SHRINK_AT_TRIM);
    EXPECT_EQ(give_async(p) + cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
    EXPECT_EQ(reserved(pool), 0);
}

/* Two graphs, each of 10 MiB and then 30 MiB: how much each step reserves. */
static void graph_growth(void)
{
    CUstream s;
    CUgraph g;
    CUgraphExec e[2];
    CUdeviceptr a, b;
    open_context();
    uint64_t need = (policy.graph_reuse ? 30 : 40) * MIB, first = roundup(need, policy.graph_step) < 64 * MIB ? roundup(need, policy.graph_step) : 64 * MIB;
    EXPECT_EQ(cuStreamCreate(&s, 1) + cuStreamBeginCapture_v2(s, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAllocAsync(&a, 10 * MIB, s) + cuMemFreeAsync(a, s) + cuMemAllocAsync(&b, 30 * MIB, s) + cuMemFreeAsync(b, s), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(s, &g), CUDA_SUCCESS);
    uint64_t both = policy.graph_shared ? first : first + roundup(2 * need - first, policy.graph_step);
    bool early = policy.graph_when == SIM_GRAPH_AT_INSTANTIATE;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e[0], g, 0), CUDA_SUCCESS);
    EXPECT_EQ(graph_reserved(), early ? first : 0);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e[1], g, 0), CUDA_SUCCESS);
    EXPECT_EQ(graph_reserved(), early ? both : 0);
    EXPECT_EQ(cuGraphLaunch(e[0], s), CUDA_SUCCESS);
    EXPECT_EQ(graph_reserved(), early ? both : first);
    EXPECT_EQ(cuGraphLaunch(e[1], s) + cuGraphLaunch(e[0], s), CUDA_SUCCESS);
    EXPECT_EQ(graph_reserved(), both);
    EXPECT_EQ(used(), context_bytes + graph_reserved());
    EXPECT_EQ(cuStreamSynchronize(s) + cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    EXPECT_EQ(used(), context_bytes);
}

static void excess(void)
{
    CUstream s;
    CUgraph g;
    CUgraphExec e;
    CUdeviceptr p;
    open_context();
    uint64_t before = used();
    p = take(100 * MIB);
    EXPECT_EQ(used(), before + policy.linear_percent * MIB);
    EXPECT_EQ(give(p), CUDA_SUCCESS);
    p = take_async(20 * MIB);
    EXPECT((used() > before + 32 * MIB) == (policy.pool_percent > 100));
    EXPECT_EQ(give_async(p) + cuCtxSynchronize(), CUDA_SUCCESS);
    before = used();
    EXPECT_EQ(cuStreamCreate(&s, 1) + cuStreamBeginCapture_v2(s, 0) + cuMemAllocAsync(&p, 20 * MIB, s) + cuMemFreeAsync(p, s), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(s, &g) + cuGraphInstantiateWithFlags(&e, g, 0) + cuGraphLaunch(e, s), CUDA_SUCCESS);
    EXPECT((used() > before + 32 * MIB) == (policy.graph_percent > 100));
}

static void pool_attribute_shows_what_is_taken(void)
{
    CUmemoryPool pool;
    open_context();
    uint64_t before = used(), step = policy.pool_step, most = 32 * MIB;
    EXPECT_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    CUdeviceptr p = take_async(5 * MIB);
    uint64_t expected = roundup(5 * MIB, step) < most ? roundup(5 * MIB, step) : most;
    EXPECT_EQ(reserved(pool), expected);
    EXPECT_EQ(used(), before + expected);
    CUdeviceptr q = take_async(31 * MIB);
    expected += roundup(31 * MIB, step) < most ? roundup(31 * MIB, step) : most;
    EXPECT_EQ(reserved(pool), expected);
    EXPECT_EQ(used(), before + expected);
    EXPECT_EQ(give_async(p) + give_async(q), CUDA_SUCCESS);
}

/* ---- threads: nothing is lost or counted twice, wherever any thread yields ---- */

#define THREADS 4

static void thread_takes(CUstream s, uint64_t *seed)
{
    CUdeviceptr p[3];
    uint64_t sizes[3];
    for (int i = 0; i < 3; i++) {
        sizes[i] = 1 + sim_policy_hash(*seed, ++seed[1]) % (i ? 9 * MIB : 30000);
        CUresult r = i == 2 ? cuMemAllocAsync(&p[i], sizes[i], s) : cuMemAlloc_v2(&p[i], sizes[i]);
        EXPECT_EQ(r, CUDA_SUCCESS);
    }
    EXPECT_EQ(cuMemFreeAsync(p[2], s) + cuMemFreeAsync(p[0], s) + cuMemFree_v2(p[1]), CUDA_SUCCESS);
    if (seed[1] % 4 == 0) EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
}

static void *thread(void *number)
{
    CUstream s;
    uint64_t seed[2] = {(uintptr_t)number, 0};
    EXPECT_EQ(cuCtxSetCurrent(ctx) + cuStreamCreate(&s, 1), CUDA_SUCCESS);
    for (int i = 0; i < 150 && ok_so_far; i++) thread_takes(s, seed);
    EXPECT_EQ(cuStreamSynchronize(s) + cuStreamDestroy_v2(s), CUDA_SUCCESS);
    return NULL;
}

static void several_threads(void)
{
    pthread_t threads[THREADS];
    CUmemoryPool pool;
    open_context();
    for (uintptr_t i = 0; i < THREADS; i++) EXPECT_EQ(pthread_create(&threads[i], NULL, thread, (void *)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    EXPECT_EQ(cuCtxSynchronize() + cuDeviceGetDefaultMemPool(&pool, 0) + cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), context_bytes);
}

static void start_only(void)
{
    if (cuInit(0) == CUDA_SUCCESS) ok_so_far = false;
}

static const struct { const char *name; void (*run)(void); } programs[] = {
    {"random", random_program}, {"small-fit", small_fit}, {"pool-fit", pool_fit}, {"small-sharing", small_sharing},
    {"free-async", free_async_of_linear}, {"pool-shrinking", pool_shrinking}, {"pool-reuse", pool_reuse}, {"graph-growth", graph_growth},
    {"excess", excess}, {"pool-steps", pool_attribute_shows_what_is_taken}, {"threads", several_threads}, {"start", start_only},
};

static int program(const char *name)
{
    ok_so_far = true;
    sim_policy_read(getenv("SIMGPU_POLICY"), &policy);
    for (unsigned i = 0; i < COUNT(programs); i++)
        if (!strcmp(programs[i].name, name)) return programs[i].run(), !ok_so_far;
    return 2;
}

/* ---- the tests ---- */

static void run_under(const char *seed, const char *name)
{
    int status = -1;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("SIMGPU_POLICY", seed, 1);
        execl("/proc/self/exe", self, name, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    if (status) fprintf(stderr, "SIMGPU_POLICY=%s %s %s\n", seed, self, name);
}

static void under(uint64_t seed, bool wild, const char *name)
{
    char text[40];
    snprintf(text, sizeof text, "%s%llu", wild ? "wild:" : "", (unsigned long long)seed);
    run_under(text, name);
}

/* The n-th seed whose policy satisfies the condition. */
#define SEED_WHERE(wild, condition)                                     \
    ({                                                                  \
        struct sim_policy p;                                            \
        uint64_t seed_ = 1;                                             \
        while (sim_policy_draw(seed_, wild, &p), !(condition)) seed_++; \
        seed_;                                                          \
    })

static void a_seed_is_always_the_same_policy_and_within_the_bounds(void)
{
    struct sim_policy p, q;
    for (uint64_t seed = 0; seed < MANY; seed++) {
        sim_policy_draw(seed, false, &p);
        sim_policy_draw(seed, false, &q);
        EXPECT(!memcmp(&p, &q, sizeof p) && sim_policy_bounded(&p));
        sim_policy_draw(seed, true, &p);
        EXPECT_EQ(sim_policy_bounded(&p), seed == 0);
    }
}

static void a_policy_is_a_number_or_wild(void)
{
    struct sim_policy p;
    EXPECT(sim_policy_read(NULL, &p) && !p.seed && sim_policy_read("", &p) && !p.seed && sim_policy_read("17", &p) && p.seed == 17 && !p.wild);
    EXPECT(sim_policy_read("wild", &p) && p.seed == 1 && p.wild && sim_policy_read("wild:9", &p) && p.seed == 9 && p.wild);
    EXPECT(!sim_policy_read("x", &p) && !sim_policy_read("-1", &p) && !sim_policy_read("1x", &p) && !sim_policy_read("wild:0", &p) && !sim_policy_read("wilder", &p));
    run_under("wilder", "start");
}

static void no_seeded_policy_exceeds_a_bound_in_a_random_program(void)
{
    for (uint64_t seed = 0; seed < SEEDS && ok_so_far; seed++) under(seed, false, "random");
}

static void threads_lose_their_turn_and_no_byte(void)
{
    for (uint64_t seed = 0; seed < 8; seed++) under(seed, false, "threads");
}

static void first_best_and_random_fit_place_small_pieces_differently(void)
{
    for (int fit = 0; fit < 3; fit++)
        under(SEED_WHERE(false, p.small_fit == (enum sim_fit)fit && p.small_below >= 65536 && !p.small_classes), false, "small-fit");
}

static void first_best_and_random_fit_place_pieces_of_a_pool_differently(void)
{
    for (int fit = 0; fit < 3; fit++) under(SEED_WHERE(false, p.pool_fit == (enum sim_fit)fit && !p.pool_reuse_at_sync), false, "pool-fit");
}

static void small_allocations_share_blocks_below_the_policys_size(void)
{
    static const uint32_t sizes[] = {0, 65536, 524288, 1048576};
    for (unsigned i = 0; i < COUNT(sizes); i++) under(SEED_WHERE(false, p.small_below == sizes[i]), false, "small-sharing");
    under(SEED_WHERE(false, p.small_below && p.small_classes), false, "small-sharing");
}

static void linear_memory_freed_in_a_stream_is_back_when_the_policy_says(void)
{
    for (int how = 0; how < 4; how++) under(SEED_WHERE(false, p.linear_free_async == (enum sim_free_async)how), false, "free-async");
}

static void a_piece_is_used_again_by_other_streams_when_the_policy_says(void)
{
    for (int at_sync = 0; at_sync < 2; at_sync++) under(SEED_WHERE(false, p.pool_reuse_at_sync == at_sync), false, "pool-reuse");
}

static void pools_shrink_when_the_policy_says(void)
{
    for (int when = 0; when < 5; when++) under(SEED_WHERE(false, p.pool_shrink == (enum sim_shrink)when && !p.pool_doubles), false, "pool-shrinking");
}

static void pools_grow_by_the_policys_step(void)
{
    for (uint32_t step = 1; step <= 16; step *= 2)
        under(SEED_WHERE(false, p.pool_step == step * BLOCK && !p.pool_doubles && p.pool_shrink == SIM_SHRINK_AT_TRIM), false, "pool-steps");
}

static void graph_memory_grows_when_and_by_what_the_policy_says(void)
{
    for (int when = 0; when < 3; when++)
        for (int way = 0; way < 4; way++)
            under(SEED_WHERE(false, p.graph_when == (enum sim_graph_when)when && p.graph_reuse == (way & 1) && p.graph_shared == way / 2), false, "graph-growth");
}

static void a_wild_policy_takes_more_than_the_bounds(void)
{
    under(SEED_WHERE(true, p.linear_percent > 100), true, "excess");
    under(SEED_WHERE(true, p.pool_percent > 100), true, "excess");
    under(SEED_WHERE(true, p.graph_percent > 100), true, "excess");
    under(SEED_WHERE(true, p.linear_percent == 100 && p.pool_percent == 100 && p.graph_percent == 100), true, "excess");
}

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc > 1) return program(argv[1]);
    RUN(a_seed_is_always_the_same_policy_and_within_the_bounds);
    RUN(a_policy_is_a_number_or_wild);
    RUN(no_seeded_policy_exceeds_a_bound_in_a_random_program);
    RUN(threads_lose_their_turn_and_no_byte);
    RUN(first_best_and_random_fit_place_small_pieces_differently);
    RUN(first_best_and_random_fit_place_pieces_of_a_pool_differently);
    RUN(small_allocations_share_blocks_below_the_policys_size);
    RUN(linear_memory_freed_in_a_stream_is_back_when_the_policy_says);
    RUN(a_piece_is_used_again_by_other_streams_when_the_policy_says);
    RUN(pools_shrink_when_the_policy_says);
    RUN(pools_grow_by_the_policys_step);
    RUN(graph_memory_grows_when_and_by_what_the_policy_says);
    RUN(a_wild_policy_takes_more_than_the_bounds);
    FINISH;
}
