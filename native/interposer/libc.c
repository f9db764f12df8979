/* The C library's own dlsym, dlvsym, dlopen and dlmopen: read out of libc.so.6 (glibc 2.34 and later) or libdl.so.2 as they
 * are loaded in this namespace. dlvsym would have to know a version per glibc and architecture, and _dl_sym is private. */
#include "resolve.h"

#include <stdatomic.h>
#include <string.h>

static const char *const function_names[FR_LIBC_FUNCTIONS] = {"dlsym", "dlvsym", "dlopen", "dlmopen"};
static void *functions[FR_LIBC_FUNCTIONS];

int fr_libc_number(const char *name)
{
    for (int i = 0; i < FR_LIBC_FUNCTIONS; i++)
        if (!strcmp(name, function_names[i])) return i;
    return -1;
}

static const ElfW(Dyn) *dynamic_of(const struct dl_phdr_info *object)
{
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC) return (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    return NULL;
}

static int look_into(struct dl_phdr_info *object, size_t size, void *found)
{
    (void)size;
    const ElfW(Dyn) *dynamic = dynamic_of(object);
    const char *soname = dynamic ? fr_elf_soname(object->dlpi_addr, dynamic) : "";
    if (strcmp(soname, "libc.so.6") && strcmp(soname, "libdl.so.2")) return 0;
    for (int i = 0; i < FR_LIBC_FUNCTIONS; i++) {
        void *function = fr_elf_symbol(object->dlpi_addr, dynamic, function_names[i]);
        if (function) ((void **)found)[i] = function;
    }
    return 0;
}

void *fr_libc(enum fr_libc function)
{
    void *known = __atomic_load_n(&functions[function], __ATOMIC_RELAXED);
    if (likely(known)) return known;
    void *found[FR_LIBC_FUNCTIONS] = {0};
    dl_iterate_phdr(look_into, found);
    for (int i = 0; i < FR_LIBC_FUNCTIONS; i++) __atomic_store_n(&functions[i], found[i], __ATOMIC_RELAXED);
    return found[function];
}

void *fr_real_dlopen(const char *file, int mode)
{
    void *(*open)(const char *, int) = (void *(*)(const char *, int))fr_libc(FR_DLOPEN);
    return open ? open(file, mode) : NULL;
}

void *fr_real_dlsym(void *handle, const char *name)
{
    void *(*find)(void *, const char *) = (void *(*)(void *, const char *))fr_libc(FR_DLSYM);
    return find ? find(handle, name) : NULL;
}
