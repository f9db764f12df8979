/* Where a call works. Every call that allocates, loads or queries passes through here, so this is also where the library looks
 * for contexts that the driver made without it. */
#include "memory/place.h"

#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "memory/api_memory.h"
#include "memory/context_audit.h"
#include "memory/devices.h"
#include "memory/unseen.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

static CUresult find(CUdevice *device, int *card)
{
    *card = FR_NO_CARD;
    CUresult r = REAL(cuCtxGetDevice)(device);
    if (r) return *device = -1, r;
    if (unlikely(atomic_load_explicit(&fr_unseen_why, memory_order_relaxed))) fr_unseen_look(*device);
    *card = fr_card_of(*device);
    return CUDA_SUCCESS;
}

int fr_card_here(CUdevice *device)
{
    int card;
    find(device, &card);
    return card;
}

int fr_card_of_context(CUcontext context, CUdevice *device)
{
    CUcontext current = NULL, popped;
    if (!context || (!REAL(cuCtxGetCurrent)(&current) && current == context)) return fr_card_here(device);
    *device = -1;
    if (REAL(cuCtxPushCurrent_v2)(context)) return FR_NO_CARD;
    int card = fr_card_here(device);
    REAL(cuCtxPopCurrent_v2)(&popped);
    return card;
}

bool fr_place_here(struct fr_place *at)
{
    at->context = NULL;
    at->error = find(&at->device, &at->card);
    if (!at->error) at->error = REAL(cuCtxGetCurrent)(&at->context);
    return !at->error;
}
