/* A load into the current context. It is separate from loaded.c, which the code that makes contexts also calls: finding out
 * where a call works may itself make a context known (place.c).
 *
 * A green context is the primary one with fewer SMs: everything that does not depend on those is done "identically to how it
 * would perform with a primary context" (cuCtxFromGreenCtx). So what is loaded in a green context is loaded in the primary one:
 * once for both, and until the library is unloaded. */
#include "memory/load.h"

#include "ledger/ledger.h"
#include "memory/devices.h"
#include "memory/green_records.h"
#include "memory/loaded.h"
#include "memory/place.h"
#include "memory/primary.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool fr_load_place(struct fr_place *at, bool *green)
{
    CUdevice device;
    *green = false;
    if (!fr_place_here(at)) return false;
    CUcontext primary = fr_green_device(at->context, &device) ? fr_primary_context(device) : NULL;
    *green = primary != NULL;
    if (primary) at->context = primary;
    return true;
}

CUresult fr_load_begin(struct fr_load *l, uint64_t handle, enum fr_load_what what, CUfunction function)
{
    struct fr_place at;
    *l = (struct fr_load){.op.card = FR_NO_CARD};
    bool green;
    if (!fr_module_known(handle) || !fr_load_place(&at, &green)) return CUDA_SUCCESS;
    CUresult r = fr_load_begin_at(l, &at, handle, what, function);
    l->here = true;
    l->green = green;
    return r;
}
