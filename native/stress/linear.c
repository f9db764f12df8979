/* Kinds of things that a context holds: plain, pitched and managed memory, arrays, modules. */
#include "lane.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t granules(uint64_t bytes) { return roundup(bytes, GRANULE); }

static bool alloc(struct thing *t, size_t size)
{
    CUdeviceptr p;
    begin(self.card, granules(size));
    if (end("cuMemAlloc", cuMemAlloc_v2(&p, size), granules(size), 0)) return false;
    t->at = p;
    t->size = size;
    return true;
}

static void free_linear(struct thing *t)
{
    begin(self.card, 0);
    end("cuMemFree", cuMemFree_v2(t->at), 0, 0);
}

/* Frees the memory in a stream one time in eight: then it may stay until a synchronisation of that stream. */
static void free_plain(struct thing *t)
{
    CUstream s = self.streams[roll(STREAMS)];
    if (roll(8)) return free_linear(t);
    begin(self.card, 0);
    end("cuMemFreeAsync", cuMemFreeAsync(t->at, s), 0, 0);
    begin(self.card, 0);
    if (roll(2)) end("cuStreamSynchronize", cuStreamSynchronize(s), 0, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    else end("cuStreamQuery", cuStreamQuery(s), 0, CUDA_ERROR_NOT_READY);
}

static bool make_small(struct thing *t) { return alloc(t, 1 + roll(roll(3) ? 20000 : MIB - 1)); }
static bool make_large(struct thing *t) { return alloc(t, MIB + roll(roll(20) ? 12 * MIB : 60 * MIB)); }

static bool make_pitched(struct thing *t)
{
    CUdeviceptr p;
    size_t pitch, width = 1 + roll(4000), height = 1 + roll(3000);
    uint64_t most = granules(roundup(width, 512) * height);
    begin(self.card, most);
    if (end("cuMemAllocPitch", cuMemAllocPitch_v2(&p, &pitch, width, height, 4u << roll(3)), most, 0)) return false;
    t->at = p;
    return true;
}

static bool make_managed(struct thing *t)
{
    CUdeviceptr p;
    size_t size = 1 + roll(6 * MIB);
    begin(self.card, granules(size));
    if (end("cuMemAllocManaged", cuMemAllocManaged(&p, size, 1), granules(size), 0)) return false;
    t->at = p;
    return true;
}

static bool make_array(struct thing *t)
{
    CUarray a;
    CUDA_ARRAY_DESCRIPTOR d = {1 + roll(1500), roll(1000), 0x20, 1u << roll(3)};
    uint64_t most = granules(roundup(d.Width * 4 * d.NumChannels * (d.Height ? d.Height : 1), 65536));
    begin(self.card, most);
    if (end("cuArrayCreate", cuArrayCreate_v2(&a, &d), most, 0)) return false;
    t->at = (uint64_t)(uintptr_t)a;
    return true;
}

static void free_array(struct thing *t)
{
    begin(self.card, 0);
    end("cuArrayDestroy", cuArrayDestroy((CUarray)(uintptr_t)t->at), 0, 0);
}

static bool make_mipmap(struct thing *t)
{
    CUmipmappedArray a;
    CUDA_ARRAY3D_DESCRIPTOR d = {1 + roll(800), 1 + roll(800), 0, 0x01, 4, 0};
    uint64_t most = granules(2 * d.Width * d.Height * 4 + 32 * 65536);
    begin(self.card, most);
    if (end("cuMipmappedArrayCreate", cuMipmappedArrayCreate(&a, &d, 1 + roll(5)), most, 0)) return false;
    t->at = (uint64_t)(uintptr_t)a;
    return true;
}

static void free_mipmap(struct thing *t)
{
    begin(self.card, 0);
    end("cuMipmappedArrayDestroy", cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)t->at), 0, 0);
}

/* Both calls are one operation: the driver may load code when the function is looked up, or at its launch, and a library counts it from the
 * lookup on. */
