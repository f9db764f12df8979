/* Code: how much of it is charged if the driver packs it and loads it function by function, and which calls may load it. */
#include "container.h"

#include <elf.h>

CUresult cuLibraryLoadData(CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned);
CUresult cuLibraryUnload(CUlibrary);
CUresult cuLibraryGetKernel(CUkernel *, CUlibrary, const char *);
CUresult cuFuncLoad(CUfunction);
CUresult cuFuncGetAttribute(int *, int, CUfunction);
CUresult cuFuncSetAttribute(CUfunction, int, int);
CUresult cuFuncSetCacheConfig(CUfunction, int);
CUresult cuKernelGetAttribute(int *, int, CUkernel, CUdevice);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *, CUfunction, int, size_t);
CUresult cuOccupancyMaxPotentialBlockSize(int *, int *, CUfunction, void *, size_t, int);
CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphAddKernelNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphAddNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraphNodeParams *);
CUresult cuGraphAddNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, CUgraphNodeParams *);
CUresult cuGraphKernelNodeSetParams(CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphNodeSetParams(CUgraphNode, CUgraphNodeParams *);
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphExecNodeSetParams(CUgraphExec, CUgraphNode, CUgraphNodeParams *);

#define GRANULE (2 * MIB)
#define KIB 1024ull
#define MOST_KERNELS 1000

/* ---- programs ---- */

static int digits = 1; /* digits of a kernel's number: names may be long */

/* Machine code with kernels k0, k1, ...: each has `bytes` bytes and a bank of 512 bytes for its parameters; `common` bytes belong to no
 * kernel. */
static void *machine_code(unsigned kernels, size_t bytes, size_t common)
{
    unsigned sections = 2 * kernels + 3;
    size_t names = 64 + kernels * (64 + 2 * (size_t)digits), sizes = sizeof(Elf64_Ehdr) + names + kernels * (bytes + 512) + common;
    size_t size = (sizes + 7) / 8 * 8 + sections * sizeof(Elf64_Shdr);
    unsigned char *image = calloc(1, size);
    Elf64_Ehdr *h = (void *)image;
    *h = (Elf64_Ehdr){.e_ident = ELFMAG, .e_shoff = size - sections * sizeof(Elf64_Shdr), .e_shnum = (Elf64_Half)sections,
                      .e_shentsize = sizeof(Elf64_Shdr), .e_shstrndx = 1};
    Elf64_Shdr *s = (void *)(image + h->e_shoff);
    char *text = (char *)image + sizeof *h, *name = text + 1;
    size_t at = sizeof *h + names;
    s[1] = (Elf64_Shdr){.sh_type = SHT_STRTAB, .sh_offset = sizeof *h, .sh_size = names};
    s[2] = (Elf64_Shdr){.sh_type = SHT_PROGBITS, .sh_offset = at, .sh_size = common};
    at += common;
    for (unsigned i = 0; i < kernels; i++) {
        s[3 + i] = (Elf64_Shdr){.sh_type = SHT_PROGBITS, .sh_name = (Elf64_Word)(name - text), .sh_flags = SHF_ALLOC, .sh_offset = at, .sh_size = bytes};
        name += sprintf(name, ".text.k%0*u", digits, i) + 1;
        at += bytes;
        s[3 + kernels + i] = (Elf64_Shdr){.sh_type = SHT_PROGBITS, .sh_name = (Elf64_Word)(name - text), .sh_offset = at, .sh_size = 512};
        name += sprintf(name, ".nv.constant0.k%0*u", digits, i) + 1;
        at += 512;
    }
    return image;
}

static CUfunction function_of(CUmodule m, unsigned number)
{
    char name[4000];
    CUfunction f = NULL;
    snprintf(name, sizeof name, "k%0*u", digits, number);
    EXPECT_EQ(cuModuleGetFunction(&f, m, name), CUDA_SUCCESS);
    return f;
}

static CUresult launch(CUfunction f) { return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); }

static void charged_covers_held(void) { EXPECT(held(CARD_A) <= used()); }

