/* The entry of every call. The driver is opened, and its functions are looked up as a runtime does it, once. Each thread has a device, and
 * takes that device's primary context at the first call that needs a context, unless the thread has one already. */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>

struct rt_driver driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool found;
static __thread int device;
static __thread cudaError_t last;

static CUresult missing(void) { return cudaErrorNotSupported; }

static void *function(const char *name, int version)
{
    void *at = NULL;
    int status;
    CUresult r = driver.lookup(name, &at, version, 0, &status);
    return r || !at ? (void *)missing : at;
}

static void load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&driver.lookup = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (!driver.lookup) return;
#define TAKE(name, version, arguments) *(void **)&driver.name = function(#name, version);
    DRIVER_FUNCTIONS(TAKE)
    found = true;
}

cudaError_t rt_load(void)
{
    pthread_once(&once, load);
    return found ? driver.cuInit(0) : cudaErrorInsufficientDriver;
}

static cudaError_t bind_primary(int to)
{
    CUcontext context;
    cudaError_t e = driver.cuDevicePrimaryCtxRetain(&context, to);
    return e ? e : driver.cuCtxSetCurrent(context);
}

cudaError_t rt_enter(void)
{
    CUcontext context;
    cudaError_t e = rt_load();
    if (e || (e = driver.cuCtxGetCurrent(&context))) return e;
    return context ? cudaSuccess : bind_primary(device);
}

int rt_device(void)
{
    CUdevice of_context;
    return driver.cuCtxGetDevice(&of_context) ? device : of_context;
}

/* A successful call does not clear an earlier error. */
cudaError_t rt_end(cudaError_t result)
{
    if (result) last = result;
    return result;
}

/* Errors after which the context is unusable: only the end of the process clears them. */
static bool sticky(cudaError_t e) { return e == 214 || e == 220 || (e >= 700 && e <= 719 && e != 704 && e != 705 && e != 708 && e != 712 && e != 713); }

EXPORT cudaError_t cudaPeekAtLastError(void) { return last; }
EXPORT cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last;
    if (!sticky(e)) last = cudaSuccess;
    return e;
}

EXPORT cudaError_t cudaSetDevice(int to)
{
    int count;
    cudaError_t e = rt_load();
    if (e || (e = driver.cuDeviceGetCount(&count))) return rt_end(e);
    if (to < 0 || to >= count) return rt_end(cudaErrorInvalidDevice);
    device = to;
    return rt_end(bind_primary(to));
}

EXPORT cudaError_t cudaGetDevice(int *out)
{
    if (!out) return rt_end(cudaErrorInvalidValue);
    cudaError_t e = rt_load();
    if (!e) *out = rt_device();
    return rt_end(e);
}

EXPORT cudaError_t cudaInitDevice(int which, unsigned flags, unsigned unused)
{
    CUcontext context;
    (void)flags, (void)unused;
    RETURN_LOADED(driver.cuDevicePrimaryCtxRetain(&context, which));
}

/* The primary context counts its holders: a reset releases all of this process. */
EXPORT cudaError_t cudaDeviceReset(void)
{
    cudaError_t e = rt_load();
    int which = rt_device();
    if (e || (e = driver.cuDevicePrimaryCtxReset(which))) return rt_end(e);
    return rt_end(driver.cuCtxSetCurrent(NULL));
}

EXPORT cudaError_t cudaDriverGetVersion(int *out) { RETURN_LOADED(driver.cuDriverGetVersion(out)); }
EXPORT cudaError_t cudaRuntimeGetVersion(int *out)
{
    if (!out) return rt_end(cudaErrorInvalidValue);
    *out = RUNTIME_VERSION;
    return cudaSuccess;
}

/* ---- functions of the driver, for programs that call it themselves ---- */

static cudaError_t entry_point(const char *name, void **out, int version, unsigned long long flags, int *status)
{
    int answer = 1;
    cudaError_t e = rt_load();
    if (!e) e = driver.lookup(name, out, version, flags, &answer);
    if (status) *status = answer;
    else if (!e && answer) e = answer == 1 ? cudaErrorSymbolNotFound : cudaErrorNotSupported;
    return rt_end(e);
}

EXPORT cudaError_t cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags, int *status)
{
    return entry_point(name, out, RUNTIME_VERSION, flags, status);
}
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags, int *status)
{
    return entry_point(name, out, (int)version, flags, status);
}

EXPORT cudaError_t cudaProfilerStart(void) { RETURN(driver.cuProfilerStart()); }
EXPORT cudaError_t cudaProfilerStop(void) { RETURN(driver.cuProfilerStop()); }
