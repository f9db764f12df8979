/* Preloaded before the library: records the answers of cuGetProcAddress to the runtime library. Writes one line per call to descriptor 9: name,
 * version, flags, status, and the symbol and file that contain the returned function. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define API __attribute__((visibility("default")))

typedef int (*first_fn)(const char *, void **, int, uint64_t);
typedef int (*second_fn)(const char *, void **, int, uint64_t, int *);

API int spy_first(const char *name, void **out, int version, uint64_t flags);
API int spy_second(const char *name, void **out, int version, uint64_t flags, int *status);

static void *next(const char *name)
{
    static void *(*find)(void *, const char *);
    if (!find) find = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *volatile found = find ? find(RTLD_NEXT, name) : NULL;
    return found;
}

/* The runtime must make its further lookups here, too. */
static void *instead(const char *name, void *found)
{
    if (found && !strcmp(name, "cuGetProcAddress")) return found == next("cuGetProcAddress") ? (void *)spy_first : (void *)spy_second;
    return found && !strcmp(name, "cuGetProcAddress_v2") ? (void *)spy_second : found;
}

static void note(const char *name, void **out, int version, uint64_t flags, int status)
{
    Dl_info info = {0};
    void *found = out ? *out : NULL;
    if (found) dladdr(found, &info);
    dprintf(9, "%s %d %llu %d %s %s\n", name && *name ? name : "''", version, (unsigned long long)flags, status,
            info.dli_sname ? info.dli_sname : "-", info.dli_fname ? info.dli_fname : "-");
    if (found) *out = instead(name, found);
}

API int spy_first(const char *name, void **out, int version, uint64_t flags)
{
    int result = ((first_fn)next("cuGetProcAddress"))(name, out, version, flags);
    note(name, out, version, flags, result);
    return result;
}

API int spy_second(const char *name, void **out, int version, uint64_t flags, int *status)
{
    int ignored, result = ((second_fn)next("cuGetProcAddress_v2"))(name, out, version, flags, status ? status : &ignored);
    note(name, out, version, flags, status ? *status : ignored);
    return result;
}

API void *dlsym(void *handle, const char *name)
{
    void *(*find)(void *, const char *) = (void *(*)(void *, const char *))next("dlsym");
    return instead(name, find(handle, name));
}
