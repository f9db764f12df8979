/* The real libraries. */
#ifndef FRACTILE_RESOLVE_DRIVER_H
#define FRACTILE_RESOLVE_DRIVER_H

#include <link.h>
#include <stdbool.h>

void *fr_driver_function(int symbol);    /* NULL: the driver does not have it, or there is none */
bool fr_driver_found(bool nvml);
bool fr_driver_open_early(void);         /* libcuda.so.1; false: the first call looks for it again */
bool fr_driver_wanted(bool nvml);                  /* opened by us, or linked by something that is loaded */
bool fr_driver_contains(const void *address);      /* code of a library that we opened ourselves? (one load when none is open) */
bool fr_driver_name(const char *file, bool *nvml); /* is it libcuda.so*, libnvidia-ml.so*, wherever? */
bool fr_is_driver(const struct link_map *object);  /* by its soname, and not us */

#endif
