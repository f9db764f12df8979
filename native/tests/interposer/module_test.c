/* Modules and libraries: variables are charged when they are loaded, code when it is first used, and everything is refunded when they are
 * unloaded. */
#include "container.h"

#include <elf.h>
#include <fcntl.h>
#include <pthread.h>

CUresult cuModuleLoad(CUmodule *, const char *);
CUresult cuModuleLoadFatBinary(CUmodule *, const void *);
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
    EXPECT_EQ(cuModuleLoadData(&m, spin_ptx), CUDA_SUCCESS); /* handles are reused: the new function is not taken for the old one */
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

/* ---- fat binaries ---- */

/* A program for one generation of cards: `code` bytes of code, and variables that are only described. */
struct program {
    unsigned arch;
    size_t code, variables;
};

static unsigned char *put_entry(unsigned char *at, struct program p)
{
    struct { uint16_t kind, version; uint32_t bytes; uint64_t rest; uint32_t packed, zero; uint16_t minor, major; uint32_t arch; uint64_t none[4]; } entry = {
        .kind = 2, .version = 0x101, .bytes = sizeof entry, .rest = p.code, .arch = p.arch};
    Elf64_Shdr sections[2] = {{0}, {.sh_type = SHT_NOBITS, .sh_flags = SHF_ALLOC | SHF_WRITE, .sh_size = p.variables}};
    Elf64_Ehdr elf = {.e_ident = ELFMAG, .e_shoff = p.code - sizeof sections, .e_shnum = 2, .e_shentsize = sizeof *sections};
    memcpy(at, &entry, sizeof entry);
    memcpy(at + sizeof entry, &elf, sizeof elf);
    memcpy(at + sizeof entry + elf.e_shoff, sections, sizeof sections);
    return at + sizeof entry + p.code;
}

/* A fat binary of these programs; the list ends with one without code. */
static void *fat_binary(const struct program *programs)
{
    struct { uint32_t magic; uint16_t version, bytes; uint64_t rest; } head = {0xba55ed50u, 1, 16, 0};
    for (const struct program *p = programs; p->code; p++) head.rest += 64 + p->code;
    unsigned char *fat = calloc(1, sizeof head + head.rest), *at = fat + sizeof head;
    memcpy(fat, &head, sizeof head);
    for (const struct program *p = programs; p->code; p++) at = put_entry(at, *p);
    return fat;
}

static void launch_any(CUmodule m)
{
    CUfunction f;
    EXPECT_EQ(cuModuleGetFunction(&f, m, "any"), CUDA_SUCCESS);
    EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
}

