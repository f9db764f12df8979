/* Measures the time that the library adds to a call. Driver and library are loaded into one process, and batches of calls to the driver's and
 * to the library's function alternate on one CPU. A figure is the median of the batches; the added time is the median of the differences
 * between neighbouring batches. */
#include "bench.h"
#include "cuda_abi.h"

#include <dlfcn.h>
#include <sched.h>

#define ROUNDS 301
#define MOST 512
#define MIB 1048576ull

static struct side {
    CUresult (*init)(unsigned), (*create)(CUcontext *, unsigned, CUdevice), (*synchronize)(void);
    CUresult (*load)(CUmodule *, const void *), (*function)(CUfunction *, CUmodule, const char *);
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
    CUresult (*load_library)(CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned);
    CUresult (*library_kernel)(CUkernel *, CUlibrary, const char *), (*kernel_function)(CUfunction *, CUkernel);
    CUresult (*create_stream)(CUstream *, unsigned);
    CUresult (*alloc)(CUdeviceptr *, size_t), (*release)(CUdeviceptr), (*info)(size_t *, size_t *);
    CUresult (*alloc_async)(CUdeviceptr *, size_t, CUstream), (*free_async)(CUdeviceptr, CUstream);
    CUresult (*create_handle)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
    CUresult (*release_handle)(CUmemGenericAllocationHandle);
    CUresult (*address)(const char *, void **, int, uint64_t, int *);
    void *(*dlsym)(void *, const char *);
} sides[2]; /* the driver's, the library's */

static void *driver;
static CUfunction kernel, library_function;
static CUkernel library_kernel;
static CUstream stream;
static CUdeviceptr pointers[MOST];

static void *find(void *library, const char *name)
{
    void *f = dlsym(library, name);
    if (!f) fprintf(stderr, "bench: no %s\n", name);
    if (!f) exit(1);
    return f;
}

static struct side side_of(void *library)
{
    struct side s;
    *(void **)&s.init = find(library, "cuInit");
    *(void **)&s.create = find(library, "cuCtxCreate_v2");
    *(void **)&s.synchronize = find(library, "cuCtxSynchronize");
    *(void **)&s.load = find(library, "cuModuleLoadData");
    *(void **)&s.function = find(library, "cuModuleGetFunction");
    *(void **)&s.launch = find(library, "cuLaunchKernel");
    *(void **)&s.load_library = find(library, "cuLibraryLoadData");
    *(void **)&s.library_kernel = find(library, "cuLibraryGetKernel");
    *(void **)&s.kernel_function = find(library, "cuKernelGetFunction");
    *(void **)&s.create_stream = find(library, "cuStreamCreate");
    *(void **)&s.alloc = find(library, "cuMemAlloc_v2");
    *(void **)&s.release = find(library, "cuMemFree_v2");
    *(void **)&s.info = find(library, "cuMemGetInfo_v2");
    *(void **)&s.alloc_async = find(library, "cuMemAllocAsync");
    *(void **)&s.free_async = find(library, "cuMemFreeAsync");
    *(void **)&s.create_handle = find(library, "cuMemCreate");
    *(void **)&s.release_handle = find(library, "cuMemRelease");
    *(void **)&s.address = find(library, "cuGetProcAddress_v2");
    *(void **)&s.dlsym = find(library == driver ? RTLD_DEFAULT : library, "dlsym");
    return s;
}

/* ---- the calls: n of them; `undo` is not timed ---- */

static void launch_of(const struct side *s, CUfunction f, CUstream on, int n)
{
    while (n--) must(s->launch(f, 1, 1, 1, 32, 1, 1, 0, on, NULL, NULL), "cuLaunchKernel");
}
static void launch(const struct side *s, int n) { launch_of(s, kernel, NULL, n); }
static void launch_library_kernel(const struct side *s, int n) { launch_of(s, (CUfunction)library_kernel, NULL, n); }
static void launch_library_kernel_on_stream(const struct side *s, int n) { launch_of(s, (CUfunction)library_kernel, stream, n); }
static void launch_library_function(const struct side *s, int n) { launch_of(s, library_function, NULL, n); }
static void drain(const struct side *s, int n) { (void)n, must(s->synchronize(), "cuCtxSynchronize"); }

static void alloc(const struct side *s, int n)
{
    while (n--) must(s->alloc(&pointers[n], 4 * MIB), "cuMemAlloc");
}
static void release(const struct side *s, int n)
{
    while (n--) must(s->release(pointers[n]), "cuMemFree");
}
static void pair(const struct side *s, int n)
{
    while (n--) {
        must(s->alloc(pointers, 4 * MIB), "cuMemAlloc");
        must(s->release(pointers[0]), "cuMemFree");
    }
}
static void small_pair(const struct side *s, int n)
{
    while (n--) {
        must(s->alloc(pointers, 4096), "cuMemAlloc");
        must(s->release(pointers[0]), "cuMemFree");
    }
}
static void async_pair(const struct side *s, int n)
{
    while (n--) {
        must(s->alloc_async(pointers, 65536, NULL), "cuMemAllocAsync");
        must(s->free_async(pointers[0], NULL), "cuMemFreeAsync");
    }
}
static void handle_pair(const struct side *s, int n)
{
    CUmemAllocationProp where = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    while (n--) {
        must(s->create_handle(&handle, 4 * MIB, &where, 0), "cuMemCreate");
        must(s->release_handle(handle), "cuMemRelease");
    }
}
static void info(const struct side *s, int n)
{
    size_t free_bytes, total;
    while (n--) must(s->info(&free_bytes, &total), "cuMemGetInfo");
}
static void address(const struct side *s, int n)
{
    void *f;
    int status;
    while (n--) must(s->address("cuMemAlloc", &f, 12000, 0, &status), "cuGetProcAddress");
}
static void look_up(const struct side *s, int n)
{
    while (n--) must(!s->dlsym(driver, "cuMemAlloc_v2"), "dlsym");
}
static void look_up_other(const struct side *s, int n)
{
    while (n--) must(!s->dlsym(RTLD_DEFAULT, "getpid"), "dlsym");
}
static void nothing(const struct side *s, int n) { (void)s, (void)n; }

