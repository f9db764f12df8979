/* Tiles of sparse arrays: the memory behind a tile is charged as long as the driver holds it for the tile. */
#include "container.h"

CUresult cuMemMapArrayAsync(CUarrayMapInfo *, unsigned, CUstream);

typedef CUmemGenericAllocationHandle handle;

/* The driver holds this many bytes for the container, and the container's ledger agrees, both without the context. */
#define HOLDS(mib)                                       \
    do {                                                 \
        EXPECT_EQ(held(CARD_A), CONTEXT + (mib) * MIB);  \
        EXPECT_EQ(used(), CONTEXT + (mib) * MIB);        \
    } while (0)

static CUarray sparse_array(void)
{
    CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 4096, .Height = 4096, .Format = 0x20, .NumChannels = 1, .Flags = 0x40};
    CUarray a = NULL;
    EXPECT_EQ(cuArray3DCreate_v2(&a, &d), CUDA_SUCCESS);
    return a;
}

static handle memory(size_t mib)
{
    CUmemAllocationProp on_card = {.type = 1, .location = {1, 0}};
    handle h = 0;
    EXPECT_EQ(cuMemCreate(&h, mib * MIB, &on_card, 0), CUDA_SUCCESS);
    return h;
}

/* h 0: unmaps. */
static CUarrayMapInfo tile(CUarray a, unsigned x, unsigned width, handle h)
{
    CUarrayMapInfo i = {.resource.array = a, .memOperationType = h ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP, .memHandle.memHandle = h, .deviceBitMask = 1};
    i.subresource.sparseLevel.offsetX = x;
    i.subresource.sparseLevel.extentWidth = width;
    i.subresource.sparseLevel.extentHeight = 128;
    i.subresource.sparseLevel.extentDepth = 1;
    return i;
}

static void change(CUarray a, unsigned x, unsigned width, handle h)
{
    CUarrayMapInfo i = tile(a, x, width, h);
    EXPECT_EQ(cuMemMapArrayAsync(&i, 1, NULL), CUDA_SUCCESS);
    if (h) EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
}

static void a_tile_of_which_a_part_is_mapped_again_keeps_its_memory(void)
{
    context_on(0);
    CUarray a = sparse_array();
    change(a, 128, 256, memory(64));
    change(a, 128, 128, memory(2));
    HOLDS(66);
    change(a, 256, 256, memory(4)); /* the other half, and more */
    HOLDS(70);
    change(a, 0, 1024, memory(8));
    HOLDS(8);
    EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
    HOLDS(0);
}

static void a_tile_of_which_a_part_is_unmapped_keeps_its_memory(void)
{
    context_on(0);
    CUarray a = sparse_array();
    change(a, 0, 256, memory(64));
    change(a, 0, 128, 0);
    HOLDS(64);
    change(a, 0, 256, 0);
    HOLDS(0);
    change(a, 0, 128, memory(4));
    change(a, 128, 128, memory(8));
    change(a, 0, 256, 0);
    HOLDS(0);
}

static void tiles_stay_when_another_context_ends_in_which_they_were_mapped(void)
{
    CUcontext other, own = context_on(0);
    CUarray a = sparse_array();
    EXPECT_EQ(cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
    change(a, 0, 256, memory(64));
    EXPECT_EQ(cuCtxDestroy_v2(other), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(own), CUDA_SUCCESS);
    HOLDS(64);
    EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
    HOLDS(0);
}

static void tiles_end_with_the_context_of_their_array(void)
{
    CUcontext other, own = context_on(0);
    EXPECT_EQ(cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
    CUarray a = sparse_array();
    EXPECT_EQ(cuCtxSetCurrent(own), CUDA_SUCCESS);
    change(a, 0, 256, memory(64));
    EXPECT_EQ(cuCtxDestroy_v2(other), CUDA_SUCCESS);
    HOLDS(0);
}

static void a_list_with_a_wrong_entry_changes_nothing(void)
{
    context_on(0);
    CUarray a = sparse_array();
    handle h = memory(32);
    change(a, 0, 128, memory(4));
    CUarrayMapInfo list[3] = {tile(a, 0, 128, h), tile(a, 128, 128, h), tile(a, 256, 128, 12345)};
    EXPECT(cuMemMapArrayAsync(list, 3, NULL) != CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    HOLDS(4);
    change(a, 0, 128, 0);
    HOLDS(0);
}

static void the_last_entry_for_a_region_of_a_list_counts(void)
{
    context_on(0);
    CUarray a = sparse_array();
    handle h = memory(32), other = memory(8);
    CUarrayMapInfo list[3] = {tile(a, 0, 128, h), tile(a, 0, 256, other), tile(a, 256, 128, 0)};
    EXPECT_EQ(cuMemMapArrayAsync(list, 3, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(other), CUDA_SUCCESS);
    HOLDS(8);
    EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
    HOLDS(0);
}

/* `type` and `size` of the unmapping; the driver may refuse it. */
static void unmap_tail(int type, unsigned long long size)
{
    context_on(0);
    CUarray a = sparse_array();
    handle h = memory(64);
    CUarrayMapInfo i = {.resource.array = a, .subresourceType = 1, .memOperationType = CU_MEM_OPERATION_TYPE_MAP, .memHandle.memHandle = h, .deviceBitMask = 1};
    i.subresource.miptail.offset = 1;
    i.subresource.miptail.size = 10;
    EXPECT_EQ(cuMemMapArrayAsync(&i, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    HOLDS(64);
    i.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
    i.subresourceType = type;
    i.subresource.miptail.size = size;
    cuMemMapArrayAsync(&i, 1, NULL);
    NEVER_BELOW;
    EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
    HOLDS(0);
}

static void an_unmapping_of_a_kind_that_does_not_exist_gives_nothing_back(void) { unmap_tail(2, 10); }
static void an_unmapping_beyond_the_last_byte_gives_nothing_back(void) { unmap_tail(1, ~0ull); }

#define MANY 200

static void a_long_list_is_mapped_whole(void)
{
    CUarrayMapInfo list[MANY];
    context_on(0);
    CUarray a = sparse_array();
    handle h = memory(32);
    for (unsigned i = 0; i < MANY; i++) {
        list[i] = tile(a, i % 32 * 128, 128, h);
        list[i].subresource.sparseLevel.offsetY = i / 32 * 128;
    }
    EXPECT_EQ(cuMemMapArrayAsync(list, MANY, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    for (unsigned i = 0; i < MANY; i++) list[i].memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
    EXPECT_EQ(cuMemMapArrayAsync(list, MANY - 1, NULL), CUDA_SUCCESS);
    HOLDS(32);
    EXPECT_EQ(cuMemMapArrayAsync(&list[MANY - 1], 1, NULL), CUDA_SUCCESS);
    HOLDS(0);
}

int main(void)
{
    static const char quota[] = CARD_A "=1GiB,context=256MiB";
    IN(quota, a_tile_of_which_a_part_is_mapped_again_keeps_its_memory);
    IN(quota, a_tile_of_which_a_part_is_unmapped_keeps_its_memory);
    IN(quota, tiles_stay_when_another_context_ends_in_which_they_were_mapped);
    IN(quota, tiles_end_with_the_context_of_their_array);
    IN(quota, a_list_with_a_wrong_entry_changes_nothing);
    IN(quota, the_last_entry_for_a_region_of_a_list_counts);
    IN(quota, an_unmapping_of_a_kind_that_does_not_exist_gives_nothing_back);
    IN(quota, an_unmapping_beyond_the_last_byte_gives_nothing_back);
    IN(quota, a_long_list_is_mapped_whole);
    FINISH;
}
