/* Arrays and mipmapped arrays: the bytes of all levels and layers are charged. */
#include "container.h"

static CUresult array_of(CUarray *a, size_t width, size_t height, size_t depth, int format, unsigned channels, unsigned flags)
{
    CUDA_ARRAY3D_DESCRIPTOR d = {width, height, depth, format, channels, flags};
    return cuArray3DCreate_v2(a, &d);
}

static void an_array_costs_bytes_and_not_bits(void)
{
    CUarray a;
    CUDA_ARRAY_DESCRIPTOR d = {1024, 1024, 0x20, 4}; /* 16 MiB; 128 MiB if bits were taken for bytes */
    context_on(0);
    EXPECT_EQ(cuArrayCreate_v2(&a, &d), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 16 * MIB);
    EXPECT_EQ(held(CARD_A), CONTEXT + 16 * MIB);
    EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void every_format_costs_what_the_card_says(void)
{
    static const int formats[] = {0x01, 0x02, 0x03, 0x08, 0x09, 0x0a, 0x10, 0x20};
    CUarray a;
    context_on(0);
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (unsigned channels = 1; channels <= 4; channels *= 2) {
            EXPECT_EQ(array_of(&a, 1000, 700, 3, formats[f], channels, 0), CUDA_SUCCESS);
            EXPECT_EQ(used(), held(CARD_A));
            EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
            EXPECT_EQ(used(), CONTEXT);
        }
}

static void every_level_of_a_mipmapped_array_counts(void)
{
    CUmipmappedArray m;
    CUDA_ARRAY3D_DESCRIPTOR d = {1024, 1024, 0, 0x20, 4, 0};
    context_on(0);
    EXPECT_EQ(cuMipmappedArrayCreate(&m, &d, 11), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 22 * MIB);
    EXPECT_EQ(held(CARD_A), CONTEXT + 22 * MIB);
    EXPECT_EQ(cuMipmappedArrayDestroy(m), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuMipmappedArrayCreate(&m, &d, 100), CUDA_SUCCESS); /* more levels than there are */
    EXPECT_EQ(used(), held(CARD_A));
    EXPECT_EQ(cuMipmappedArrayDestroy(m), CUDA_SUCCESS);
    d.Depth = 16;
    EXPECT_EQ(cuMipmappedArrayCreate(&m, &d, 5), CUDA_ERROR_OUT_OF_MEMORY); /* 256 MiB and more */
    EXPECT_EQ(peak(CARD_A), CONTEXT + 22 * MIB);
}

static void layers_and_faces_count(void)
{
    CUarray a;
    context_on(0);
    EXPECT_EQ(array_of(&a, 1024, 1024, 6, 0x20, 1, 0x01 | 0x04), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 24 * MIB);
    EXPECT_EQ(held(CARD_A), CONTEXT + 24 * MIB);
    EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void sparse_and_deferred_arrays_hold_nothing_themselves(void)
{
    CUarray a, b;
    context_on(0);
    EXPECT_EQ(array_of(&a, 16384, 16384, 0, 0x20, 4, 0x80), CUDA_SUCCESS); /* 4 GiB, mapped later */
    EXPECT_EQ(array_of(&b, 16384, 16384, 0, 0x20, 4, 0x40), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
    EXPECT_EQ(cuArrayDestroy(b), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void an_array_beyond_the_quota_is_out_of_memory_and_one_that_just_fits_is_not(void)
{
    CUarray a;
    context_on(0);
    EXPECT_EQ(array_of(&a, 4096, 4097, 0, 0x20, 4, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(array_of(&a, 131072, 131072, 16384, 0x20, 4, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(array_of(&a, 4096, 4096, 0, 0x20, 4, 0), CUDA_SUCCESS); /* 256 MiB */
    EXPECT_EQ(used(), 512 * MIB);
    EXPECT_EQ(peak(CARD_A), 512 * MIB);
}

static void arrays_go_with_their_context(void)
{
    CUarray a;
    CUcontext other, c = context_on(0);
    EXPECT_EQ(array_of(&a, 1024, 1024, 0, 0x20, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxDestroy_v2(c), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
    EXPECT_EQ(cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

int main(void)
{
    static const char quota[] = CARD_A "=512MiB,context=256MiB";
    IN(quota, an_array_costs_bytes_and_not_bits);
    IN(quota, every_format_costs_what_the_card_says);
    IN(quota, every_level_of_a_mipmapped_array_counts);
    IN(quota, layers_and_faces_count);
    IN(quota, sparse_and_deferred_arrays_hold_nothing_themselves);
    IN(quota, an_array_beyond_the_quota_is_out_of_memory_and_one_that_just_fits_is_not);
    IN(quota, arrays_go_with_their_context);
    FINISH;
}
