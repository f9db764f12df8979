/* Finds the C library's own dlsym, dlvsym, dlopen, dlmopen and dl_iterate_phdr by reading libc.so.6 (glibc 2.34 and later) or libdl.so.2
 * as loaded in this namespace. The other ways do not work: dlvsym would need a version per glibc and architecture, and _dl_sym is private.
 * A sanitizer's functions of these names do not work before it has found the real ones, which it does with dlsym. So this code does not
 * use dl_iterate_phdr either, except in namespaces other than the program's, where there is no sanitizer. */
#include "resolve/libc.h"

#include "base/compiler.h"
#include "base/text.h"
#include "resolve/elf.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static const char *const function_names[FR_LIBC_FUNCTIONS] = {"dlsym", "dlvsym", "dlopen", "dlmopen", "dl_iterate_phdr"};
static void *functions[FR_LIBC_FUNCTIONS];

const char *fr_libc_name(int number) { return function_names[number]; }

int fr_libc_number(const char *name)
{
    for (int i = 0; i < FR_ITERATE; i++)
        if (fr_same(name, function_names[i])) return i;
    return -1;
}

static void look_into(uintptr_t base, const ElfW(Dyn) *dynamic, void **found)
{
    const char *soname = dynamic ? fr_elf_soname(base, dynamic) : "";
    if (!fr_same(soname, "libc.so.6") && !fr_same(soname, "libdl.so.2")) return;
    for (int i = 0; i < FR_LIBC_FUNCTIONS; i++) {
        void *function = fr_elf_symbol(base, dynamic, function_names[i]);
        if (function) found[i] = function;
    }
}

static int look_into_seen(struct dl_phdr_info *seen, size_t size, void *found)
{
    (void)size;
    for (int i = 0; i < seen->dlpi_phnum; i++)
        if (seen->dlpi_phdr[i].p_type == PT_DYNAMIC)
            look_into(seen->dlpi_addr, (const ElfW(Dyn) *)(seen->dlpi_addr + seen->dlpi_phdr[i].p_vaddr), found);
    return 0;
}

bool fr_in_programs_namespace(void)
{
    for (const struct link_map *m = _r_debug.r_map; m; m = m->l_next)
        if (m->l_ld == _DYNAMIC) return true;
    return false;
}

static void look(void **found)
{
    if (!fr_in_programs_namespace()) {
        dl_iterate_phdr(look_into_seen, found);
        return;
    }
    for (const struct link_map *m = _r_debug.r_map; m && !(found[FR_DLSYM] && found[FR_ITERATE]); m = m->l_next)
        look_into(m->l_addr, m->l_ld, found);
}

void *fr_libc(enum fr_libc function)
{
    void *known = __atomic_load_n(&functions[function], __ATOMIC_RELAXED);
    if (likely(known)) return known;
    void *found[FR_LIBC_FUNCTIONS] = {0};
    look(found);
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

int fr_each_object(int (*look_at)(struct dl_phdr_info *, size_t, void *), void *data)
{
    int (*iterate)(int (*)(struct dl_phdr_info *, size_t, void *), void *) =
        (int (*)(int (*)(struct dl_phdr_info *, size_t, void *), void *))fr_libc(FR_ITERATE);
    return iterate ? iterate(look_at, data) : 0;
}
