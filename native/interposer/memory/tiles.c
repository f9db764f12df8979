/* Tiles of sparse and deferred arrays. A tile that is mapped to memory of cuMemCreate keeps it alive as a mapping does
 * (holding.c), with the array as owner, until a mapping or an unmapping covers it entirely, or the array ends. A region that covers
 * only a part of it leaves the rest mapped, and with it the memory. */
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
#include <string.h>

#define AT_ONCE 64 /* entries of a list that the driver gets in one call */

struct batch {
    CUarrayMapInfo list[AT_ONCE];
    struct fr_memory *memory[AT_ONCE];
    unsigned count;
    struct fr_release ending, undo;
};

static struct fr_box box_of(const CUarrayMapInfo *i)
{
    if (i->subresourceType != CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL)
        return (struct fr_box){.kind = (uint32_t)i->subresourceType, .layer = i->subresource.miptail.layer, .from = {i->subresource.miptail.offset}, .size = {i->subresource.miptail.size}};
    return (struct fr_box){.level = i->subresource.sparseLevel.level, .layer = i->subresource.sparseLevel.layer,
                           .from = {i->subresource.sparseLevel.offsetX, i->subresource.sparseLevel.offsetY, i->subresource.sparseLevel.offsetZ},
                           .size = {i->subresource.sparseLevel.extentWidth, i->subresource.sparseLevel.extentHeight, i->subresource.sparseLevel.extentDepth}};
}

static uint64_t array_of(const CUarrayMapInfo *i) { return (uint64_t)(uintptr_t)i->resource.array; }

/* A later entry of the list replaces it. */
static bool is_replaced(const struct batch *b, unsigned at)
{
    struct fr_box box = box_of(&b->list[at]);
    for (unsigned i = at + 1; i < b->count; i++) {
        struct fr_box later = box_of(&b->list[i]);
        if (array_of(&b->list[i]) == array_of(&b->list[at]) && fr_box_covers(&later, &box)) return true;
    }
    return false;
}

static bool prepare(struct batch *b)
{
    bool ok = true;
    fr_release_begin(&b->ending);
    fr_release_begin(&b->undo);
    for (unsigned i = 0; i < b->count; i++) {
        struct fr_box box = box_of(&b->list[i]);
        b->memory[i] = b->list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP ? fr_memory_pin(b->list[i].memHandle.memHandle) : NULL;
        fr_box_remove(&b->ending, array_of(&b->list[i]), &box);
    }
    for (unsigned i = 0; i < b->count && ok; i++) {
        struct fr_box box = box_of(&b->list[i]);
        if (b->memory[i] && !is_replaced(b, i)) ok = fr_box_add(&b->undo, array_of(&b->list[i]), &box, b->memory[i]);
    }
    return ok;
}

static void settle(struct batch *b, bool done)
{
    for (unsigned i = 0; i < b->count; i++) {
        struct fr_box box = box_of(&b->list[i]);
        fr_box_removed(&b->ending, array_of(&b->list[i]), &box, done);
        fr_box_removed(&b->undo, array_of(&b->list[i]), &box, !done);
    }
}

static CUresult map(CUresult (*call)(CUarrayMapInfo *, unsigned, CUstream), struct batch *b, CUstream stream)
{
    fr_numbers_enter();
    CUresult r = prepare(b) ? call(b->list, b->count, stream) : CUDA_ERROR_OUT_OF_MEMORY;
    settle(b, r == CUDA_SUCCESS);
    fr_numbers_leave();
    fr_release_end(&b->ending);
    fr_release_end(&b->undo);
    for (unsigned i = 0; i < b->count; i++) fr_memory_unpin(b->memory[i]);
    return r;
}

/* The driver gets a copy, since another thread may change the list. It refuses a list of which an entry is wrong before it maps
 * anything, so it gets as much of the list at once as there is room for. */
static CUresult map_all(CUresult (*call)(CUarrayMapInfo *, unsigned, CUstream), CUarrayMapInfo *list, unsigned count, CUstream stream)
{
    struct batch b;
    if (!list || count == 0) return call(list, count, stream);
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && !r; i += b.count) {
        b.count = count - i < AT_ONCE ? count - i : AT_ONCE;
        memcpy(b.list, &list[i], b.count * sizeof *list);
        r = map(call, &b, stream);
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

/* The tiles end with the array's context. The array itself has no charge, so there is no other record of it. Without one (no
 * memory for the table, or an array that was made past the library) they stay charged until the array is destroyed. */
void fr_tiles_made(uint64_t array, CUcontext context)
{
    fr_record_put((struct fr_record){.class = FR_TILED, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = array, .context = context});
}

void fr_tiles_forget(uint64_t array)
{
    struct fr_release g;
    fr_release_begin(&g);
    fr_mappings_remove(&g, array, 0, 0, UINT64_MAX);
    fr_mappings_removed(&g, array, 0, 0, UINT64_MAX, true);
    fr_release_end(&g);
}

void fr_tiles_begin(struct fr_tiles_end *e, const void *array)
{
    e->array = (uint64_t)(uintptr_t)array;
    e->known = fr_record_take(FR_TILED, e->array, &e->record); /* first: the driver may give the handle to a new array */
    fr_release_begin(&e->release);
    fr_mappings_remove(&e->release, e->array, 0, 0, UINT64_MAX);
}

void fr_tiles_end(struct fr_tiles_end *e, bool destroyed)
{
    if (e->known && !destroyed) fr_record_put(e->record);
    fr_mappings_removed(&e->release, e->array, 0, 0, UINT64_MAX, destroyed);
    fr_release_end(&e->release);
}
