/* Finds the C library's own functions, whatever other libraries export under their names. See libc.c. */
#ifndef FRACTILE_RESOLVE_LIBC_H
#define FRACTILE_RESOLVE_LIBC_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>

enum fr_libc { FR_DLSYM, FR_DLVSYM, FR_DLOPEN, FR_DLMOPEN, FR_ITERATE, FR_LIBC_FUNCTIONS };
void *fr_libc(enum fr_libc function);
const char *fr_libc_name(int number);
int fr_libc_number(const char *name); /* enum fr_libc of a function that this library replaces, or -1 */
int fr_each_object(int (*look)(struct dl_phdr_info *, size_t, void *), void *data); /* dl_iterate_phdr */
bool fr_in_programs_namespace(void);
void *fr_real_dlopen(const char *file, int mode);
void *fr_real_dlsym(void *handle, const char *name);

#endif