static void launch(CUmodule m, const char *name, uint64_t most, uint64_t code)
{
    CUfunction f;
    begin(self.card, most);
    CUresult r = cuModuleGetFunction(&f, m, name);
    if (!r) r = cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, self.streams[0], NULL, NULL);
    end("cuModuleGetFunction or cuLaunchKernel", r, code, 0);
}

/* Variables are loaded with the module, code with the first launch. */
static bool make_module(struct thing *t)
{
    char ptx[300];
    CUmodule m;
    unsigned bytes = roll(3) ? 4 : roll(3 * MIB) + 4;
    uint64_t most = granules(bytes) + GRANULE;
    snprintf(ptx, sizeof ptx, ".version 7.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .b8 table[%u];\n"
             "// simgpu: time_us=1 share=0.1\n.visible .entry touch()\n{\n ret;\n}\n", bytes);
    begin(self.card, most);
    if (end("cuModuleLoadData", cuModuleLoadData(&m, ptx), most, 0)) return false;
    launch(m, "touch", most, GRANULE);
    t->at = (uint64_t)(uintptr_t)m;
    return true;
}

static void free_module(struct thing *t)
{
    begin(self.card, 0);
    end("cuModuleUnload", cuModuleUnload((CUmodule)(uintptr_t)t->at), 0, 0);
}

#define KERNELS 4

/* Machine code with kernels k0 to k3 of `bytes` bytes each, which a driver may load one by one. */
static size_t machine_code(unsigned char *image, size_t bytes)
{
    enum { SECTIONS = 2 + 2 * KERNELS, NAMES = 64 * KERNELS };
    Elf64_Ehdr h = {.e_ident = ELFMAG, .e_shoff = sizeof h + NAMES + KERNELS * bytes, .e_shnum = SECTIONS, .e_shentsize = sizeof(Elf64_Shdr), .e_shstrndx = 1};
    Elf64_Shdr s[SECTIONS] = {{0}, {.sh_type = SHT_STRTAB, .sh_offset = sizeof h, .sh_size = NAMES}};
    char names[NAMES] = "", *name = names + 1;
    for (unsigned i = 0; i < 2 * KERNELS; i++) {
        bool code = i < KERNELS;
        s[2 + i] = (Elf64_Shdr){.sh_name = (Elf64_Word)(name - names), .sh_type = SHT_PROGBITS, .sh_flags = SHF_ALLOC,
                                .sh_offset = sizeof h + NAMES + i % KERNELS * bytes, .sh_size = code ? bytes - 64 : 64};
        name += sprintf(name, "%sk%u", code ? ".text." : ".nv.constant0.", i % KERNELS) + 1;
    }
    memcpy(image, &h, sizeof h);
    memcpy(image + sizeof h, names, sizeof names);
    memcpy(image + h.e_shoff, s, sizeof s);
    return h.e_shoff + sizeof s;
}

static bool make_kernels(struct thing *t)
{
    size_t bytes = 1024 + roll(roll(4) ? 40000 : 600000);
    unsigned char *image = calloc(1, KERNELS * bytes + 4096);
    CUmodule m;
    char name[8];
    uint64_t most = 2 * granules(machine_code(image, bytes)) + GRANULE;
    begin(self.card, most);
    bool made = !end("cuModuleLoadData", cuModuleLoadData(&m, image), most, 0);
    free(image);
    for (unsigned i = 0; made && i < KERNELS; i++) {
        if (roll(2)) continue;
        snprintf(name, sizeof name, "k%u", i);
        launch(m, name, most, most);
    }
    if (made) t->at = (uint64_t)(uintptr_t)m;
    return made;
}

const struct kind linear_kinds[] = {
    {"small", 30, false, make_small, free_plain},       {"large", 16, false, make_large, free_plain},
    {"pitched", 5, false, make_pitched, free_plain},    {"managed", 5, false, make_managed, free_linear},
    {"array", 5, false, make_array, free_array},         {"mipmap", 3, false, make_mipmap, free_mipmap},
    {"module", 2, false, make_module, free_module},      {"kernels", 2, false, make_kernels, free_module},
    {0},
};
