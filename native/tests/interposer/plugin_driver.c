/* A driver that is newer than the table of symbols, and unusual in every way that a driver may be: new forms of old functions, functions that it
 * exports under no name, functions that it exports under two names. Built without a C library, so without symbol versions, and with the
 * driver's soname. */
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
enum { OLD = 1, CURRENT, YOUNG, UNNAMED, SHARED }; /* a call's result tells which function it was */

API int cuInit(unsigned flags) { (void)flags; return 0; }
API int cuDriverGetVersion(int *out) { *out = 14000; return 0; }
API int cuMemAlloc(void) { return OLD; }
API int cuMemAlloc_v2(void) { return CURRENT; }
API int cuLaunchKernel(void) { return CURRENT; }
API int cuMemAllocAsync(void) { return SHARED; }
API int cuMemAllocAsync_ptsz(void) __attribute__((alias("cuMemAllocAsync")));
API int cuCtxGetId(void) __attribute__((alias("cuMemAllocAsync"))); /* `pass` in the table, but the same function */

static int young(void) { return YOUNG; }
static int unnamed(void) { return UNNAMED; }

static int same(const char *a, const char *b)
{
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

static void *find(const char *name, int version)
{
    if (same(name, "cuMemAlloc")) return version < 3020 ? (void *)cuMemAlloc : version < 14000 ? (void *)cuMemAlloc_v2 : (void *)young;
    if (same(name, "cuLaunchKernel")) return version < 14000 ? (void *)cuLaunchKernel : (void *)young;
    if (same(name, "cuMemFree") || same(name, "cuMemHostAlloc")) return (void *)unnamed;
    if (same(name, "cuMemAllocAsync") || same(name, "cuMemAllocAsyncFuture")) return (void *)cuMemAllocAsync;
    if (same(name, "cuMemAllocFuture")) return (void *)young;
    return NULL;
}

API int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
    (void)flags;
    *out = find(name, version);
    if (status) *status = *out ? 0 : 1;
    return *out || status ? 0 : 500;
}

API int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}
