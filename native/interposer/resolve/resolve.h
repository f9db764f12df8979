/* How names, our functions and the driver's functions are found. Private to resolve.c, driver.c, dl.c, procaddress.c. */
#ifndef FRACTILE_RESOLVE_H
#define FRACTILE_RESOLVE_H

#include "fractile.h"

#include <link.h>

/* A sanitizer replaces strcmp and the like, and calls dlsym to find them: what dlsym needs, it has to do by itself. */
static inline int fr_compare_names(const char *a, const char *b)
{
    while (*a && *a == *b) a++, b++;
    return (unsigned char)*a - (unsigned char)*b;
}

static inline bool fr_same(const char *a, const char *b) { return !fr_compare_names(a, b); }

static inline bool fr_begins(const char *text, const char *start)
{
    while (*start && *text == *start) text++, start++;
    return !*start;
}

#define FR_NO_SYMBOL (-1)
enum fr_symbol_class { FR_PASS, FR_ACCOUNT, FR_PACE, FR_VIRTUALISE, FR_REFUSE };

/* ---- resolve.c: the table ---- */
int fr_symbol(const char *name); /* number of a symbol, FR_NO_SYMBOL */
const char *fr_symbol_name(int symbol);
enum fr_symbol_class fr_symbol_class(int symbol);
void *fr_symbol_function(int symbol); /* ours: a hook, or the thunk that goes on to the driver */

/* ---- driver.c: the real libraries ---- */
void *fr_driver_function(int symbol);    /* NULL: the driver does not have it, or there is none */
bool fr_driver_found(bool nvml);
bool fr_driver_wanted(bool nvml); /* opened by us, or linked by something that is loaded */
bool fr_driver_contains(const void *address); /* code of a library that we opened ourselves? (one load when none is open) */
bool fr_driver_name(const char *file, bool *nvml); /* is it libcuda.so*, libnvidia-ml.so*, wherever? */
bool fr_is_driver(const struct link_map *object);  /* by its soname, and not us */

/* ---- elf.c: loaded objects, without asking the C library ---- */
const char *fr_elf_soname(uintptr_t base, const ElfW(Dyn) *dynamic); /* "" when it has none */
void *fr_elf_symbol(uintptr_t base, const ElfW(Dyn) *dynamic, const char *name);
bool fr_elf_ours(uintptr_t base, const ElfW(Dyn) *dynamic); /* this library, any copy of it */
/* The place that a d_ptr of `tag` names, NULL without; a number of `tag`, 0 without. */
const void *fr_elf_place(uintptr_t base, const ElfW(Dyn) *dynamic, int64_t tag);
size_t fr_elf_number(const ElfW(Dyn) *dynamic, int64_t tag);

/* ---- libc.c: the C library's own functions, whatever is exported under their names by others ---- */
enum fr_libc { FR_DLSYM, FR_DLVSYM, FR_DLOPEN, FR_DLMOPEN, FR_ITERATE, FR_LIBC_FUNCTIONS };
void *fr_libc(enum fr_libc function);
int fr_libc_number(const char *name); /* enum fr_libc of the functions that we replace, or -1 */
int fr_each_object(int (*look)(struct dl_phdr_info *, size_t, void *), void *data); /* dl_iterate_phdr */
void *fr_real_dlopen(const char *file, int mode);
void *fr_real_dlsym(void *handle, const char *name);

#endif