/* Chooses the next policy whose description contains all of these facts. */
static void choose_policy(const char *kind, const char *const *facts)
{
    char line[256], text[4096];
    for (unsigned seed = 1; seed < 2000; seed++) {
        snprintf(line, sizeof line, "%s/simgpu-ctl policy %s%u", getenv("DRIVER"), kind, seed);
        FILE *f = popen(line, "r");
        size_t length = f ? fread(text, 1, sizeof text - 1, f) : 0;
        text[length] = 0;
        bool all = f && !pclose(f);
        for (unsigned i = 0; facts[i] && all; i++) all = strstr(text, facts[i]) != NULL;
        if (!all) continue;
        snprintf(line, sizeof line, "%s%u", kind, seed);
        setenv("SIMGPU_POLICY", line, 1);
        return;
    }
    fprintf(stderr, "no policy is like that\n");
    abort();
}

/* ---- charges ---- */

static const char small_text[] = ".version 7.0\n.target sm_80\n.visible .entry any() { ret; }\n";

/* Pieces of 64 KiB take three blocks of 2 MiB; each image alone would be charged 2 MiB. */
static void sixty_five_small_images_share_blocks(void)
{
    CUmodule m[65];
    CUfunction f;
    context_on(0);
    for (int i = 0; i < 65; i++) {
        EXPECT_EQ(cuModuleLoadData(&m[i], small_text), CUDA_SUCCESS);
        EXPECT_EQ(cuModuleGetFunction(&f, m[i], "any"), CUDA_SUCCESS);
        EXPECT_EQ(launch(f), CUDA_SUCCESS);
        charged_covers_held();
    }
    EXPECT_EQ(used(), CONTEXT + 3 * GRANULE);
    EXPECT_EQ(held(CARD_A), CONTEXT + 3 * GRANULE);
    for (int i = 0; i < 64; i++) {
        EXPECT_EQ(cuModuleUnload(m[i]), CUDA_SUCCESS);
        charged_covers_held();
    }
    EXPECT_EQ(used(), CONTEXT + GRANULE);
    EXPECT_EQ(cuModuleUnload(m[64]), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(held(CARD_A), CONTEXT);
}

static void functions_of_an_image_count_one_by_one(void)
{
    CUmodule m;
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, machine_code(1000, 100 * KIB, 200 * KIB)), CUDA_SUCCESS); /* 98 MiB */
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(launch(function_of(m, 0)), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + GRANULE);
    for (unsigned i = 1; i < 100; i++) EXPECT_EQ(launch(function_of(m, i)), CUDA_SUCCESS);
    charged_covers_held();
    EXPECT(used() <= CONTEXT + 16 * MIB); /* about 10 MiB of code */
    for (unsigned i = 0; i < 100; i++) EXPECT_EQ(launch(function_of(m, i)), CUDA_SUCCESS);
    EXPECT(used() <= CONTEXT + 16 * MIB);
    EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT_EQ(held(CARD_A), CONTEXT);
}

/* Kernels of templates have long names: simgpu once took kernels with names of more than 255 characters for code common to all kernels. */
static void names_of_kernels_may_be_long(void)
{
    CUmodule m;
    context_on(0);
    digits = 1000;
    EXPECT_EQ(cuModuleLoadData(&m, machine_code(100, 100 * KIB, 200 * KIB)), CUDA_SUCCESS);
    for (unsigned i = 0; i < 10; i++) EXPECT_EQ(launch(function_of(m, i)), CUDA_SUCCESS);
    charged_covers_held();
    EXPECT_EQ(held(CARD_A), CONTEXT + GRANULE);
}

/* The driver has shown at the first function that it does not load whole images. */
static void a_further_function_needs_room_for_itself_only(void)
{
    CUmodule m;
    CUdeviceptr p;
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, machine_code(1000, 100 * KIB, 200 * KIB)), CUDA_SUCCESS);
    EXPECT_EQ(launch(function_of(m, 0)), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&p, 512 * MIB - CONTEXT - 2 * GRANULE), CUDA_SUCCESS);
    for (unsigned i = 1; i < 8; i++) EXPECT_EQ(launch(function_of(m, i)), CUDA_SUCCESS);
    charged_covers_held();
    unsigned i = 8;
    while (i < 200 && launch(function_of(m, i)) == CUDA_SUCCESS) i++;
    EXPECT(i < 200);
    EXPECT(peak(CARD_A) <= 512 * MIB);
    EXPECT_EQ(launch(function_of(m, 3)), CUDA_SUCCESS); /* it is loaded already */
}

