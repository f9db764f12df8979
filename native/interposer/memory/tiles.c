/* Tiles of sparse and deferred arrays. A tile that is mapped to memory of cuMemCreate keeps it alive as a mapping does
 * (holding.c), with the array as owner, until another mapping replaces it, an unmapping empties it, or the array is destroyed. */
#include "memory/tiles.h"

#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/own_account.h"
#include "ledger/records.h"
#include "memory/api_memory.h"
#include "memory/api_vmm.h"
#include "memory/holding.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 31;
}

/* A number for the place within the array; the sizes are not part of it. */
static uint64_t place_of(const CUarrayMapInfo *i)
{
    if (i->subresourceType != CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL)
        return mix(mix(1, i->subresource.miptail.layer), i->subresource.miptail.offset);
    uint64_t h = mix(mix(2, i->subresource.sparseLevel.level), i->subresource.sparseLevel.layer);
    return mix(mix(mix(h, i->subresource.sparseLevel.offsetX), i->subresource.sparseLevel.offsetY), i->subresource.sparseLevel.offsetZ);
}

static uint64_t array_of(const CUarrayMapInfo *i) { return (uint64_t)(uintptr_t)i->resource.array; }

/* The tiles go with the array's context too. The array itself has no charge, so there is no other record of it. */
static void note(const CUarrayMapInfo *i)
{
    CUcontext context;
    struct fr_record r = {.class = FR_TILED, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = array_of(i)};
    if (REAL(cuCtxGetCurrent)(&context)) return;
    r.context = context;
    fr_record_put(r);
}

static CUresult map(CUresult (*call)(CUarrayMapInfo *, unsigned, CUstream), CUarrayMapInfo *i, CUstream stream)
{
    struct fr_release g;
    fr_numbers_enter();
    struct fr_memory *m = i->memOperationType == CU_MEM_OPERATION_TYPE_MAP ? fr_memory_pin(i->memHandle.memHandle) : NULL;
    fr_release_begin(&g);
    fr_mappings_remove(&g, array_of(i), 0, place_of(i), 0);
    CUresult r = call(i, 1, stream);
    if (!r && m && !fr_mapping_add((struct fr_mapping){.owner = array_of(i), .place = place_of(i), .memory = m})) fr_escape();
    if (!r && m) note(i);
    fr_mappings_removed(&g, array_of(i), 0, place_of(i), 0, r == CUDA_SUCCESS);
    fr_numbers_leave();
    fr_release_end(&g);
    fr_memory_unpin(m);
    return r;
}

/* One by one, so that it is known what was done before an error. */
static CUresult map_all(CUresult (*call)(CUarrayMapInfo *, unsigned, CUstream), CUarrayMapInfo *list, unsigned count, CUstream stream)
{
    if (!list || count == 0) return call(list, count, stream);
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && !r; i++) {
        CUarrayMapInfo own = list[i]; /* another thread may change the list */
        r = map(call, &own, stream);
    }
    return r;
}

HOOK CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, CUstream stream)
{
    return map_all(REAL(cuMemMapArrayAsync), list, count, stream);
}

HOOK CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned count, CUstream stream)
{
    return map_all(REAL(cuMemMapArrayAsync_ptsz), list, count, stream);
}

void fr_tiles_forget(uint64_t array)
{
    struct fr_release g;
    fr_release_begin(&g);
    fr_mappings_remove(&g, array, 0, 0, UINT64_MAX);
    fr_mappings_removed(&g, array, 0, 0, UINT64_MAX, true);
    fr_release_end(&g);
}

void fr_tiles_begin(struct fr_release *g, const void *array)
{
    fr_release_begin(g);
    fr_mappings_remove(g, (uint64_t)(uintptr_t)array, 0, 0, UINT64_MAX);
}

void fr_tiles_end(struct fr_release *g, const void *array, bool destroyed)
{
    struct fr_record r;
    if (destroyed) fr_record_take(FR_TILED, (uint64_t)(uintptr_t)array, &r);
    fr_mappings_removed(g, (uint64_t)(uintptr_t)array, 0, 0, UINT64_MAX, destroyed);
    fr_release_end(g);
}
