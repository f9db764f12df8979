/* The region file of the container. */
#ifndef FRACTILE_LEDGER_ATTACH_H
#define FRACTILE_LEDGER_ATTACH_H

#include <stdbool.h>

/* False, and said, when there is none to be used. The caller holds the process's set-up lock. */
bool fr_region_map(void);
int fr_region_open(void);   /* -1, and said */
bool fr_region_use(int fd); /* the file is the one that is mapped; maps it when none is */

#endif
