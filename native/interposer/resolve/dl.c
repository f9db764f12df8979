/* dlsym and dlvsym. For names of the table, and for the four dl names themselves, the C library looks first. If the function that it
 * found is in a driver library (any copy, by any path, in any namespace; for the dl names: in the C library), the call returns this
 * library's function of that name. A function found elsewhere, such as a wrapper of the application's own, is returned unchanged. */
#include "resolve/dl.h"

#include "base/compiler.h"
#include "base/text.h"
#include "resolve/driver.h"
#include "resolve/elf.h"
#include "resolve/instance.h"
#include "resolve/libc.h"
#include "resolve/symbol_table.h"
#include "resolve/thunks.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- which object is it? ---- */

static bool is_libc(const struct link_map *object)
{
    const char *soname = fr_elf_soname(object->l_addr, object->l_ld);
    return fr_same(soname, "libc.so.6") || fr_same(soname, "libdl.so.2");
}

/* ---- the function that the C library found -> the function to return ---- */

struct wanted { const char *name, *version; int symbol, number; }; /* symbol: of the table; number: of enum fr_libc */

static void *ours(const struct wanted *w)
{
    return w->symbol >= 0 ? fr_symbol_function(w->symbol) : fr_own_libc_function(w->number);
}

static bool replaced(const struct wanted *w, const struct link_map *object)
{
    return w->symbol >= 0 ? fr_is_driver(object) : is_libc(object);
}

static void *in_place_of(const struct wanted *w, void *found)
{
    if (found == ours(w)) return found;
    if (w->symbol >= 0 ? fr_driver_contains(found) : found == fr_libc((enum fr_libc)w->number)) return ours(w);
    const struct link_map *object = fr_object_of(found);
    if (!object || !replaced(w, object)) return found;
    const struct link_map *instance = fr_instance(object);
    void *there = instance && instance != fr_self() ? fr_elf_symbol(instance->l_addr, instance->l_ld, w->name) : NULL;
    return there ? there : ours(w);
}

/* ---- RTLD_NEXT: the C library starts at its caller's object, which would be this library. So the search is done here. ---- */

struct next { const struct wanted *wanted; uintptr_t caller; bool passed; void *found; };

static const ElfW(Dyn) *dynamic_of(const struct dl_phdr_info *object, uintptr_t address, bool *holds)
{
    const ElfW(Dyn) *dynamic = NULL;
    *holds = false;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &object->dlpi_phdr[i];
        uintptr_t at = object->dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_DYNAMIC) dynamic = (const ElfW(Dyn) *)at;
        if (p->p_type == PT_LOAD && address - at < p->p_memsz) *holds = true;
    }
    return dynamic;
}

static int look_behind(struct dl_phdr_info *object, size_t size, void *data)
{
    (void)size;
    struct next *next = data;
    bool holds;
    const ElfW(Dyn) *dynamic = dynamic_of(object, next->caller, &holds);
    if (!next->passed) {
        next->passed = holds;
        return 0;
    }
    next->found = dynamic ? fr_elf_symbol(object->dlpi_addr, dynamic, next->wanted->name) : NULL;
    return next->found != NULL;
}

/* Normally no object behind this library has the driver's names. The driver that this library stands for counts as behind the caller. */
static void *find_next(const struct wanted *w, const void *caller)
{
    struct next next = {w, (uintptr_t)caller, false, NULL};
    fr_each_object(look_behind, &next);
    if (next.found || w->symbol < 0) return next.found;
    return fr_driver_function(w->symbol) ? ours(w) : NULL;
}

/* ---- the calls ---- */

static void *look_up(const struct fr_dl_call *call, const struct wanted *w)
{
    if (call->a == RTLD_NEXT) return find_next(w, call->caller);
    if (!w->version) return fr_real_dlsym(call->a, w->name);
    void *(*find)(void *, const char *, const char *) = (void *(*)(void *, const char *, const char *))fr_libc(FR_DLVSYM);
    return find(call->a, w->name, w->version);
}

static void *find(struct fr_dl_call *call, enum fr_libc function, const char *version)
{
    struct wanted w = {call->b, version, FR_NO_SYMBOL, -1};
    if (unlikely(atomic_load_explicit(&fr_rebind_pending, memory_order_relaxed))) fr_rebind();
    if (!w.name || fr_driver_contains(call->caller)) return fr_libc(function);
    w.symbol = fr_symbol(w.name);
    if (w.symbol < 0 && fr_begins(w.name, "dl")) w.number = fr_libc_number(w.name);
    if (w.symbol < 0 && w.number < 0) return fr_libc(function);
    void *found = look_up(call, &w);
    return found ? fr_dl_answer(call, in_place_of(&w, found)) : fr_libc(function);
}

void *fr_on_dlsym(struct fr_dl_call *call) { return find(call, FR_DLSYM, NULL); }
void *fr_on_dlvsym(struct fr_dl_call *call) { return call->c ? find(call, FR_DLVSYM, call->c) : fr_libc(FR_DLVSYM); }
