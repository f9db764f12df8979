/* A library that finds the driver itself, like plugins: with its own references to dlopen and dlsym. If it is opened with RTLD_DEEPBIND, these
 * are bound to the C library's; if it is opened in another namespace, to those of that namespace. */
#include <dlfcn.h>
#include <stddef.h>

#define API __attribute__((visibility("default")))

API void *finder_open_and_find(const char *file, const char *name)
{
    void *library = dlopen(file, RTLD_NOW);
    return library ? dlsym(library, name) : NULL;
}

API void *finder_find_with_version(const char *file, const char *name)
{
    void *library = dlopen(file, RTLD_NOW);
    return library ? dlvsym(library, name, "GLIBC_2.2.5") : NULL;
}

/* Not as its last step: a jump would leave no trace of this library as the caller. */
API void *finder_default(const char *name)
{
    void *volatile found = dlsym(RTLD_DEFAULT, name);
    return found;
}

/* A pointer that the linker fills in at load time. */
static void *(*const by_pointer)(void *, const char *) = dlsym;
API void *finder_by_pointer(void *handle, const char *name) { return by_pointer(handle, name); }

/* Only this library has this function, and it is not in the global scope. The library's own dlsym(RTLD_DEFAULT) must still find it. */
API int finder_local(void) { return 42; }