static void a_driver_that_loads_images_as_a_whole_is_charged_for_all_of_it(void)
{
    CUmodule m;
    choose_policy("", (const char *[]){"\"module_functions\": false", "\"module_loading\": \"lazy\"", NULL});
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, machine_code(100, 100 * KIB, 200 * KIB)), CUDA_SUCCESS);
    EXPECT_EQ(launch(function_of(m, 0)), CUDA_SUCCESS);
    EXPECT(used() >= CONTEXT / 2 + 10 * MIB);
    charged_covers_held();
}

/* If all functions are loaded after the first was used, they came as one piece, and count as one piece: not as one piece for each function
 * (which would be three blocks more here). */
static void what_came_as_a_whole_is_not_counted_by_its_functions(void)
{
    CUmodule m;
    choose_policy("", (const char *[]){"\"module_functions\": false", "\"module_loading\": \"lazy\"", "\"module_percent\": 100", NULL});
    context_on(0);
    uint64_t before = used();
    EXPECT_EQ(cuModuleLoadData(&m, machine_code(4, 528 * KIB, 0)), CUDA_SUCCESS);
    EXPECT_EQ(launch(function_of(m, 0)), CUDA_SUCCESS);
    EXPECT_EQ(used() - before, 2 * GRANULE);
    for (unsigned i = 1; i < 4; i++) EXPECT_EQ(launch(function_of(m, i)), CUDA_SUCCESS);
    EXPECT_EQ(used() - before, 2 * GRANULE);
    charged_covers_held();
}

/* A kernel of a library in two contexts is launched again after its stream is destroyed, when almost nothing is left of the quota. */
static void a_kernel_that_is_loaded_needs_no_room(void)
{
    CUlibrary l;
    CUkernel k;
    CUstream s;
    CUdeviceptr p;
    context_on(0);
    EXPECT_EQ(cuLibraryLoadData(&l, machine_code(20, 100 * KIB, 200 * KIB), NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryGetKernel(&k, l, "k7"), CUDA_SUCCESS);
    EXPECT_EQ(launch((CUfunction)k), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + GRANULE);
    EXPECT_EQ(cuMemAlloc_v2(&p, 512 * MIB - CONTEXT - GRANULE), CUDA_SUCCESS);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(cuStreamCreate(&s, 0), CUDA_SUCCESS);
        EXPECT_EQ(cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL), CUDA_SUCCESS);
        EXPECT_EQ(cuStreamDestroy_v2(s), CUDA_SUCCESS);
        EXPECT_EQ(launch((CUfunction)k), CUDA_SUCCESS);
    }
    charged_covers_held();
}

/* ---- calls that may load ---- */

static void eager_libraries_count_in_all_contexts_also_later_ones(void)
{
    CUlibrary l, small;
    CUcontext a, b, c;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&a, 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&b, 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryLoadData(&l, machine_code(1, 3 * MIB, 0), NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_B), 2 * 104 * MIB);
    EXPECT_EQ(used(), 2 * 104 * MIB);
    EXPECT_EQ(cuLibraryLoadData(&small, small_text, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), 2 * 106 * MIB);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_B), 3 * 106 * MIB);
    EXPECT_EQ(used(), 3 * 106 * MIB);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&c, 1), CUDA_SUCCESS);
    EXPECT_EQ(held(CARD_B), 4 * 106 * MIB);
    EXPECT_EQ(used(), 4 * 106 * MIB);
    EXPECT_EQ(cuCtxDestroy_v2(a), CUDA_SUCCESS);
    EXPECT_EQ(used(), held(CARD_B));
    EXPECT_EQ(cuLibraryUnload(l), CUDA_SUCCESS);
    EXPECT_EQ(used(), 3 * 102 * MIB);
    EXPECT_EQ(cuCtxCreate_v2(&a, 0, 1), CUDA_SUCCESS); /* in the other context only */
    EXPECT_EQ(used(), 4 * 102 * MIB);
    EXPECT_EQ(used(), held(CARD_B));
}

