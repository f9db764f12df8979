/* The registrations by the compiler's start-up code: fat binaries, and which host function or variable stands for which one of the device.
 * Nothing is loaded then: a fat binary becomes a library of the driver at the first use of one of its functions. A program may register a
 * hundred thousand functions, so they are found by a hash of their address. */
#include "driver.h"

#include <pthread.h>
#include <stdlib.h>

struct fat_binary {
    const void *image;
    CUlibrary library;
};

struct symbol {
    const void *host;
    struct fat_binary *of;
    const char *name;
    CUkernel kernel;
};

static struct symbol *table;
static size_t room, count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct symbol *slot(struct symbol *in, size_t size, const void *host)
{
    size_t i = ((uintptr_t)host >> 4) * 0x9e3779b97f4a7c15u & (size - 1);
    while (in[i].host && in[i].host != host) i = (i + 1) & (size - 1);
    return &in[i];
}

static void grow(void)
{
    size_t size = room ? room * 2 : 1 << 12;
    struct symbol *bigger = calloc(size, sizeof *bigger);
    if (!bigger) abort();
    for (size_t i = 0; i < room; i++)
        if (table[i].host) *slot(bigger, size, table[i].host) = table[i];
    free(table);
    table = bigger;
    room = size;
}

static void add(void **handle, const void *host, const char *name)
{
    pthread_mutex_lock(&mutex);
    if (count * 2 >= room) grow();
    struct symbol *s = slot(table, room, host);
    count += !s->host;
    *s = (struct symbol){host, (struct fat_binary *)handle, name, NULL};
    pthread_mutex_unlock(&mutex);
}

/* Returned by value: the table may move as soon as the mutex is free. */
static struct symbol look_up(const void *host)
{
    struct symbol s = {0};
    pthread_mutex_lock(&mutex);
    if (room) s = *slot(table, room, host);
    pthread_mutex_unlock(&mutex);
    return s;
}

static void keep_kernel(const void *host, CUkernel k)
{
    pthread_mutex_lock(&mutex);
    slot(table, room, host)->kernel = k;
    pthread_mutex_unlock(&mutex);
}

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static cudaError_t load(struct fat_binary *f)
{
    cudaError_t e = cudaSuccess;
    pthread_mutex_lock(&loading);
    if (!f->library) e = driver.cuLibraryLoadData(&f->library, f->image, NULL, NULL, 0, NULL, NULL, 0);
    pthread_mutex_unlock(&loading);
    return e;
}

/* A CUkernel may be passed as a function: the driver then uses the current context's function. */
cudaError_t rt_kernel(const void *host, CUfunction *out)
{
    struct symbol s = look_up(host);
    if (!s.host) return cudaErrorInvalidDeviceFunction;
    if (!s.kernel) {
        cudaError_t e = load(s.of);
        if (!e) e = driver.cuLibraryGetKernel(&s.kernel, s.of->library, s.name);
        if (e) return e;
        keep_kernel(host, s.kernel);
    }
    *out = (CUfunction)s.kernel;
    return cudaSuccess;
}

cudaError_t rt_variable(const void *host, CUdeviceptr *at, size_t *size)
{
    struct symbol s = look_up(host);
    if (!s.host) return 13; /* cudaErrorInvalidSymbol */
    cudaError_t e = load(s.of);
    return e ? e : driver.cuLibraryGetGlobal(at, size, s.of->library, s.name);
}

/* ---- functions that start-up code calls ---- */

EXPORT void **__cudaRegisterFatBinary(const void *wrapper)
{
    struct fat_binary *f = calloc(1, sizeof *f);
    if (f) f->image = wrapper;
    return (void **)f;
}
EXPORT void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
EXPORT char __cudaInitModule(void **handle) { return handle != NULL; }

/* Called at the end of the program, when the driver may be gone already. So the fat binary stays until the process ends. */
EXPORT void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *stub, const char *name, int limit, void *tid, void *bid, void *block, void *grid, int *warp)
{
    (void)stub, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    add(handle, host, name);
}

EXPORT void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external, size_t size, int constant, int global)
{
    (void)address, (void)external, (void)size, (void)constant, (void)global;
    add(handle, host, name);
}
