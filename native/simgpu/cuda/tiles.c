/* Memory behind sparse and deferred arrays: tiles that are mapped to allocation handles. Like a mapped address, a mapped tile keeps its memory
 * alive. Mappings take effect in the order of the calls. */
#include "array.h"
#include "vmm.h"

#include <stdlib.h>
#include <string.h>

struct tile {
    struct sim_array *array;
    CUarrayMapInfo place;
    struct sim_handle *memory;
    struct tile *next;
};

static struct tile *tiles;

static bool lies_in(uint64_t at, uint64_t size, uint64_t from, uint64_t room)
{
    return at >= from && at - from <= room && size <= room - (at - from);
}

/* A tile of which a part stays mapped keeps its memory. */
static bool lies_within(const CUarrayMapInfo *tile, const CUarrayMapInfo *region)
{
    if (tile->subresourceType != region->subresourceType) return false;
    if (tile->subresourceType != CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL)
        return tile->subresource.miptail.layer == region->subresource.miptail.layer &&
               lies_in(tile->subresource.miptail.offset, tile->subresource.miptail.size, region->subresource.miptail.offset, region->subresource.miptail.size);
    bool same = tile->subresource.sparseLevel.level == region->subresource.sparseLevel.level && tile->subresource.sparseLevel.layer == region->subresource.sparseLevel.layer;
    return same &&
           lies_in(tile->subresource.sparseLevel.offsetX, tile->subresource.sparseLevel.extentWidth, region->subresource.sparseLevel.offsetX, region->subresource.sparseLevel.extentWidth) &&
           lies_in(tile->subresource.sparseLevel.offsetY, tile->subresource.sparseLevel.extentHeight, region->subresource.sparseLevel.offsetY, region->subresource.sparseLevel.extentHeight) &&
           lies_in(tile->subresource.sparseLevel.offsetZ, tile->subresource.sparseLevel.extentDepth, region->subresource.sparseLevel.offsetZ, region->subresource.sparseLevel.extentDepth);
}

/* Region NULL: all of the array's tiles. */
static void remove_tiles(const struct sim_array *a, const CUarrayMapInfo *region)
{
    for (struct tile **p = &tiles; *p;) {
        struct tile *t = *p;
        if (t->array != a || (region && !lies_within(&t->place, region))) {
            p = &t->next;
            continue;
        }
        *p = t->next;
        t->memory->maps--;
        sim_handle_drop_if_unused(t->memory);
        free(t);
    }
}

void sim_tiles_forget(struct sim_array *a) { remove_tiles(a, NULL); }

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
    struct sim_handle *memory = i->memOperationType == CU_MEM_OPERATION_TYPE_MAP ? sim_handle_find(i->memHandle.memHandle) : NULL;
    struct tile *t = memory ? malloc(sizeof *t) : NULL;
    if (memory && !t) return false;
    if (memory) memory->maps++; /* first, so that mapping the same memory again does not free it */
    remove_tiles(i->resource.array, i);
    if (!memory) return true;
    *t = (struct tile){i->resource.array, *i, memory, tiles};
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