static void variables_in_a_fat_binary_count_as_those_of_the_bare_program_do(void)
{
    CUmodule m;
    context_on(0);
    void *large = fat_binary((struct program[]){{80, 4096, 1024 * MIB}, {0}}), *small = fat_binary((struct program[]){{80, 4096, 9 * MIB}, {0}});
    EXPECT_EQ(cuModuleLoadData(&m, large), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(peak(CARD_A), CONTEXT);
    EXPECT_EQ(cuModuleLoadFatBinary(&m, small), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 10 * MIB);
    what_is_charged_is_what_is_held();
    launch_any(m);
    EXPECT_EQ(used(), CONTEXT + 12 * MIB);
    what_is_charged_is_what_is_held();
    EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    what_is_charged_is_what_is_held();
}

/* The card has compute capability 8.0. */
static void of_a_fat_binary_only_what_the_card_can_run_counts(void)
{
    CUmodule m;
    context_on(0);
    void *fat = fat_binary((struct program[]){{70, 100 * MIB, 300 * MIB}, {75, 90 * MIB, 0}, {80, MIB, 3 * MIB}, {90, 120 * MIB, 400 * MIB}, {0}});
    EXPECT_EQ(cuModuleLoadData(&m, fat), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB);
    launch_any(m);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    what_is_charged_is_what_is_held();
}

static void code_that_names_no_generation_counts_for_every_card(void)
{
    CUmodule m;
    context_on(0);
    void *fat = fat_binary((struct program[]){{70, MIB, 3 * MIB}, {0, MIB, 30 * MIB}, {0}});
    EXPECT_EQ(cuModuleLoadData(&m, fat), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 30 * MIB);
    launch_any(m);
    what_is_charged_is_what_is_held();
}

static void where_no_program_is_for_the_card_the_driver_refuses_and_nothing_is_charged(void)
{
    CUmodule m;
    context_on(0);
    void *fat = fat_binary((struct program[]){{70, MIB, 3 * MIB}, {90, 5 * MIB, 7 * MIB}, {0}});
    EXPECT_EQ(cuModuleLoadData(&m, fat), CUDA_ERROR_NO_BINARY_FOR_GPU);
    EXPECT_EQ(used(), CONTEXT);
    what_is_charged_is_what_is_held();
}

static void a_wrapper_stands_for_the_fat_binary_that_it_points_to(void)
{
    CUmodule m;
    context_on(0);
    struct { uint32_t magic, version; const void *image, *none; } wrapper = {0x466243b1u, 1, fat_binary((struct program[]){{80, 4096, 3 * MIB}, {0}}), NULL};
    EXPECT_EQ(cuModuleLoadData(&m, &wrapper), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 4 * MIB);
    what_is_charged_is_what_is_held();
}

/* It is marked as packed, but is not, so its contents are unknown. */
static void what_cannot_be_read_is_not_loaded(void)
{
    CUmodule m;
    context_on(0);
    unsigned char *fat = fat_binary((struct program[]){{80, 4096, 3 * MIB}, {0}});
    uint64_t unpacked = 1 << 20;
    memset(fat + 16 + 64, 0xff, 4);
    memcpy(fat + 16 + 56, &unpacked, sizeof unpacked);
    EXPECT_EQ(cuModuleLoadData(&m, fat), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(peak(CARD_A), CONTEXT);
}

static void shared_memory_of_kernels_is_no_variable(void)
{
    static struct { Elf64_Ehdr h; char names[64]; Elf64_Shdr s[3]; } image = {
        {.e_ident = ELFMAG, .e_shoff = sizeof(Elf64_Ehdr) + 64, .e_shnum = 3, .e_shentsize = sizeof(Elf64_Shdr), .e_shstrndx = 2}, "\0.nv.shared.k",
        {{0}, {.sh_name = 1, .sh_type = SHT_NOBITS, .sh_flags = SHF_ALLOC | SHF_WRITE, .sh_size = 5 * 1048576},
         {.sh_type = SHT_STRTAB, .sh_offset = sizeof(Elf64_Ehdr), .sh_size = 64}}};
    CUmodule m;
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, &image), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    what_is_charged_is_what_is_held();
}

/* ---- libraries ---- */

static void a_library_is_loaded_and_charged_in_each_context_by_itself(void)
{
    CUlibrary l;
    CUkernel k;
    CUfunction f[12];
    CUcontext c[12];
    CUstream in_the_first;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    for (int i = 0; i < 12; i++) EXPECT_EQ(cuCtxCreate_v2(&c[i], 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryLoadData(&l, spin_ptx, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryGetKernel(&k, l, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(c[0]), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&in_the_first, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(c[1]), CUDA_SUCCESS);
    EXPECT_EQ(spin_in((CUfunction)k, 1, in_the_first), CUDA_SUCCESS); /* runs in the stream's context */
    EXPECT_EQ(used(), 12 * 100 * MIB + 6 * MIB);
    EXPECT_EQ(used(), held(CARD_B));
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 12; i++) {
            EXPECT_EQ(cuCtxSetCurrent(c[i]), CUDA_SUCCESS);
            EXPECT_EQ(spin_in((CUfunction)k, 1, NULL), CUDA_SUCCESS);
            EXPECT_EQ(cuKernelGetFunction(&f[i], k), CUDA_SUCCESS);
            EXPECT_EQ(spin_in(f[i], 1, NULL), CUDA_SUCCESS);
            EXPECT_EQ(used(), 12 * 100 * MIB + 6 * MIB * (round ? 12 : i + 1));
            EXPECT_EQ(used(), held(CARD_B));
        }
    EXPECT_EQ(cuCtxDestroy_v2(c[3]), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(c[0]), CUDA_SUCCESS);
    EXPECT_EQ(used(), 11 * 106 * MIB);
    EXPECT_EQ(cuLibraryUnload(l), CUDA_SUCCESS);
    EXPECT_EQ(used(), 11 * 100 * MIB);
    EXPECT_EQ(used(), held(CARD_B));
}

/* A stream's handle is reused for a stream of another context, in which the kernel's code is not loaded. */
static void a_kernel_is_looked_up_again_when_streams_went(void)
{
    CUlibrary l;
    CUkernel k;
    CUcontext a, b;
    CUstream s, kept[64];
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&a, 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&b, 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryLoadData(&l, spin_ptx, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryGetKernel(&k, l, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(a), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&s, 0), CUDA_SUCCESS);
    EXPECT_EQ(spin_in((CUfunction)k, 1, s), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy_v2(s), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(b), CUDA_SUCCESS);
    for (int i = 0; i < 64; i++) {
        EXPECT_EQ(cuStreamCreate(&kept[i], 0), CUDA_SUCCESS);
        EXPECT_EQ(spin_in((CUfunction)k, 1, kept[i]), CUDA_SUCCESS);
        EXPECT_EQ(used(), 212 * MIB);
    }
    EXPECT_EQ(used(), held(CARD_B));
}

/* While there is only one context, the library does not check which one is current. */
static void a_kernel_counts_in_a_second_context_after_launches_in_the_first(void)
{
    CUlibrary l;
    CUkernel k;
    CUcontext b, a = context_on(0);
    EXPECT_EQ(cuLibraryLoadData(&l, spin_ptx, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryGetKernel(&k, l, "spin"), CUDA_SUCCESS);
    for (int i = 0; i < 3; i++) EXPECT_EQ(spin_in((CUfunction)k, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    EXPECT_EQ(cuCtxDestroy_v2(a), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&b, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(spin_in((CUfunction)k, 1, NULL), CUDA_SUCCESS);
        EXPECT_EQ(used(), CONTEXT + 6 * MIB);
        what_is_charged_is_what_is_held();
    }
}

static void *launch_without_a_context(void *kernel)
{
    for (int i = 0; i < 3; i++) EXPECT(spin_in(kernel, 1, NULL) != CUDA_SUCCESS);
    return NULL;
}

static void a_launch_without_a_context_is_not_taken_for_one_that_loads(void)
{
    CUlibrary l;
    CUkernel k;
    pthread_t other;
    context_on(0);
    EXPECT_EQ(cuLibraryLoadData(&l, spin_ptx, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryGetKernel(&k, l, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(pthread_create(&other, NULL, launch_without_a_context, k), 0);
    EXPECT_EQ(pthread_join(other, NULL), 0);
    what_is_charged_is_what_is_held();
    EXPECT_EQ(spin_in((CUfunction)k, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 6 * MIB);
    what_is_charged_is_what_is_held();
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
    EXPECT_EQ(spin_in((CUfunction)k, 1, NULL), CUDA_SUCCESS); /* loaded again in the next context */
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
    for (int i = 0; i < 20; i++) { /* handles of functions are reused */
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

/* ---- drivers with other policies ---- */

static unsigned seed, draws;
static unsigned draw(unsigned sides) { return (unsigned)((seed * 2654435761u + ++draws * 2246822519u) >> 7) % sides; }

struct any {
    CUmodule module;
    bool library;
    int context;
    CUfunction function;
};

static const void *images[6];

static void make_images(void)
{
    static char text[] = ".version 7.0\n.target sm_80\n.visible .entry any() { ret; }\n";
    images[0] = text;
    images[1] = spin_ptx;
    images[2] = fat_binary((struct program[]){{80, 300000, 0}, {90, 9 * MIB, 90 * MIB}, {0}});
    images[3] = fat_binary((struct program[]){{70, MIB, 0}, {80, 3 * MIB, 5 * MIB}, {0}});
    images[4] = fat_binary((struct program[]){{80, 1500000, 100}, {0}});
    images[5] = fat_binary((struct program[]){{80, 2 * MIB, 1}, {75, MIB, 0}, {0}});
}

static void load_any(struct any *a, int context)
{
    unsigned n = draw(6);
    const char *name = n == 1 ? "quarter" : "any";
    *a = (struct any){.library = draw(2), .context = context};
    CUresult r = a->library ? cuLibraryLoadData(&a->module, images[n], NULL, NULL, 0, NULL, NULL, 0) : cuModuleLoadData(&a->module, images[n]);
    if (r) a->module = NULL;
    else if (a->library) EXPECT_EQ(cuLibraryGetKernel(&a->function, a->module, name), CUDA_SUCCESS);
    else if (cuModuleGetFunction(&a->function, a->module, name)) a->function = NULL;
}

static void use_any(const struct any *a)
{
    unsigned long long us = 1;
    void *params[] = {&us};
    CUfunction f = a->function;
    if (!f || (a->library && draw(2) && cuKernelGetFunction(&f, a->function))) return;
    cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
}

static void unload_any(struct any *a)
{
    EXPECT_EQ(a->library ? cuLibraryUnload(a->module) : cuModuleUnload(a->module), CUDA_SUCCESS);
    a->module = NULL;
}

/* However the driver packs and loads, the charge covers the held memory, and all of it is refunded in the end. */
static void no_driver_holds_more_than_is_charged(void)
{
    struct any all[24] = {{0}};
    CUcontext contexts[2];
    char policy[16];
    snprintf(policy, sizeof policy, "%u", seed);
    setenv("SIMGPU_POLICY", policy, 1);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    for (int i = 0; i < 2; i++) EXPECT_EQ(cuCtxCreate_v2(&contexts[i], 0, 0), CUDA_SUCCESS);
    make_images();
    for (int step = 0; step < 300; step++) {
        struct any *a = &all[draw(24)];
        int context = a->module && !a->library ? a->context : (int)draw(2);
        EXPECT_EQ(cuCtxSetCurrent(contexts[context]), CUDA_SUCCESS);
        if (!a->module) load_any(a, context);
        else if (draw(4)) use_any(a);
        else unload_any(a);
        if (step % 30 == 0) EXPECT(held(CARD_A) <= used());
    }
    EXPECT(peak(CARD_A) <= 640 * MIB);
    for (int i = 0; i < 24; i++) {
        EXPECT_EQ(cuCtxSetCurrent(contexts[all[i].context]), CUDA_SUCCESS);
        if (all[i].module) unload_any(&all[i]);
    }
    EXPECT_EQ(used(), 2 * CONTEXT);
    EXPECT(held(CARD_A) <= 2 * CONTEXT);
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
    static const char quota[] = CARD_A "=512MiB,context=256MiB", many[] = CARD_B "=1800MiB,context=100MiB";
    IN(quota, variables_count_at_the_load_and_code_at_the_first_launch);
    IN(quota, code_that_does_not_fit_makes_the_launch_out_of_memory);
    IN(quota, a_module_that_does_not_fit_is_out_of_memory);
    IN(quota, eager_loading_counts_all_at_the_load);
    IN(quota, a_module_from_a_file_counts_as_one_from_memory);
    IN(quota, machine_code_counts_by_the_size_of_its_file);
    IN(quota, variables_in_a_fat_binary_count_as_those_of_the_bare_program_do);
    IN(quota, of_a_fat_binary_only_what_the_card_can_run_counts);
    IN(quota, code_that_names_no_generation_counts_for_every_card);
    IN(quota, where_no_program_is_for_the_card_the_driver_refuses_and_nothing_is_charged);
    IN(quota, a_wrapper_stands_for_the_fat_binary_that_it_points_to);
    IN(quota, what_cannot_be_read_is_not_loaded);
    IN(quota, shared_memory_of_kernels_is_no_variable);
    IN(many, a_library_is_loaded_and_charged_in_each_context_by_itself);
    IN(many, a_kernel_is_looked_up_again_when_streams_went);
    IN(quota, a_kernel_counts_in_a_second_context_after_launches_in_the_first);
    IN(quota, a_launch_without_a_context_is_not_taken_for_one_that_loads);
    IN(quota, a_library_counts_where_it_is_used_and_goes_with_the_context_or_itself);
    IN(quota, modules_go_with_their_context);
    IN(quota, threads_that_use_a_function_first_at_once_are_charged_once);
    IN(quota, a_text_with_every_kind_of_variable_is_bounded_rightly);
    for (seed = 0; seed < 26; seed++) IN(CARD_A "=640MiB,context=256MiB", no_driver_holds_more_than_is_charged);
    IN(quota, wrong_images_get_the_drivers_answers_and_cost_nothing);
    FINISH;
}
