/* Finds this library among the loaded objects: every namespace may have a copy of its own. */
#include "resolve/instance.h"

#include "resolve/elf.h"
#include "resolve/libc.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

const struct link_map *fr_object_of(const void *address)
{
    Dl_info info;
    struct link_map *object = NULL;
    return dladdr1(address, &info, (void **)&object, RTLD_DL_LINKMAP) ? object : NULL;
}

const struct link_map *fr_self(void)
{
    static const struct link_map *_Atomic self;
    const struct link_map *known = atomic_load_explicit(&self, memory_order_relaxed);
    if (!known) atomic_store(&self, known = fr_object_of((const void *)fr_self));
    return known;
}

const struct link_map *fr_instance(const struct link_map *here)
{
    while (here && here->l_prev) here = here->l_prev;
    while (here && !fr_elf_ours(here->l_addr, here->l_ld)) here = here->l_next;
    return here;
}

/* Read from this library's own symbol table, so that this file does not depend on the stubs, which depend on this file. */
void *fr_own_libc_function(int number)
{
    const struct link_map *self = fr_self();
    return self ? fr_elf_symbol(self->l_addr, self->l_ld, fr_libc_name(number)) : NULL;
}