static void a_context_that_has_no_room_for_eager_libraries_is_not_made(void)
{
    CUlibrary l;
    CUcontext c;
    CUdeviceptr p;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryLoadData(&l, machine_code(1, 40 * MIB, 0), NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&p, 130 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 1), CUDA_ERROR_OUT_OF_MEMORY); /* without the libraries 100 MiB would be enough */
    EXPECT(peak(CARD_B) <= 400 * MIB);
    EXPECT_EQ(used(), held(CARD_B));
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(used(), held(CARD_B));
}

struct asked {
    CUfunction f;
    CUkernel k;
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUDA_KERNEL_NODE_PARAMS p;
    CUgraphNodeParams any;
};

static CUresult attribute(struct asked *a) { int n; return cuFuncGetAttribute(&n, 4, a->f); }
static CUresult set_attribute(struct asked *a) { return cuFuncSetAttribute(a->f, 8, 4096); }
static CUresult cache(struct asked *a) { return cuFuncSetCacheConfig(a->f, 1); }
static CUresult attribute_of_kernel(struct asked *a) { int n; return cuKernelGetAttribute(&n, 4, a->k, 0); }
static CUresult blocks(struct asked *a) { int n; return cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, a->f, 64, 0); }
static CUresult potential(struct asked *a) { int n, m; return cuOccupancyMaxPotentialBlockSize(&n, &m, a->f, NULL, 0, 0); }
static CUresult (*const questions[])(struct asked *) = {attribute, set_attribute, cache, attribute_of_kernel, blocks, potential};

static CUresult add(struct asked *a) { return cuGraphAddKernelNode(&a->node, a->graph, NULL, 0, &a->p); }
static CUresult add_any(struct asked *a) { return cuGraphAddNode(&a->node, a->graph, NULL, 0, &a->any); }
static CUresult add_any_v2(struct asked *a) { return cuGraphAddNode_v2(&a->node, a->graph, NULL, NULL, 0, &a->any); }
static CUresult set_node(struct asked *a) { return cuGraphKernelNodeSetParams(a->node, &a->p); }
static CUresult set_node_v2(struct asked *a) { return cuGraphKernelNodeSetParams_v2(a->node, &a->p); }
static CUresult set_any(struct asked *a) { return cuGraphNodeSetParams(a->node, &a->any); }
static CUresult set_exec(struct asked *a) { return cuGraphExecKernelNodeSetParams(a->exec, a->node, &a->p); }
static CUresult set_exec_v2(struct asked *a) { return cuGraphExecKernelNodeSetParams_v2(a->exec, a->node, &a->p); }
static CUresult set_any_exec(struct asked *a) { return cuGraphExecNodeSetParams(a->exec, a->node, &a->any); }
static CUresult (*const nodes[])(struct asked *) = {add, add_any, add_any_v2, set_node, set_node_v2, set_any, set_exec, set_exec_v2, set_any_exec};

