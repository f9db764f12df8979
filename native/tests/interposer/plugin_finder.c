/* A library that finds the driver by itself, as plugins do: with its own references to dlopen and dlsym. Opened with
 * RTLD_DEEPBIND these are bound to the C library's, opened in another namespace to those of that namespace. */
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

/* Where the table of pointers lies that a linker fills in at load time. */
static void *(*const by_pointer)(void *, const char *) = dlsym;
API void *finder_by_pointer(void *handle, const char *name) { return by_pointer(handle, name); }

/* Only this library has it, and it is not in the global scope: its own dlsym(RTLD_DEFAULT) must find it all the same. */
API int finder_local(void) { return 42; }
