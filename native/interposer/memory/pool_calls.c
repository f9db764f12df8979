/* The hooks of pools: calls that make a pool, change its size or share it with other processes. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "memory/api_pool.h"
#include "memory/devices.h"
#include "memory/kept_blocks.h"
#include "memory/place.h"
#include "memory/pool.h"
#include "memory/pool_shrink.h"
#include "memory/pool_waits.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEVICES 64

struct where {
    CUdevice device;
    int card;
    bool plain; /* other memory of the device would serve as well */
};

static bool is_host(int type, const CUmemLocation *l)
{
    return type == CU_MEM_ALLOCATION_TYPE_PINNED && l->type >= CU_MEM_LOCATION_HOST && l->type <= CU_MEM_LOCATION_HOST_NUMA_CURRENT;
}

/* If there is no current device, it is the first card. */
static int card_here(CUdevice *device)
{
    int card = fr_card_here(device);
    if (*device >= 0) return card;
    for (*device = 0; *device < DEVICES; ++*device)
        if ((card = fr_card_of(*device)) != FR_NO_CARD) return card;
    *device = 0;
    return FR_NO_CARD;
}

/* Where the pool's memory is charged. Host memory needs no quota; a card that the limits do not name has none. Managed memory
 * that prefers no device is charged to the current one, as for cuMemAllocManaged. */
static struct where where_of(int type, const CUmemLocation *l)
{
    struct where w = {-1, FR_NO_CARD, type == CU_MEM_ALLOCATION_TYPE_PINNED && l->type == CU_MEM_LOCATION_DEVICE};
    if (fr_is_on_a_card(l)) w.card = fr_card_of(w.device = fr_device_of_location(l));
    else if (!is_host(type, l)) w.card = card_here(&w.device);
    return w;
}

HOOK CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *given)
{
    if (!out || !given) return REAL(cuMemPoolCreate)(out, given);
    CUmemPoolProps props = *given; /* the program may change it meanwhile */
    struct where w = where_of(props.allocType, &props.location);
    fr_pool_handles_enter();
    CUmemoryPool handle = NULL;
    CUresult r = REAL(cuMemPoolCreate)(&handle, &props);
    struct fr_pool *p = r ? NULL : fr_pool_adopt_new(handle, w.device, w.card);
    if (p) {
        p->made = true;
        p->exported = props.handleTypes != 0;
        p->peers = !w.plain;
        p->most = fr_pool_can_be_capped() ? props.maxSize : 0;
    } else if (!r) {
        REAL(cuMemPoolDestroy)(handle);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    fr_pool_handles_leave();
    if (!r) *out = handle;
    if (p) fr_pool_done(p);
    return r;
}

/* ---- pools that the driver made ---- */

static CUresult seen(CUresult r, CUmemoryPool *out, const CUmemoryPool *handle, struct where w)
{
    struct fr_pool *p = r ? NULL : fr_pool_adopt(*handle, w.device, w.card);
    if (p && !w.plain) p->peers = true;
    fr_pool_handles_leave();
    if (!p && !r) r = CUDA_ERROR_OUT_OF_MEMORY; /* its growth could not be counted */
    if (!r) *out = *handle;
    if (p) fr_pool_done(p);
    return r;
}

static struct where on(CUdevice d) { return (struct where){d, fr_card_of(d), true}; }

HOOK CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice d)
{
    CUmemoryPool handle = NULL;
    struct where w = on(d);
    fr_pool_handles_enter();
    return seen(REAL(cuDeviceGetDefaultMemPool)(out ? &handle : NULL, d), out, &handle, w);
}

HOOK CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice d)
{
    CUmemoryPool handle = NULL;
    struct where w = on(d);
    fr_pool_handles_enter();
    return seen(REAL(cuDeviceGetMemPool)(out ? &handle : NULL, d), out, &handle, w);
}

HOOK CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *given, int type)
{
    if (!given) return REAL(cuMemGetDefaultMemPool)(out, given, type);
    CUmemoryPool handle = NULL;
    CUmemLocation l = *given;
    struct where w = where_of(type, &l);
    fr_pool_handles_enter();
    return seen(REAL(cuMemGetDefaultMemPool)(out ? &handle : NULL, &l, type), out, &handle, w);
}

HOOK CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *given, int type)
{
    if (!given) return REAL(cuMemGetMemPool)(out, given, type);
    CUmemoryPool handle = NULL;
    CUmemLocation l = *given;
    struct where w = where_of(type, &l);
    fr_pool_handles_enter();
    return seen(REAL(cuMemGetMemPool)(out ? &handle : NULL, &l, type), out, &handle, w);
}

/* Choosing a pool, its users or what it keeps changes no charge: the next synchronisation shows the effect. */
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

/* ---- pools that shrink or end ---- */

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

/* Makes the default pool the device's current pool again, as a real destruction does. */
static void leave_device(const struct fr_pool *p)
{
    CUmemoryPool current = NULL, other = NULL;
    if (p->device < 0 || REAL(cuDeviceGetMemPool)(&current, p->device) || current != p->handle) return;
    if (!REAL(cuDeviceGetDefaultMemPool)(&other, p->device)) REAL(cuDeviceSetMemPool)(p->device, other);
}

/* For the driver's own pool, which it will not destroy, or one that was made without the library. */
static CUresult destroy_other(CUmemoryPool handle)
{
    fr_pool_handles_enter();
    struct fr_pool *p = fr_pool_use(handle);
    bool ours = p && (p->made || p->imported); /* made meanwhile, so it is not the pool that was meant */
    CUresult r = ours ? CUDA_ERROR_INVALID_VALUE : REAL(cuMemPoolDestroy)(handle);
    if (!r && p) fr_pool_gone(p);
    fr_pool_handles_leave();
    if (p) fr_pool_done(p);
    return r;
}

/* Only empties the pool here: the size of a destroyed pool could not be read. The thread that finds it empty destroys it. A
 * pool from another process goes with its last user; its open pointers stay valid. */
HOOK CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    uint64_t nothing = 0;
    fr_kept_blocks_free();
    struct fr_pool *p = fr_pool_use(pool);
    if (!p || p->doomed || !(p->made || p->imported)) {
        bool again = p && p->doomed;
        if (p) fr_pool_done(p);
        return again ? CUDA_ERROR_INVALID_VALUE : destroy_other(pool);
    }
    leave_device(p);
    if (p->card != FR_NO_CARD) REAL(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &nothing);
    p->doomed = true;
    if (p->card != FR_NO_CARD) cuMemPoolTrimTo(pool, 0);
    fr_pool_done(p);
    return CUDA_SUCCESS;
}