static CUDA_KERNEL_NODE_PARAMS node_of(CUfunction f)
{
    return (CUDA_KERNEL_NODE_PARAMS){.func = f, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
}

/* The call loads a function of 40 MiB, first without enough room, then with it. */
static void is_charged_by(CUresult (*call)(struct asked *))
{
    struct asked a = {0};
    CUmodule m, first;
    CUlibrary l;
    CUdeviceptr p;
    void *large = machine_code(1, 40 * MIB, 0);
    EXPECT_EQ(cuModuleLoadData(&first, small_text), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&a.f, first, "any"), CUDA_SUCCESS);
    a.p = node_of(a.f);
    EXPECT_EQ(cuGraphCreate(&a.graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddKernelNode(&a.node, a.graph, NULL, 0, &a.p), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&a.exec, a.graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleLoadData(&m, large), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryLoadData(&l, large, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryGetKernel(&a.k, l, "k0"), CUDA_SUCCESS);
    a.f = function_of(m, 0);
    a.p = node_of(a.f);
    a.any = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = a.p};
    unsigned long long before = used();
    EXPECT_EQ(cuMemAlloc_v2(&p, 512 * MIB - before - 20 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(call(&a), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(peak(CARD_A) <= 512 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(call(&a), CUDA_SUCCESS);
    EXPECT(used() >= before + 40 * MIB);
    charged_covers_held();
}

static unsigned which;

static void what_a_question_loads_is_charged(void)
{
    choose_policy("", (const char *[]){"\"module_asks\": true", "\"module_handles\": false", "\"module_loading\": \"lazy\"", NULL});
    context_on(0);
    is_charged_by(questions[which]);
}

static void a_question_that_loads_nothing_costs_nothing(void)
{
    CUmodule m;
    int n;
    context_on(0);
    EXPECT_EQ(cuModuleLoadData(&m, machine_code(2, 40 * MIB, 0)), CUDA_SUCCESS);
    EXPECT_EQ(cuFuncGetAttribute(&n, 4, function_of(m, 0)), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT(cuFuncGetAttribute(&n, 4, NULL) != CUDA_SUCCESS);
    EXPECT_EQ(used(), held(CARD_A));
}

static void what_a_node_loads_is_charged(void)
{
    choose_policy("", (const char *[]){"\"module_nodes\": true", "\"module_handles\": false", "\"module_loading\": \"lazy\"", NULL});
    context_on(0);
    is_charged_by(nodes[which]);
}

/* ---- drivers with other policies ---- */

static unsigned seed, draws;
static unsigned draw(unsigned sides) { return (unsigned)((seed * 2654435761u + ++draws * 2246822519u) >> 7) % sides; }

struct any {
    CUmodule module;
    bool library;
    int context;
    unsigned kernels;
};

static struct { void *image; unsigned kernels; } images[12];

static void make_images(void)
{
    static const struct { unsigned kernels; size_t bytes, common; } shapes[] = {
        {1, 3000, 0}, {2, 30000, 1000}, {8, 9000, 60000}, {20, 100000, 200000}, {5, 700000, 30000}, {3, 1900000, 400000}, {2, 2500000, 0},
        {60, 1000, 1000}, {1, 2090000, 0}, {4, 300000, 2500000}, {7, 63000, 100}, {3, 200000, 0}};
    for (unsigned i = 0; i < 12; i++) images[i].image = machine_code(shapes[i].kernels, shapes[i].bytes, shapes[i].common), images[i].kernels = shapes[i].kernels;
}

static void load_any(struct any *a, int context)
{
    unsigned n = draw(12);
    *a = (struct any){.library = draw(2), .context = context, .kernels = images[n].kernels};
    CUresult r = a->library ? cuLibraryLoadData(&a->module, images[n].image, NULL, NULL, 0, NULL, NULL, 0) : cuModuleLoadData(&a->module, images[n].image);
    EXPECT(r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY);
    if (r) a->module = NULL;
}

static void use_any(const struct any *a)
{
    struct asked ask = {0};
    char name[16];
    snprintf(name, sizeof name, "k%u", draw(a->kernels));
    if (a->library ? cuLibraryGetKernel(&ask.k, a->module, name) : cuModuleGetFunction(&ask.f, a->module, name)) return;
    if (a->library) ask.f = (CUfunction)ask.k;
    else ask.k = (CUkernel)ask.f;
    if (draw(3) == 0) questions[draw(6)](&ask);
    ask.p = node_of(ask.f);
    if (draw(3) == 0 && !cuGraphCreate(&ask.graph, 0)) add(&ask);
    if (draw(2)) launch(ask.f);
}

static void unload_any(struct any *a)
{
    EXPECT_EQ(a->library ? cuLibraryUnload(a->module) : cuModuleUnload(a->module), CUDA_SUCCESS);
    a->module = NULL;
}

/* However the driver packs and loads code, the charge covers the held memory, and all of it is refunded in the end. */
static void no_driver_holds_more_code_than_is_charged(void)
{
    struct any all[40] = {{0}};
    CUcontext contexts[2];
    char policy[16];
    snprintf(policy, sizeof policy, "%u", seed);
    setenv("SIMGPU_POLICY", policy, 1);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    for (int i = 0; i < 2; i++) EXPECT_EQ(cuCtxCreate_v2(&contexts[i], 0, 0), CUDA_SUCCESS);
    make_images();
    for (int step = 0; step < 600; step++) {
        struct any *a = &all[draw(40)];
        int context = a->module && !a->library ? a->context : (int)draw(2);
        EXPECT_EQ(cuCtxSetCurrent(contexts[context]), CUDA_SUCCESS);
        if (!a->module) load_any(a, context);
        else if (draw(8)) use_any(a);
        else unload_any(a);
        if (step % 20 == 0) charged_covers_held();
    }
    EXPECT(peak(CARD_A) <= 600 * MIB);
    for (int i = 0; i < 40; i++) {
        EXPECT_EQ(cuCtxSetCurrent(contexts[all[i].context]), CUDA_SUCCESS);
        if (all[i].module) unload_any(&all[i]);
    }
    EXPECT_EQ(used(), 2 * CONTEXT);
    EXPECT(held(CARD_A) <= 2 * CONTEXT);
}

/* A driver that exceeds the table of bounds: the library reads the driver's figure for the process, charges the excess, and grants no more. */
static void code_that_is_not_packed_is_seen_and_charged(void)
{
    CUmodule m;
    CUfunction f;
    CUdeviceptr p;
    struct stat space;
    if (stat("/proc/self/ns/pid", &space) || space.st_ino != 0xEFFFFFFC) return; /* the driver has no figure for this pid namespace */
    choose_policy("wild:", (const char *[]){"\"module_packed\": false", "\"linear_percent\": 100", "\"module_percent\": 100", "\"context_percent\": 75", NULL});
    context_on(0);
    usleep(150000);
    EXPECT_EQ(cuMemAlloc_v2(&p, 4), CUDA_SUCCESS); /* so that the check that is due after a new context is done */
    for (int i = 0; i < 65; i++) {
        EXPECT_EQ(cuModuleLoadData(&m, small_text), CUDA_SUCCESS);
        EXPECT_EQ(cuModuleGetFunction(&f, m, "any"), CUDA_SUCCESS);
        EXPECT_EQ(launch(f), CUDA_SUCCESS);
    }
    EXPECT(held(CARD_A) >= CONTEXT * 3 / 4 + 130 * MIB);
    usleep(350000);
    EXPECT_EQ(cuMemAlloc_v2(&p, 4), CUDA_SUCCESS);
    charged_covers_held();
    EXPECT_EQ(cuMemAlloc_v2(&p, 512 * MIB - held(CARD_A) + 2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
}

int main(void)
{
    static const char quota[] = CARD_A "=512MiB,context=256MiB", many[] = CARD_B "=800MiB,context=100MiB", few[] = CARD_B "=400MiB,context=100MiB";
    IN(quota, sixty_five_small_images_share_blocks);
    IN(quota, functions_of_an_image_count_one_by_one);
    IN(quota, names_of_kernels_may_be_long);
    IN(quota, a_further_function_needs_room_for_itself_only);
    IN(quota, a_driver_that_loads_images_as_a_whole_is_charged_for_all_of_it);
    IN(quota, what_came_as_a_whole_is_not_counted_by_its_functions);
    IN(quota, a_kernel_that_is_loaded_needs_no_room);
    IN(many, eager_libraries_count_in_all_contexts_also_later_ones);
    IN(few, a_context_that_has_no_room_for_eager_libraries_is_not_made);
    for (which = 0; which < sizeof questions / sizeof *questions; which++) IN(quota, what_a_question_loads_is_charged);
    IN(quota, a_question_that_loads_nothing_costs_nothing);
    for (which = 0; which < sizeof nodes / sizeof *nodes; which++) IN(quota, what_a_node_loads_is_charged);
    for (seed = 0; seed < 40; seed++) IN(CARD_A "=600MiB,context=256MiB", no_driver_holds_more_code_than_is_charged);
    IN(quota, code_that_is_not_packed_is_seen_and_charged);
    FINISH;
}
