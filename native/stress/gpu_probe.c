/* gpu-probe: performs the steps of gpu_check.py on a card, one role per process. It is a plain program that uses the driver API, and has no
 * knowledge of the library that may be in between. Prints `name value` lines. Status 1: a call failed that must not fail, and the last line
 * says which.
 *
 *     gpu-probe card | resolve | memory | linear | pools | handles | graphs | hold MIB | left | times */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB 1048576ull
#define MOST 4096

struct nvml_memory { unsigned long long total, free, used; };
int nvmlInit_v2(void);
int nvmlDeviceGetHandleByUUID(const char *, void **);
int nvmlDeviceGetMemoryInfo(void *, struct nvml_memory *);
int nvmlSystemGetDriverVersion(char *, unsigned);
CUresult cuDeviceGetName(char *, int, CUdevice);
CUresult cuDriverGetVersion(int *);
CUresult cuGetProcAddress(const char *, void **, int, uint64_t);

static CUcontext context;

#define MUST(call)                                                  \
    do {                                                            \
        CUresult r_ = (call);                                       \
        if (r_) printf("failed %s answered %d\n", #call, r_), exit(1); \
    } while (0)

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void open_context(void)
{
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
}

static void show(const char *name, uint64_t value) { printf("%s %llu\n", name, (unsigned long long)value); }

static void uuid_text(char *out)
{
    CUuuid u;
    MUST(cuDeviceGetUuid_v2(&u, 0));
    const unsigned char *b = (const unsigned char *)u.bytes;
    out += sprintf(out, "GPU-");
    for (int i = 0; i < 16; i++) out += sprintf(out, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", b[i]);
}

static struct nvml_memory nvml(void)
{
    char uuid[48];
    void *device;
    struct nvml_memory m = {0};
    uuid_text(uuid);
    if (nvmlInit_v2() || nvmlDeviceGetHandleByUUID(uuid, &device) || nvmlDeviceGetMemoryInfo(device, &m)) puts("failed NVML"), exit(1);
    return m;
}

/* ---- roles ---- */

static void card(void)
{
    char name[128], uuid[48], driver[80];
    size_t total;
    MUST(cuInit(0));
    uuid_text(uuid);
    MUST(cuDeviceGetName(name, sizeof name, 0));
    MUST(cuDeviceTotalMem_v2(&total, 0));
    struct nvml_memory before = nvml();
    open_context();
    struct nvml_memory after = nvml();
    if (nvmlSystemGetDriverVersion(driver, sizeof driver)) strcpy(driver, "unknown");
    printf("name %s\nuuid %s\ndriver %s\n", name, uuid, driver);
    show("total", total);
    show("free", after.free);
    show("context", after.used > before.used ? after.used - before.used : 0);
}

/* Prints in which file the function is that each way of looking it up returns. */
static void resolve(void)
{
    static const char *const names[] = {"cuMemAlloc", "cuMemFree", "cuMemGetInfo", "cuMemAllocAsync", "cuMemFreeAsync", "cuMemCreate",
                                        "cuMemRelease", "cuGraphLaunch", "cuLaunchKernel", "cuMemAllocManaged", "cuMemAllocPitch", "cuCtxCreate"};
    static const char *const symbols[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2", "cuMemAllocAsync", "cuMemCreate", "cuLaunchKernel"};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *p;
    Dl_info info;
    MUST(cuInit(0));
    for (unsigned i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (driver && (p = dlsym(driver, symbols[i])) && dladdr(p, &info)) printf("dlsym:%s %s\n", symbols[i], info.dli_fname);
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        for (uint64_t flags = 0; flags <= 2; flags += 2)
            if (!cuGetProcAddress(names[i], &p, 11040, flags) && p && dladdr(p, &info))
                printf("cuGetProcAddress:%s:%d %s\n", names[i], (int)flags, info.dli_fname);
}

static void memory(void)
{
    size_t free_bytes, total, whole;
    open_context();
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    MUST(cuDeviceTotalMem_v2(&whole, 0));
    show("free", free_bytes);
    show("total", total);
    show("device_total", whole);
    show("nvml_total", nvml().total);
    show("nvml_free", nvml().free);
}

static CUdeviceptr pieces[MOST];

/* Allocates until it is refused; prints the answer, and how much was allocated. */
static unsigned fill(uint64_t size, CUresult (*take)(CUdeviceptr *, size_t))
{
    unsigned n = 0;
    CUresult r = CUDA_SUCCESS;
    while (n < MOST && !(r = take(&pieces[n], size))) n++;
    show("answer", (uint64_t)r);
    show("got", n * size);
    return n;
}

static void linear(void)
{
    open_context();
    unsigned n = fill(16 * MIB, cuMemAlloc_v2), again = 0;
    while (again < n) MUST(cuMemFree_v2(pieces[again++]));
    n = fill(16 * MIB, cuMemAlloc_v2);
    for (again = 0; again < n; again++) MUST(cuMemFree_v2(pieces[again]));
    for (unsigned i = 0; i < 1000; i++) {
        MUST(cuMemAlloc_v2(&pieces[0], 1 + i * 7919));
        MUST(cuMemFree_v2(pieces[0]));
    }
}

static CUresult take_async(CUdeviceptr *p, size_t size) { return cuMemAllocAsync(p, size, NULL); }

/* A loop that needs little memory must never be refused, however often it runs. */
static void pools(void)
{
    open_context();
    unsigned n = fill(16 * MIB, take_async);
    for (unsigned i = 0; i < n; i++) MUST(cuMemFreeAsync(pieces[i], NULL));
    MUST(cuCtxSynchronize());
    for (unsigned i = 0; i < 20000; i++) {
        MUST(cuMemAllocAsync(&pieces[0], 1 + i % 100 * 65536, NULL));
        MUST(cuMemFreeAsync(pieces[0], NULL));
        if (i % 1000 == 0) MUST(cuCtxSynchronize());
    }
}

static CUresult take_handle(CUdeviceptr *p, size_t size)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_DEVICE, 0}};
    return cuMemCreate(p, size, &prop, 0);
}

static void handles(void)
{
    CUdeviceptr va;
    open_context();
    unsigned n = fill(16 * MIB, take_handle);
    if (!n) puts("failed no handle"), exit(1);
    MUST(cuMemAddressReserve(&va, 16 * MIB, 0, 0, 0));
    MUST(cuMemMap(va, 16 * MIB, 0, pieces[0], 0));
    for (unsigned i = 0; i < n; i++) MUST(cuMemRelease(pieces[i]));
    MUST(cuMemUnmap(va, 16 * MIB));
    MUST(cuMemAddressFree(va, 16 * MIB));
    n = fill(16 * MIB, take_handle);
    for (unsigned i = 0; i < n; i++) MUST(cuMemRelease(pieces[i]));
}

static CUresult graph_of(uint64_t bytes, CUstream s, CUgraphExec *exec)
{
    CUgraph graph;
    CUdeviceptr p;
    MUST(cuStreamBeginCapture_v2(s, 2));
    MUST(cuMemAllocAsync(&p, bytes, s));
    MUST(cuMemFreeAsync(p, s));
    MUST(cuStreamEndCapture(s, &graph));
    CUresult r = cuGraphInstantiateWithFlags(exec, graph, 0);
    cuGraphDestroy(graph);
    return r;
}

/* A graph within the quota can run any number of times; a graph beyond it is refused at instantiation or at its first launch. */
static void graphs(void)
{
    CUstream s;
    CUgraphExec exec;
    size_t free_bytes, total;
    open_context();
    MUST(cuStreamCreate(&s, 1));
    MUST(graph_of(32 * MIB, s, &exec));
    for (int i = 0; i < 100; i++) MUST(cuGraphLaunch(exec, s));
    MUST(cuStreamSynchronize(s));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuDeviceGraphMemTrim(0));
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    CUresult r = graph_of(total + 32 * MIB, s, &exec);
    if (!r) r = cuGraphLaunch(exec, s);
    show("answer", (uint64_t)r);
}

