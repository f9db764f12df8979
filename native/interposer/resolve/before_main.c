/* Opens the driver before main in programs that are themselves linked with libcuda.so.1. Without this library such a program has the driver
 * loaded before main, too, and not within its first call. Every other program loads the driver at its first call, or never.
 *
 * This runs at the start of every process, and most processes do not use CUDA. So until the name is found, it touches only memory that the
 * dynamic linker has just used: its code is at the front of .text, next to the symbol tables, and it neither calls a function nor reads a
 * constant. */
#include "base/compiler.h"
#include "base/text.h"
#include "resolve/driver.h"
#include "resolve/libc.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>

static bool is_linked_with_driver(const struct link_map *program)
{
    const char driver[] = "libcuda.so.1"; /* immediate operands, not a constant in .rodata */
    const char *strings = NULL;
    for (const ElfW(Dyn) *d = program->l_ld; d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_STRTAB) strings = (const char *)(d->d_un.d_ptr + (d->d_un.d_ptr < program->l_addr ? program->l_addr : 0)); /* as in elf.c */
    for (const ElfW(Dyn) *d = program->l_ld; strings && d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_NEEDED && fr_same(strings + d->d_un.d_val, driver)) return true;
    return false;
}

__attribute__((constructor)) static void open_driver_before_main(void)
{
    const struct link_map *program = _r_debug.r_map;
    if (likely(!program || !program->l_ld || !is_linked_with_driver(program))) return;
    if (fr_in_programs_namespace() && !fr_driver_open_early()) dlerror(); /* clears the error: it is not the program's */
}
