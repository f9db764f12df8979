/* Reads names and symbols of loaded ELF objects without calling the C library: see elf.c. */
#ifndef FRACTILE_RESOLVE_ELF_H
#define FRACTILE_RESOLVE_ELF_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

const char *fr_elf_soname(uintptr_t base, const ElfW(Dyn) *dynamic); /* "" when it has none */
void *fr_elf_symbol(uintptr_t base, const ElfW(Dyn) *dynamic, const char *name);
bool fr_elf_ours(uintptr_t base, const ElfW(Dyn) *dynamic); /* any copy of this library */
/* The address in the d_ptr of `tag`, NULL if there is no such entry; the number in the d_val of `tag`, 0 if there is no such entry. */
const void *fr_elf_place(uintptr_t base, const ElfW(Dyn) *dynamic, int64_t tag);
size_t fr_elf_number(const ElfW(Dyn) *dynamic, int64_t tag);

#endif
