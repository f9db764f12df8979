/* An application's own wrapper around one function of the driver: it is not the driver's, so the library must not replace it. */
#include <dlfcn.h>
#include <stddef.h>

__attribute__((visibility("default"))) int cuMemAlloc_v2(unsigned long long *out, size_t bytes)
{
    int (*next)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    return next ? next(out, bytes) : -1;
}

__attribute__((visibility("default"))) void *wrapper_next(const char *name)
{
    void *volatile found = dlsym(RTLD_NEXT, name); /* not a jump: this library is the caller */
    return found;
}
