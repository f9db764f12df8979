/* Opens and maps the container's region file. */
#ifndef FRACTILE_LEDGER_ATTACH_H
#define FRACTILE_LEDGER_ATTACH_H

#include <stdbool.h>

/* False, with a message, if no region is usable. The caller holds the process's set-up lock. */
bool fr_region_map(void);
int fr_region_open(void);   /* -1, with a message */
bool fr_region_use(int fd); /* is it the mapped file? Maps it if none is mapped */

#endif
