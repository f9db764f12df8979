/* Records of green contexts (see green_records.c). */
#ifndef FRACTILE_MEMORY_GREEN_RECORDS_H
#define FRACTILE_MEMORY_GREEN_RECORDS_H

#include "ledger/records.h"

#include "cuda_abi.h"

#include <stdbool.h>

bool fr_green_has(CUgreenCtx green, CUcontext context);        /* sets the context in which its work is done; false: not known, or ended */
bool fr_green_device(CUcontext context, CUdevice *device);     /* is it the context of a living green context, and on which device? */
bool fr_green_take(CUgreenCtx green, struct fr_record *out);   /* removes its record */
void fr_greens_follow(CUdevice device, CUcontext doomed, bool gone);

#endif
