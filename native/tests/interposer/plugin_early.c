/* A library whose constructor already looks the driver up, as in some real libraries. */
#include <dlfcn.h>
#include <stddef.h>

__attribute__((visibility("default"))) void *early_found;

__attribute__((constructor)) static void look(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    early_found = library ? dlsym(library, "cuMemAlloc_v2") : NULL;
}
