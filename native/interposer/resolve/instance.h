/* This library among the loaded objects: see instance.c. */
#ifndef FRACTILE_RESOLVE_INSTANCE_H
#define FRACTILE_RESOLVE_INSTANCE_H

#include <link.h>

const struct link_map *fr_object_of(const void *address); /* NULL: of none */
const struct link_map *fr_self(void);
const struct link_map *fr_instance(const struct link_map *here); /* as loaded in the namespace of `here`; NULL: not loaded there */
void *fr_own_libc_function(int number); /* our function in place of an enum fr_libc */

#endif
