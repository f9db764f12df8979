/* Modules and libraries: variables when they are loaded, code when it is first used, all back when they go. */
#include "container.h"

#include <elf.h>
#include <fcntl.h>
#include <pthread.h>

CUresult cuModuleLoad(CUmodule *, const char *);
CUresult cuModuleLoadDataEx(CUmodule *, const void *, unsigned, int *, void **);
CUresult cuLibraryLoadData(CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned);
CUresult cuLibraryUnload(CUlibrary);
CUresult cuLibraryGetKernel(CUkernel *, CUlibrary, const char *);
CUresult cuLibraryGetGlobal(CUdeviceptr *, size_t *, CUlibrary, const char *);
CUresult cuKernelGetFunction(CUfunction *, CUkernel);
CUresult cuFuncLoad(CUfunction);

static void what_is_charged_is_what_is_held(void)
{
    EXPECT_EQ(used(), held(CARD_A));
}

static void variables_count_at_the_load_and_code_at_the_first_launch(void)
{
    CUmodule m;
    CUfunction f;
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, spin_ptx), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB); /* a table of 3 MiB */
    what_is_charged_is_what_is_held();
    EXPECT_EQ(cuModuleGetFunction(&f, m, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB);
    EXPECT_EQ(spin_in(f, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    what_is_charged_is_what_is_held();
    EXPECT_EQ(spin_in(f, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&f, m, "quarter"), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(f, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    what_is_charged_is_what_is_held();
    EXPECT(cuModuleUnload(NULL) != CUDA_SUCCESS);
    EXPECT_EQ(cuModuleLoadData(&m, spin_ptx), CUDA_SUCCESS); /* handles come back: the new function is not taken for the old one */
    EXPECT_EQ(cuModuleGetFunction(&f, m, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(f, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    what_is_charged_is_what_is_held();
}

static void code_that_does_not_fit_makes_the_launch_out_of_memory(void)
{
    CUmodule m;
    CUfunction f;
    CUdeviceptr p;
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, spin_ptx), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&f, m, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&p, 252 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(f, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuFuncLoad(f), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(peak(CARD_A), 512 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(f, 1, NULL), CUDA_SUCCESS);
    what_is_charged_is_what_is_held();
}

static void a_module_that_does_not_fit_is_out_of_memory(void)
{
    CUmodule m;
    CUdeviceptr p;
    context_on(0);
    EXPECT_EQ(cuMemAlloc_v2(&p, 254 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleLoadData(&m, spin_ptx), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuModuleLoadDataEx(&m, spin_ptx, 0, NULL, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(peak(CARD_A), 510 * MIB);
}

static void eager_loading_counts_all_at_the_load(void)
{
    CUmodule m;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, spin_ptx), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    what_is_charged_is_what_is_held();
    EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void a_module_from_a_file_counts_as_one_from_memory(void)
{
    char path[600];
    CUmodule m;
    snprintf(path, sizeof path, "%s/module.ptx", container_directory);
    FILE *f = fopen(path, "w");
    fputs(spin_ptx, f);
    fclose(f);
    context_on(0);
    EXPECT_EQ(cuModuleLoad(&m, path), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB);
    what_is_charged_is_what_is_held();
    EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleLoad(&m, "/nonexistent"), CUDA_ERROR_FILE_NOT_FOUND);
    EXPECT_EQ(used(), CONTEXT);
}

static void machine_code_counts_by_the_size_of_its_file(void)
{
    static unsigned char image[5 * 1048576];
    Elf64_Ehdr h = {.e_ident = ELFMAG, .e_shoff = sizeof image - 3 * sizeof(Elf64_Shdr), .e_shnum = 3, .e_shentsize = sizeof(Elf64_Shdr)};
    CUmodule m;
    CUfunction f;
    memcpy(image, &h, sizeof h);
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, image), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&f, m, "any"), CUDA_SUCCESS);
    EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    what_is_charged_is_what_is_held();
    EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

/* Space that is only described: simgpu gives it nothing, and so the count of free memory says. */
static void what_a_large_image_only_announces_is_measured_away(void)
{
    static struct { Elf64_Ehdr h; Elf64_Shdr s[2]; } image = {
        {.e_ident = ELFMAG, .e_shoff = sizeof(Elf64_Ehdr), .e_shnum = 2, .e_shentsize = sizeof(Elf64_Shdr)},
        {{0}, {.sh_type = SHT_NOBITS, .sh_flags = SHF_ALLOC | SHF_WRITE, .sh_size = 100 * 1048576}}};
    CUmodule m;
    CUdeviceptr p;
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, &image), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuMemAlloc_v2(&p, 200 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleLoadData(&m, &image), CUDA_ERROR_OUT_OF_MEMORY); /* it might have been true */
}

static void a_large_fat_binary_is_charged_with_what_the_card_lost(void)
{
    static struct { uint32_t magic; uint16_t version, header; uint64_t size; char rest[64]; } fat = {0xba55ed50u, 1, 16, 100 * MIB, ""};
    CUmodule m;
    CUfunction f;
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, &fat), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuModuleGetFunction(&f, m, "any"), CUDA_SUCCESS);
    EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
    what_is_charged_is_what_is_held();
    EXPECT_EQ(used(), CONTEXT + 102 * MIB);
    EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void a_library_counts_where_it_is_used_and_goes_with_the_context_or_itself(void)
{
    CUlibrary l;
    CUkernel k;
    CUfunction f;
    CUdeviceptr p;
    size_t size;
    CUcontext b, a = context_on(0);
    EXPECT_EQ(cuLibraryLoadData(&l, spin_ptx, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuLibraryGetKernel(&k, l, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(cuLibraryGetGlobal(&p, &size, l, "table"), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB);
    what_is_charged_is_what_is_held();
    EXPECT_EQ(cuKernelGetFunction(&f, k), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    what_is_charged_is_what_is_held();
    EXPECT_EQ(spin_in((CUfunction)k, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    EXPECT_EQ(cuCtxDestroy_v2(a), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_A), 0);
    EXPECT_EQ(cuCtxCreate_v2(&b, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(spin_in((CUfunction)k, 1, NULL), CUDA_SUCCESS); /* loaded anew in the next context */
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    what_is_charged_is_what_is_held();
    EXPECT_EQ(cuLibraryUnload(l), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    what_is_charged_is_what_is_held();
}

static void modules_go_with_their_context(void)
{
    CUmodule m;
    CUfunction f;
    CUcontext b, a = context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, spin_ptx), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&f, m, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(f, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxDestroy_v2(a), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&b, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    what_is_charged_is_what_is_held();
    for (int i = 0; i < 20; i++) { /* handles of functions come back */
        EXPECT_EQ(cuModuleLoadData(&m, spin_ptx), CUDA_SUCCESS);
        EXPECT_EQ(cuModuleGetFunction(&f, m, "spin"), CUDA_SUCCESS);
        EXPECT_EQ(spin_in(f, 1, NULL), CUDA_SUCCESS);
        EXPECT_EQ(used(), CONTEXT + 6 * MIB);
        what_is_charged_is_what_is_held();
        EXPECT_EQ(cuCtxDestroy_v2(b), CUDA_SUCCESS);
        EXPECT_EQ(cuCtxCreate_v2(&b, 0, 0), CUDA_SUCCESS);
    }
}

static CUfunction shared_function;
static CUcontext shared_context;

static void *launch_it(void *result)
{
    EXPECT_EQ(cuCtxSetCurrent(shared_context), CUDA_SUCCESS);
    *(CUresult *)result = spin_in(shared_function, 1, NULL);
    return NULL;
}

static void threads_that_use_a_function_first_at_once_are_charged_once(void)
{
    CUmodule m;
    shared_context = context_on(0);
    for (int round = 0; round < 20; round++) {
        pthread_t threads[8];
        CUresult results[8];
        EXPECT_EQ(cuModuleLoadData(&m, spin_ptx), CUDA_SUCCESS);
        EXPECT_EQ(cuModuleGetFunction(&shared_function, m, "spin"), CUDA_SUCCESS);
        for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, launch_it, &results[i]);
        for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < 8; i++) EXPECT_EQ(results[i], CUDA_SUCCESS);
        EXPECT_EQ(used(), CONTEXT + 6 * MIB);
        EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
        EXPECT_EQ(used(), CONTEXT);
    }
    what_is_charged_is_what_is_held();
}

static void a_text_with_every_kind_of_variable_is_bounded_rightly(void)
{
    static const char text[] = ".version 7.0 // a } in a remark\n.target sm_80\n/* .global .b8 no[99999999]; */\n"
                               ".visible .global .align 16 .b8 one[2097152];\n.global .u64 two;\n.extern .global .f32 three[0x10];\n"
                               ".global .align 4 .u32 four[2] = {1, 2};\n.global .f64 five[100][1000];\n.const .b8 six[100000];\n"
                               ".visible .entry k() { .reg .b32 x; ret; }\n";
    CUmodule m;
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, text), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB);
    what_is_charged_is_what_is_held();
}

static void wrong_images_get_the_drivers_answers_and_cost_nothing(void)
{
    CUmodule m;
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuModuleLoadData(NULL, spin_ptx), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuModuleLoadData(&m, "no text that is PTX"), CUDA_ERROR_INVALID_PTX);
    EXPECT_EQ(cuModuleLoadData(&m, ".version 7.0\n.global .b8 x[4000000];\n{"), CUDA_ERROR_INVALID_PTX);
    EXPECT_EQ(used(), CONTEXT);
    what_is_charged_is_what_is_held();
}

int main(void)
{
    static const char quota[] = CARD_A "=512MiB,context=256MiB";
    IN(quota, variables_count_at_the_load_and_code_at_the_first_launch);
    IN(quota, code_that_does_not_fit_makes_the_launch_out_of_memory);
    IN(quota, a_module_that_does_not_fit_is_out_of_memory);
    IN(quota, eager_loading_counts_all_at_the_load);
    IN(quota, a_module_from_a_file_counts_as_one_from_memory);
    IN(quota, machine_code_counts_by_the_size_of_its_file);
    IN(quota, what_a_large_image_only_announces_is_measured_away);
    IN(quota, a_large_fat_binary_is_charged_with_what_the_card_lost);
    IN(quota, a_library_counts_where_it_is_used_and_goes_with_the_context_or_itself);
    IN(quota, modules_go_with_their_context);
    IN(quota, threads_that_use_a_function_first_at_once_are_charged_once);
    IN(quota, a_text_with_every_kind_of_variable_is_bounded_rightly);
    IN(quota, wrong_images_get_the_drivers_answers_and_cost_nothing);
    FINISH;
}
