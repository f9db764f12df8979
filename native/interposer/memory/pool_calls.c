/* The hooks of pools: those that come into being or change their size or go to other processes. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "memory/api_pool.h"
#include "memory/devices.h"
#include "memory/kept_blocks.h"
#include "memory/pool.h"
#include "memory/pool_share.h"
#include "memory/pool_shrink.h"
#include "memory/pool_waits.h"

#include "cuda_abi.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A card that the limits do not name has no quota; the host's memory needs none. */
static int card_of(const CUmemLocation *l)
{
    return l->type == CU_MEM_LOCATION_DEVICE ? fr_card_of(l->id) : FR_NO_CARD;
}

static struct fr_pool *adopt(CUmemoryPool handle, const CUmemLocation *l)
{
    return fr_pool_adopt(handle, l->type == CU_MEM_LOCATION_DEVICE ? l->id : -1, card_of(l));
}

HOOK CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
    CUresult r = REAL(cuMemPoolCreate)(out, props);
    struct fr_pool *p = r ? NULL : adopt(*out, &props->location);
    if (r || !p) return r;
    p->made = true;
    p->exported = props->handleTypes != 0;
    p->most = fr_pool_can_be_capped() ? props->maxSize : 0;
    fr_pool_done(p);
    return r;
}

/* ---- pools that the driver made ---- */

static CUresult seen(CUresult r, const CUmemoryPool *out, const CUmemLocation *l)
{
    struct fr_pool *p = r || !l ? NULL : adopt(*out, l);
    if (p) fr_pool_done(p);
    return r;
}

#define ON(device) (&(CUmemLocation){CU_MEM_LOCATION_DEVICE, device})
HOOK CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice d) { return seen(REAL(cuDeviceGetDefaultMemPool)(out, d), out, ON(d)); }
HOOK CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice d) { return seen(REAL(cuDeviceGetMemPool)(out, d), out, ON(d)); }
HOOK CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *l, int type) { return seen(REAL(cuMemGetDefaultMemPool)(out, l, type), out, l); }
HOOK CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *l, int type) { return seen(REAL(cuMemGetMemPool)(out, l, type), out, l); }

/* Choosing a pool, who may use it and what it keeps charge nothing: the next synchronisation shows what it did. */
HOOK CUresult cuDeviceSetMemPool(CUdevice d, CUmemoryPool pool) { return REAL(cuDeviceSetMemPool)(d, pool); }
HOOK CUresult cuMemSetMemPool(CUmemLocation *l, int type, CUmemoryPool pool) { return REAL(cuMemSetMemPool)(l, type, pool); }

HOOK CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *d, size_t n)
{
    CUresult r = REAL(cuMemPoolSetAccess)(pool, d, n);
    struct fr_pool *p = r ? NULL : fr_pool_use(pool);
    for (size_t i = 0; p && i < n; i++) p->peers |= d[i].location.id != p->device;
    if (p) fr_pool_done(p);
    return r;
}

/* ---- smaller, or gone ---- */

HOOK CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int what, void *value)
{
    struct fr_shrinking s;
    if (what != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) return REAL(cuMemPoolSetAttribute)(pool, what, value);
    fr_pools_shrinking(&s, FR_BRIEF);
    fr_pools_free_beside_waits();
    CUresult r = REAL(cuMemPoolSetAttribute)(pool, what, value);
    fr_pools_shrunk(&s);
    return r;
}

HOOK CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    struct fr_shrinking s;
    fr_kept_blocks_free();
    fr_pools_shrinking(&s, FR_BRIEF);
    CUresult r = REAL(cuMemPoolTrimTo)(pool, keep);
    fr_pools_shrunk(&s);
    return r;
}

/* The device's current pool again is the default one, as after a real destruction. */
static void leave_device(const struct fr_pool *p)
{
    CUmemoryPool current = NULL, other = NULL;
    if (p->device < 0 || REAL(cuDeviceGetMemPool)(&current, p->device) || current != p->handle) return;
    if (!REAL(cuDeviceGetDefaultMemPool)(&other, p->device)) REAL(cuDeviceSetMemPool)(p->device, other);
}

/* Emptied here, and really destroyed by whoever finds it empty: a destroyed pool could not be asked for its size. */
HOOK CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    uint64_t nothing = 0;
    fr_kept_blocks_free();
    struct fr_pool *p = fr_pool_use(pool);
    if (p && p->imported) return fr_pool_import_ends(p);
    if (!p || !p->made || p->doomed || p->card == FR_NO_CARD) {
        if (p) fr_pool_done(p);
        return p && p->doomed ? CUDA_ERROR_INVALID_VALUE : REAL(cuMemPoolDestroy)(pool);
    }
    leave_device(p);
    REAL(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &nothing);
    p->doomed = true;
    cuMemPoolTrimTo(pool, 0);
    fr_pool_done(p);
    return CUDA_SUCCESS;
}
