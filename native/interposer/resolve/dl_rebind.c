/* Objects opened with RTLD_DEEPBIND look into their own libraries first, so they find the C library's dlsym and dlopen (and a real
 * libnvidia-ml) before this library's. After such an object is loaded, its imports of those names, and its libraries' imports, are rebound
 * to this library one by one: the loader would have written the same values if it had searched in the usual order.
 *
 * Only constructors that ran in between have used the other functions. */
#include "base/text.h"
#include "resolve/dl.h"
#include "resolve/driver.h"
#include "resolve/elf.h"
#include "resolve/instance.h"
#include "resolve/libc.h"
#include "resolve/symbol_table.h"
#include "resolve/thunks.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

_Atomic bool fr_rebind_pending;

#if defined(__x86_64__)
enum { JUMP_SLOT = R_X86_64_JUMP_SLOT, GLOB_DAT = R_X86_64_GLOB_DAT, WORD = R_X86_64_64 };
#else
enum { JUMP_SLOT = R_AARCH64_JUMP_SLOT, GLOB_DAT = R_AARCH64_GLOB_DAT, WORD = R_AARCH64_ABS64 };
#endif

struct object { uintptr_t base, begin, end, relro, relro_end; const ElfW(Dyn) *dynamic; };

static struct object read_object(const struct dl_phdr_info *seen)
{
    struct object o = {seen->dlpi_addr, UINTPTR_MAX, 0, 0, 0, NULL};
    for (int i = 0; i < seen->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &seen->dlpi_phdr[i];
        uintptr_t at = o.base + p->p_vaddr;
        if (p->p_type == PT_DYNAMIC) o.dynamic = (const ElfW(Dyn) *)at;
        if (p->p_type == PT_GNU_RELRO) o.relro = at, o.relro_end = at + p->p_memsz;
        if (p->p_type == PT_LOAD && at < o.begin) o.begin = at;
        if (p->p_type == PT_LOAD && at + p->p_memsz > o.end) o.end = at + p->p_memsz;
    }
    return o;
}

static void put(const struct object *o, void **place, void *value)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)place & -page;
    bool closed = (uintptr_t)place >= o->relro && (uintptr_t)place < o->relro_end;
    if (closed && mprotect((void *)at, page, PROT_READ | PROT_WRITE)) return;
    __atomic_store_n(place, value, __ATOMIC_RELAXED);
    if (closed) mprotect((void *)at, page, PROT_READ);
}

static bool in_driver(const void *address)
{
    Dl_info info;
    struct link_map *object = NULL;
    return fr_driver_contains(address) || (dladdr1(address, &info, (void **)&object, RTLD_DL_LINKMAP) && object && fr_is_driver(object));
}

/* The right value for an import that now holds `value`. NULL: it is right already, or not to be changed. */
static void *right_value(const struct object *o, const char *name, const void *value)
{
    bool unbound = (uintptr_t)value >= o->begin && (uintptr_t)value < o->end; /* lazy binding: still the object's own stub */
    int number = fr_begins(name, "dl") ? fr_libc_number(name) : -1;
    if (number >= 0) return unbound || value == fr_libc((enum fr_libc)number) ? fr_own_libc_function(number) : NULL;
    int symbol = fr_symbol(name);
    return symbol >= 0 && (unbound || in_driver(value)) ? fr_symbol_function(symbol) : NULL;
}

static void rebind_list(const struct object *o, const ElfW(Rela) *list, size_t bytes)
{
    const ElfW(Sym) *symbols = fr_elf_place(o->base, o->dynamic, DT_SYMTAB);
    const char *strings = fr_elf_place(o->base, o->dynamic, DT_STRTAB);
    for (size_t i = 0; list && symbols && strings && i < bytes / sizeof *list; i++) {
        unsigned type = ELF64_R_TYPE(list[i].r_info);
        const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(list[i].r_info)];
        if ((type != JUMP_SLOT && type != GLOB_DAT && type != WORD) || symbol->st_shndx != SHN_UNDEF) continue;
        void **place = (void **)(o->base + list[i].r_offset);
        void *value = right_value(o, strings + symbol->st_name, *place);
        if (value) put(o, place, value);
    }
}

static int rebind_object(struct dl_phdr_info *seen, size_t size, void *data)
{
    (void)size, (void)data;
    struct object o = read_object(seen);
    struct link_map as_map = {.l_addr = o.base, .l_ld = (ElfW(Dyn) *)o.dynamic};
    if (!o.dynamic || fr_elf_ours(o.base, o.dynamic) || fr_is_driver(&as_map)) return 0;
    rebind_list(&o, fr_elf_place(o.base, o.dynamic, DT_JMPREL), fr_elf_number(o.dynamic, DT_PLTRELSZ));
    rebind_list(&o, fr_elf_place(o.base, o.dynamic, DT_RELA), fr_elf_number(o.dynamic, DT_RELASZ));
    return 0;
}

void fr_rebind(void)
{
    atomic_store(&fr_rebind_pending, false);
    /* If another library's dlsym (a sanitizer's) comes before this library's in the usual order, that one is right. */
    if (fr_real_dlsym(RTLD_DEFAULT, "dlsym") != fr_own_libc_function(FR_DLSYM)) return;
    fr_each_object(rebind_object, NULL);
}
