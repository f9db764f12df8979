/* What is remembered of green contexts: see green_records.c. */
#ifndef FRACTILE_MEMORY_GREEN_RECORDS_H
#define FRACTILE_MEMORY_GREEN_RECORDS_H

#include "ledger/records.h"

#include "cuda_abi.h"

#include <stdbool.h>

bool fr_green_has(CUgreenCtx green, CUcontext context);        /* what is done in it is done in this context; false: not known, or ended */
bool fr_green_device(CUcontext context, CUdevice *device);     /* is it the context of a green one that lives, and on which device? */
bool fr_green_take(CUgreenCtx green, struct fr_record *out);   /* removes it */
void fr_greens_follow(CUdevice device, CUcontext doomed, bool gone);

#endif