static void hold(const char *mib)
{
    CUdeviceptr p;
    open_context();
    MUST(cuMemAlloc_v2(&p, strtoull(mib, NULL, 10) * MIB));
    puts("holding 1");
    fflush(stdout);
    getchar();
}

static void left(void)
{
    size_t free_bytes, total;
    open_context();
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    show("free", free_bytes);
    fill(16 * MIB, cuMemAlloc_v2);
}

/* ---- times ---- */

static CUfunction empty_kernel(void)
{
    static const char *const targets[] = {"6.0\n.target sm_70", "6.3\n.target sm_75", "7.0\n.target sm_80", "6.0\n.target sm_52"};
    char ptx[300];
    CUmodule m;
    CUfunction f;
    for (unsigned i = 0; i < 4; i++) {
        snprintf(ptx, sizeof ptx, ".version %s\n.address_size 64\n// simgpu: time_us=0\n.visible .entry empty()\n{\n ret;\n}\n", targets[i]);
        if (!cuModuleLoadData(&m, ptx) && !cuModuleGetFunction(&f, m, "empty")) return f;
    }
    puts("failed no kernel");
    exit(1);
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

enum { BATCHES = 101, BATCH = 200 };
static uint64_t batch_ns[BATCHES];

static void show_median(const char *name)
{
    qsort(batch_ns, BATCHES, sizeof *batch_ns, by_size);
    printf("%s %.1f\n", name, (double)batch_ns[BATCHES / 2] / BATCH);
}

#define TIME(name, call)                                             \
    do {                                                             \
        for (int b_ = 0; b_ < BATCHES; b_++) {                       \
            uint64_t from_ = now_ns();                               \
            for (int i_ = 0; i_ < BATCH; i_++) call;                 \
            batch_ns[b_] = now_ns() - from_;                         \
            cuCtxSynchronize();                                      \
        }                                                            \
        show_median(name);                                           \
    } while (0)

static void times(void)
{
    CUdeviceptr p;
    size_t free_bytes, total;
    open_context();
    CUfunction f = empty_kernel();
    TIME("launch_ns", cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    TIME("alloc_free_ns", (cuMemAlloc_v2(&p, 4 * MIB), cuMemFree_v2(p)));
    TIME("async_alloc_free_ns", (cuMemAllocAsync(&p, 4 * MIB, NULL), cuMemFreeAsync(p, NULL)));
    TIME("get_info_ns", cuMemGetInfo_v2(&free_bytes, &total));
}

int main(int argc, char **argv)
{
    const char *role = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(role, "card")) card();
    else if (!strcmp(role, "resolve")) resolve();
    else if (!strcmp(role, "memory")) memory();
    else if (!strcmp(role, "linear")) linear();
    else if (!strcmp(role, "pools")) pools();
    else if (!strcmp(role, "handles")) handles();
    else if (!strcmp(role, "graphs")) graphs();
    else if (!strcmp(role, "hold") && argc > 2) hold(argv[2]);
    else if (!strcmp(role, "left")) left();
    else if (!strcmp(role, "times")) times();
    else return 2;
    return 0;
}
