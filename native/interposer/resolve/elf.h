/* Loaded objects, without asking the C library. */
#ifndef FRACTILE_RESOLVE_ELF_H
#define FRACTILE_RESOLVE_ELF_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

const char *fr_elf_soname(uintptr_t base, const ElfW(Dyn) *dynamic); /* "" when it has none */
void *fr_elf_symbol(uintptr_t base, const ElfW(Dyn) *dynamic, const char *name);
bool fr_elf_ours(uintptr_t base, const ElfW(Dyn) *dynamic); /* this library, any copy of it */
/* The place that a d_ptr of `tag` names, NULL without; a number of `tag`, 0 without. */
const void *fr_elf_place(uintptr_t base, const ElfW(Dyn) *dynamic, int64_t tag);
size_t fr_elf_number(const ElfW(Dyn) *dynamic, int64_t tag);

#endif
