/* What the driver made past our functions: see unseen.c. */
#ifndef FRACTILE_MEMORY_UNSEEN_H
#define FRACTILE_MEMORY_UNSEEN_H

#include "cuda_abi.h"

void fr_unseen_look(CUdevice device); /* in a call that allocates, loads or asks, with a context current on that device */
void fr_unseen_function(CUfunction function); /* before its first use: is its module known? */

#endif
