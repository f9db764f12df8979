/* Calls by which a program makes streams wait: see wait_calls.c. */
#ifndef FRACTILE_PACING_WAIT_CALLS_H
#define FRACTILE_PACING_WAIT_CALLS_H

#include "cuda_abi.h"

#include <stdbool.h>

void fr_wait_cut(CUstream s, bool own, bool by_host); /* what is launched from now on may wait; by_host: for the program */

#endif
