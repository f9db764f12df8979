/* Finds this library among the loaded objects: see instance.c. */
#ifndef FRACTILE_RESOLVE_INSTANCE_H
#define FRACTILE_RESOLVE_INSTANCE_H

#include <link.h>

const struct link_map *fr_object_of(const void *address); /* NULL: the address is in no object */
const struct link_map *fr_self(void);
const struct link_map *fr_instance(const struct link_map *here); /* the copy in the namespace of `here`; NULL: not loaded there */
void *fr_own_libc_function(int number); /* this library's replacement of a function of enum fr_libc */

#endif
