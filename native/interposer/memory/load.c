/* A load into the current context. Apart from loaded.c, which contexts that are made call too: to ask where a call works may make
 * a context known (place.c). */
#include "memory/load.h"

#include "ledger/ledger.h"
#include "memory/devices.h"
#include "memory/loaded.h"
#include "memory/place.h"

#include "cuda_abi.h"

#include <stdint.h>

CUresult fr_load_begin(struct fr_load *l, uint64_t handle, enum fr_load_what what, CUfunction function)
{
    struct fr_place at;
    *l = (struct fr_load){.op.card = FR_NO_CARD};
    if (!fr_module_known(handle) || !fr_place_here(&at)) return CUDA_SUCCESS;
    CUresult r = fr_load_begin_at(l, &at, handle, what, function);
    l->here = true;
    return r;
}
