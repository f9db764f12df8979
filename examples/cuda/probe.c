/* probe: what a container may use of its first card, from the view of a CUDA program. It does not need the CUDA toolkit:
 *
 *     cc -O2 -o probe probe.c -lcuda -ldl      (on simgpu with -Lnative/build/simgpu)
 *
 *     probe info               what the driver and NVML report about the card, in bytes
 *     probe cards              the cards that NVML shows, and whether NVLink connects the first two
 *     probe fill [SECONDS]     allocate until the driver refuses; print how much, and the error; then keep it for SECONDS
 *     probe spin SECONDS [US]  launch kernels of US microseconds (2000) for SECONDS; print how many ran, and how many
 *                              seconds the longest round of eight took
 *
 * Prints one line of JSON. The kernel's remark tells a simulated card how long the kernel takes; on a real card, which
 * ignores the remark, the kernel counts nanoseconds. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* From the driver API and NVML, as documented. */
typedef unsigned long long CUdeviceptr;
int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDeviceGetCount(int *count);
int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemGetInfo_v2(size_t *free, size_t *total);
int cuMemAlloc_v2(CUdeviceptr *at, size_t bytes);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
                   void **parameters, void **extra);
int cuCtxSynchronize(void);
struct nvml_memory { unsigned long long total, free, used; };

#define MIB 1048576ull
#define OUT_OF_MEMORY 2
#define AHEAD 8 /* kernels in flight */
#define P2P_NVLINK 2 /* NVML_P2P_CAPS_INDEX_NVLINK; status 0 is "it works" */

static const char kernels[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    "// simgpu: time_us=$0 share=1\n"
    ".visible .entry spin(.param .u64 us)\n{\n"
    "  .reg .u64 %t<4>;\n  .reg .pred %p;\n"
    "  ld.param.u64 %t1, [us];\n  mul.lo.u64 %t1, %t1, 1000;\n  mov.u64 %t2, %globaltimer;\n"
    "again:\n  mov.u64 %t3, %globaltimer;\n  sub.u64 %t3, %t3, %t2;\n  setp.lt.u64 %p, %t3, %t1;\n  @%p bra again;\n  ret;\n}\n";

static void need(const char *what, int result)
{
    if (!result) return;
    fprintf(stderr, "probe: %s answered %d\n", what, result);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void begin(void)
{
    int device;
    void *context;
    need("cuInit", cuInit(0));
    need("cuDeviceGet", cuDeviceGet(&device, 0));
    need("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    need("cuCtxSetCurrent", cuCtxSetCurrent(context));
}

static void *nvml(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return fprintf(stderr, "probe: %s\n", dlerror()), exit(1), library;
    int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    need("nvmlInit", init());
    return library;
}

static void *card(void *library, unsigned index)
{
    void *device;
    int (*handle)(unsigned, void **) = (int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    need("nvmlDeviceGetHandleByIndex", handle(index, &device));
    return device;
}

static struct nvml_memory memory_of_first(void)
{
    struct nvml_memory found = {0};
    void *library = nvml();
    int (*memory)(void *, struct nvml_memory *) = (int (*)(void *, struct nvml_memory *))dlsym(library, "nvmlDeviceGetMemoryInfo");
    need("nvmlDeviceGetMemoryInfo", memory(card(library, 0), &found));
    return found;
}

static int cards(void)
{
    unsigned count;
    int status = -1;
    char uuid[96];
    void *library = nvml();
    int (*many)(unsigned *) = (int (*)(unsigned *))dlsym(library, "nvmlDeviceGetCount_v2");
    int (*name)(void *, char *, unsigned) = (int (*)(void *, char *, unsigned))dlsym(library, "nvmlDeviceGetUUID");
    int (*peers)(void *, void *, int, int *) = (int (*)(void *, void *, int, int *))dlsym(library, "nvmlDeviceGetP2PStatus");
    need("nvmlDeviceGetCount", many(&count));
    printf("{\"uuids\":[");
    for (unsigned i = 0; i < count; i++) {
        need("nvmlDeviceGetUUID", name(card(library, i), uuid, sizeof uuid));
        printf("%s\"%s\"", i ? "," : "", uuid);
    }
    if (count > 1) need("nvmlDeviceGetP2PStatus", peers(card(library, 0), card(library, 1), P2P_NVLINK, &status));
    printf("],\"nvlink\":%s}\n", status ? "false" : "true");
    return 0;
}

static int info(void)
{
    size_t free_bytes, total_bytes, device_bytes;
    int count;
    need("cuDeviceGetCount", cuDeviceGetCount(&count));
    need("cuDeviceTotalMem", cuDeviceTotalMem_v2(&device_bytes, 0));
    need("cuMemGetInfo", cuMemGetInfo_v2(&free_bytes, &total_bytes));
    struct nvml_memory m = memory_of_first();
    printf("{\"cards\":%d,\"device\":%zu,\"total\":%zu,\"free\":%zu,\"nvmlTotal\":%llu,\"nvmlUsed\":%llu}\n", count, device_bytes, total_bytes,
           free_bytes, m.total, m.used);
    return 0;
}

static int fill(unsigned seconds)
{
    unsigned long long taken = 0;
    CUdeviceptr at;
    int last = 0;
    for (size_t piece = 64 * MIB; piece >= 2 * MIB; piece /= 2)
        while (!(last = cuMemAlloc_v2(&at, piece))) taken += piece;
    printf("{\"taken\":%llu,\"refusal\":%d}\n", taken, last);
    fflush(stdout);
    sleep(seconds);
    return last == OUT_OF_MEMORY ? 0 : 1;
}

static int spin(double seconds, unsigned long long us)
{
    void *module, *function, *parameters[] = {&us};
    unsigned long long done = 0;
    need("cuModuleLoadData", cuModuleLoadData(&module, kernels));
    need("cuModuleGetFunction", cuModuleGetFunction(&function, module, "spin"));
    double began = now(), longest = 0;
    for (double round = began, end; round - began < seconds; round = end) {
        for (int i = 0; i < AHEAD; i++, done++) need("cuLaunchKernel", cuLaunchKernel(function, 1024, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
        need("cuCtxSynchronize", cuCtxSynchronize());
        end = now();
        if (end - round > longest) longest = end - round;
    }
    printf("{\"kernels\":%llu,\"us\":%llu,\"seconds\":%.3f,\"longest\":%.3f}\n", done, us, now() - began, longest);
    return 0;
}

int main(int argc, char **argv)
{
    const char *command = argc > 1 ? argv[1] : "";
    if (!strcmp(command, "cards")) return cards();
    if (strcmp(command, "info") && strcmp(command, "fill") && !(argc > 2 && !strcmp(command, "spin")))
        return fputs("usage: probe info | probe cards | probe fill [SECONDS] | probe spin SECONDS [MICROSECONDS]\n", stderr), 2;
    begin();
    if (!strcmp(command, "info")) return info();
    if (!strcmp(command, "fill")) return fill(argc > 2 ? (unsigned)atoi(argv[2]) : 0);
    return spin(atof(argv[2]), argc > 3 ? strtoull(argv[3], NULL, 10) : 2000);
}
