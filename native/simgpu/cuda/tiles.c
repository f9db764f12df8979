/* Memory behind sparse and deferred arrays: tiles that are mapped to allocation handles. Like a mapped address, a mapped tile keeps its memory
 * alive. Mappings take effect in the order of the calls. */
#include "array.h"
#include "vmm.h"

#include <stdlib.h>
#include <string.h>

struct tile {
    struct sim_array *array;
    CUarrayMapInfo place; /* subresource only */
    struct sim_handle *memory;
    struct tile *next;
};

static struct tile *tiles;

static CUarrayMapInfo place_of(const CUarrayMapInfo *i)
{
    CUarrayMapInfo p;
    memset(&p, 0, sizeof p);
    p.subresourceType = i->subresourceType;
    if (i->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL) p.subresource.sparseLevel = i->subresource.sparseLevel;
    else p.subresource.miptail.layer = i->subresource.miptail.layer, p.subresource.miptail.offset = i->subresource.miptail.offset;
    return p;
}

static bool remove_tile(struct sim_array *a, const CUarrayMapInfo *place)
{
    for (struct tile **p = &tiles; *p; p = &(*p)->next) {
        struct tile *t = *p;
        if (t->array != a || (place && memcmp(&t->place, place, sizeof *place) != 0)) continue;
        *p = t->next;
        t->memory->maps--;
        sim_handle_drop_if_unused(t->memory);
        free(t);
        return true;
    }
    return false;
}

void sim_tiles_forget(struct sim_array *a)
{
    while (remove_tile(a, NULL)) {}
}

static bool valid(const CUarrayMapInfo *i)
{
    struct sim_array *a = i->resource.array;
    bool map = i->memOperationType == CU_MEM_OPERATION_TYPE_MAP;
    bool known = i->resourceType == CU_RESOURCE_TYPE_ARRAY || i->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    if (!known || !SIM_VALID(a, ARRAY) || a->level || a->charge || i->flags || i->memHandleType) return false;
    if ((i->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) != (a->level_count > 0)) return false;
    return map ? sim_handle_find(i->memHandle.memHandle) != NULL : i->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP;
}

static bool apply(const CUarrayMapInfo *i)
{
    CUarrayMapInfo place = place_of(i);
    struct sim_handle *memory = i->memOperationType == CU_MEM_OPERATION_TYPE_MAP ? sim_handle_find(i->memHandle.memHandle) : NULL;
    struct tile *t = memory ? malloc(sizeof *t) : NULL;
    if (memory && !t) return false;
    if (memory) memory->maps++; /* first, so that mapping the same memory again does not free it */
    remove_tile(i->resource.array, &place);
    if (!memory) return true;
    *t = (struct tile){i->resource.array, place, memory, tiles};
    tiles = t;
    return true;
}

static CUresult map_tiles(const CUarrayMapInfo *list, unsigned count, CUstream stream)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    bool ok = list && count && sim_stream_of(c, stream);
    for (unsigned i = 0; ok && i < count; i++) ok = valid(&list[i]);
    if (!ok) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; ok && i < count; i++) ok = apply(&list[i]);
    return sim_leave(ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, CUstream stream) { return map_tiles(list, count, stream); }
API CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned count, CUstream stream) { return map_tiles(list, count, SIM_PER_THREAD(stream)); }
