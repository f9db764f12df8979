/* Finds and opens NVIDIA's real libraries: see driver.c. */
#ifndef FRACTILE_RESOLVE_DRIVER_H
#define FRACTILE_RESOLVE_DRIVER_H

#include <link.h>
#include <stdbool.h>

void *fr_driver_function(int symbol);    /* NULL: the driver lacks it, or there is no driver */
bool fr_driver_found(bool nvml);
bool fr_driver_open_early(void);         /* libcuda.so.1; false: the first call looks for it again */
bool fr_driver_wanted(bool nvml);                  /* opened by this library, or linked with by a loaded object */
bool fr_driver_contains(const void *address);      /* in a driver library that this library opened? (one load if none is open) */
bool fr_driver_name(const char *file, bool *nvml); /* is it libcuda.so* or libnvidia-ml.so*, in any directory? */
bool fr_is_driver(const struct link_map *object);  /* by its soname; this library is not a driver */

#endif
