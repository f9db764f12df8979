/* What the driver made without the library (see unseen.c). */
#ifndef FRACTILE_MEMORY_UNSEEN_H
#define FRACTILE_MEMORY_UNSEEN_H

#include "cuda_abi.h"

void fr_unseen_look(CUdevice device); /* in a call that allocates, loads or queries, with a context current on that device */
void fr_unseen_function(CUfunction function); /* before its first use: is its module known? */

#endif
