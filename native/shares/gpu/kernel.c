/* The kernels: PTX texts beside this file, which the driver compiles. The amount of work for a given length on this card is found by trial
 * before any measurement, so that a kernel is the same piece of work alone and beside others. */
#include "tenant.h"

#define THREADS 256
#define BUFFER (256ull << 20) /* larger than the caches of any card */
#define BLOCKS_PER_SM 4

const char *texts;
static CUcontext context;
static CUdeviceptr buffer;
static int sms;

_Noreturn void fail(const char *what)
{
    fprintf(stderr, "gpu-tenant: %s\n", what);
    _exit(3);
}

void set_context(void) { MUST(cuCtxSetCurrent(context)); }

void open_context(void)
{
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    set_context();
    MUST(cuDeviceGetAttribute(&sms, SM_COUNT, 0));
}

static void need_buffer(void)
{
    if (buffer) return;
    MUST(cuMemAlloc_v2(&buffer, BUFFER));
    MUST(cuMemsetD8_v2(buffer, 0, BUFFER));
}

void load_kernel(struct kernel *k)
{
    char path[512], text[8192];
    CUmodule module;
    snprintf(path, sizeof path, "%s/%s.ptx", texts, k->kind);
    FILE *f = fopen(path, "re");
    size_t size = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (!size || size == sizeof text - 1) fail(path);
    fclose(f);
    text[size] = 0;
    need_buffer();
    MUST(cuModuleLoadData(&module, text));
    MUST(cuModuleGetFunction(&k->function, module, k->kind));
}

void launch_kernel(const struct kernel *k, CUstream stream)
{
    uint64_t us = k->us, amount = k->amount, mask = BUFFER / 16 - 1;
    unsigned blocks = k->blocks ? k->blocks : (unsigned)sms * BLOCKS_PER_SM;
    MUST(cuLaunchKernel(k->function, blocks, 1, 1, THREADS, 1, 1, 0, stream, (void *[]){&us, &amount, &buffer, &mask}, NULL));
}

/* ---- the amount of work for a given length ---- */

static uint64_t least_ns(const struct kernel *k)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t began = now_ns();
        launch_kernel(k, NULL);
        MUST(cuCtxSynchronize());
        if (now_ns() - began < least) least = now_ns() - began;
    }
    return least;
}

/* Starts with a tiny amount, doubles it until the kernel takes the wanted time, then scales it in proportion. The cost of launch and wait, which
 * is the time of an empty kernel, is subtracted. */
static uint64_t amount_for(struct kernel *k)
{
    uint64_t wanted = k->us * 1000, nothing, took = 0;
    if (!strcmp(k->kind, "spin")) return 0;
    k->amount = k->us = 0;
    nothing = least_ns(k);
    k->us = wanted / 1000;
    for (k->amount = 1; k->amount < 1ull << 50; k->amount *= 2) {
        took = least_ns(k);
        took -= took > nothing ? nothing : took;
        if (took >= wanted) break;
    }
    return (uint64_t)((double)k->amount * (double)wanted / (double)(took ? took : 1)) + 1;
}

int print_amount(char **arguments)
{
    struct kernel k = {.us = strtoull(arguments[2], NULL, 10), .blocks = (unsigned)atoi(arguments[3])};
    texts = arguments[0];
    snprintf(k.kind, sizeof k.kind, "%s", arguments[1]);
    open_context();
    load_kernel(&k);
    printf("%llu\n", (unsigned long long)amount_for(&k));
    fflush(stdout);
    return 0;
}