static const struct work {
    const char *what;
    void (*run)(const struct side *, int), (*undo)(const struct side *, int);
    int calls;
    double bar;
    const char *others;
} works[] = {
    {"launch, unlimited", launch, drain, 200, 20, "launch on an RTX 3080: native 4.35 us, HAMi 4.54 us; rate limiter call 1.24-1.54 us (GPU-Virt-Bench)"},
    {"launch of a library's kernel, unlimited", launch_library_kernel, drain, 200, 20, "none published"},
    {"launch of a library's kernel on a stream, unlimited", launch_library_kernel_on_stream, drain, 200, 20, "none published"},
    {"launch of a library's function, unlimited", launch_library_function, drain, 200, 20, "none published"},
    {"cuMemAlloc + cuMemFree, 4 MiB", pair, nothing, 64, 500, "vgpu-manager 1-3 ms under a lock (lock.c); HAMi-core sums all slots twice per call"},
    {"cuMemAlloc, 4 MiB", alloc, release, 32, 500, "vgpu-manager 1-3 ms under a lock (lock.c)"},
    {"cuMemAlloc + cuMemFree, 4 KiB", small_pair, nothing, 64, 500, "vgpu-manager 1-3 ms under a lock (lock.c)"},
    {"cuMemGetInfo", info, nothing, 128, 100, "none published"},
    {"cuMemAllocAsync + cuMemFreeAsync, 64 KiB", async_pair, drain, 64, 500, "none published; vgpu-manager adds a synchronisation, HAMi-core drops the charge"},
    {"cuMemCreate + cuMemRelease, 4 MiB", handle_pair, nothing, 64, 500, "none published; HAMi-core and vgpu-manager have no hook of the release"},
    {"dlsym of a driver function", look_up, nothing, 64, 0, "HAMi 38 ns, FCSP 18 ns (GPU-Virt-Bench)"},
    {"dlsym of another function", look_up_other, nothing, 64, 0, "HAMi 38 ns, FCSP 18 ns (GPU-Virt-Bench)"},
    {"cuGetProcAddress", address, nothing, 64, 0, "none published"},
};

/* In a container with a paced card and an arbiter. */
static const struct work limited[] = {
    {"launch, limited", launch, drain, 200, 150, "vgpu-manager, HAMi: none published; rate limiter call 1.24-1.54 us (GPU-Virt-Bench)"},
    {"launch of a library's kernel, limited", launch_library_kernel, drain, 200, 150, "none published"},
    {"launch of a library's kernel on a stream, limited", launch_library_kernel_on_stream, drain, 200, 150, "none published"},
    {"launch of a library's function, limited", launch_library_function, drain, 200, 150, "none published"},
};

static double batch(const struct work *w, const struct side *s)
{
    double start = now_ns();
    w->run(s, w->calls);
    double took = (now_ns() - start) / w->calls;
    w->undo(s, w->calls);
    return took;
}

static int measure(const struct work *w)
{
    static double took[2][ROUNDS], added[ROUNDS];
    for (int i = 0; i < 8; i++) batch(w, &sides[i & 1]); /* the first calls resolve functions and map memory */
    for (int i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < 2; k++) took[(i + k) & 1][i] = batch(w, &sides[(i + k) & 1]);
        added[i] = took[1][i] - took[0][i];
    }
    double more = at(added, ROUNDS, 0.5);
    return report(w->what, "ns", at(took[0], ROUNDS, 0.5), at(took[1], ROUNDS, 0.5), more, w->bar, w->others);
}

static void stay_on_this_cpu(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
}

int main(int count, char **arguments) /* driver, library, and "limited" for launches in a paced container */
{
    static const char ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n// simgpu: time_us=0\n.visible .entry nothing() { ret; }\n";
    CUcontext context;
    CUmodule module;
    CUlibrary library_of_kernels;
    int missed = 0;
    if (count != 3 && count != 4) return 2;
    driver = dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL);
    void *library = dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL);
    if (!driver || !library) return fprintf(stderr, "bench: %s\n", dlerror()), 1;
    stay_on_this_cpu();
    sides[0] = side_of(driver);
    sides[1] = side_of(library);
    must(sides[1].init(0), "cuInit");
    must(sides[1].create(&context, 0, 0), "cuCtxCreate");
    must(sides[1].load(&module, ptx), "cuModuleLoadData");
    must(sides[1].function(&kernel, module, "nothing"), "cuModuleGetFunction");
    must(sides[1].load_library(&library_of_kernels, ptx, NULL, NULL, 0, NULL, NULL, 0), "cuLibraryLoadData");
    must(sides[1].library_kernel(&library_kernel, library_of_kernels, "nothing"), "cuLibraryGetKernel");
    must(sides[1].kernel_function(&library_function, library_kernel), "cuKernelGetFunction");
    must(sides[1].create_stream(&stream, 0), "cuStreamCreate");
    must(sides[1].alloc == sides[0].alloc || sides[1].info == sides[0].info, "the library stands between: no");
    const struct work *of = count == 4 ? limited : works;
    size_t rows = count == 4 ? sizeof limited / sizeof *limited : sizeof works / sizeof *works;
    for (size_t i = 0; i < rows; i++) missed += !measure(&of[i]);
    return missed ? 3 : 0;
}
