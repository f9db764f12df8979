/* Modules and libraries, and when they take memory of the card. Variables take memory when the module is loaded. As since CUDA 12.2, code is
 * loaded at the first use of one of its functions (CUDA_MODULE_LOADING=EAGER: with the module); a policy may choose otherwise. */
#include "module.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FATBIN_WRAPPER 0x466243b1u
#define FATBIN 0xba55ed50u

static struct sim_module *modules;

void sim_functions_free(struct sim_function *first)
{
    for (struct sim_function *f = first, *next; f; f = next) {
        next = f->next;
        f->magic = 0;
        if (!f->nodes) free(f);
    }
}

static void free_module(struct sim_module *m)
{
    for (struct sim_module **p = &modules; *p; p = &(*p)->next)
        if (*p == m) {
            *p = m->next;
            break;
        }
    for (struct sim_load *l = m->loads, *next; l; l = next) next = l->next, sim_load_drop(l, false);
    sim_functions_free(m->functions);
    for (struct sim_image *i = m->images, *next; i; i = next) {
        next = i->next;
        for (struct sim_global *g = i->globals, *after; g; g = after) after = g->next, free(g);
        for (struct sim_kernel *k = i->kernels, *after; k; k = after) after = k->next, free(k);
        free(i);
    }
    m->magic = 0;
    free(m);
}

void sim_modules_forget(struct sim_ctx *ctx)
{
    for (struct sim_module *m = modules, *next; m; m = next) {
        next = m->next;
        for (struct sim_load **p = &m->loads; *p;) {
            struct sim_load *l = *p;
            if (l->ctx != ctx) {
                p = &l->next;
                continue;
            }
            *p = l->next;
            sim_load_drop(l, true);
        }
        if (m->ctx == ctx) free_module(m);
    }
    sim_code_forget(ctx);
}

/* ---- images ---- */

struct sim_image *sim_image_add(struct sim_module *m, bool text, unsigned arch)
{
    struct sim_image *i = calloc(1, sizeof *i);
    if (!i) return NULL;
    *i = (struct sim_image){.text = text, .arch = arch, .next = m->images};
    return m->images = i;
}

/* Machine code may not describe its kernels: then any name is found, and any parameters are accepted. */
static bool read_image(struct sim_module *m, const void *image)
{
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    if (magic == FATBIN_WRAPPER) {
        const void *inner;
        memcpy(&inner, (const char *)image + 8, sizeof inner);
        return inner && read_image(m, inner);
    }
    if (magic == FATBIN) return sim_parse_fatbin(m, image);
    m->opaque = !memcmp(image, ELFMAG, SELFMAG);
    struct sim_image *i = sim_image_add(m, !m->opaque, 0);
    if (!i || m->opaque) return i && sim_parse_elf(i, image, 0);
    i->code_bytes = strlen(image);
    return sim_parse_ptx(m, i, image);
}

static bool eager(void)
{
    const char *mode = getenv("CUDA_MODULE_LOADING");
    if (sim.policy.module_loading == SIM_LOADING_BY_ENVIRONMENT) return mode && !strcmp(mode, "EAGER");
    return sim.policy.module_loading == SIM_LOADING_EAGER;
}

/* The context in which the function runs, whatever context is current. NULL: a kernel of a library, which runs where it is launched. */
struct sim_ctx *sim_function_context(const struct sim_function *f) { return f->ctx ? f->ctx : f->module->ctx; }

CUresult sim_function_load(struct sim_ctx *ctx, struct sim_function *f)
{
    struct sim_ctx *own = sim_function_context(f);
    struct sim_load *l = sim_load_of(f->module, own ? own : ctx, true);
    return l ? sim_load_one(l, f->name) : sim_no_load(f->module, own ? own : ctx);
}

/* Some drivers load a function when it is queried, or when it is added to a graph node. */
CUresult sim_function_asked(struct sim_function *f)
{
    struct sim_ctx *c;
    if (!sim.policy.module_asks || sim_enter_context(&c)) return CUDA_SUCCESS;
    return sim_leave(SIM_VALID(f, FUNCTION) ? sim_function_load(c, f) : CUDA_SUCCESS);
}

/* Eager libraries are loaded into every context, even one that is made later. */
CUresult sim_libraries_load(struct sim_ctx *ctx)
{
    CUresult r = CUDA_SUCCESS;
    for (struct sim_module *m = modules; m && !r && eager(); m = m->next) {
        struct sim_load *l = m->library ? sim_load_of(m, ctx, true) : NULL;
        if (l) r = sim_load_code(l);
    }
    return r;
}

static CUresult load_everywhere(struct sim_module *m)
{
    CUresult r = CUDA_SUCCESS;
    for (struct sim_ctx *c = sim.contexts; c && !r; c = c->next) {
        struct sim_load *l = c->parent ? NULL : sim_load_of(m, c, true);
        if (l) r = sim_load_code(l);
    }
    return r;
}

static CUresult load_first(struct sim_module *m, struct sim_ctx *ctx)
{
    if (m->library) return eager() ? load_everywhere(m) : CUDA_SUCCESS;
    if (!ctx) return CUDA_SUCCESS;
    struct sim_load *l = sim_load_of(m, ctx, true);
    if (!l) return sim_no_load(m, ctx);
    return eager() ? sim_load_code(l) : sim_load_globals(l);
}

static struct sim_function *find_function(struct sim_module *m, const char *name)
{
    for (struct sim_function *f = m->functions; f; f = f->next)
        if (!strcmp(f->name, name)) return f;
    struct sim_function *f = m->opaque ? calloc(1, sizeof *f) : NULL;
    if (!f) return NULL;
    *f = (struct sim_function){.magic = MAGIC_FUNCTION, .module = m, .opaque = true, .timing = sim_no_timing, .next = m->functions};
    snprintf(f->name, sizeof f->name, "%s", name);
    return m->functions = f;
}

/* Adds the functions of machine code that lists them. In other machine code, any name is found. */
static void name_functions(struct sim_module *m)
{
    for (const struct sim_image *i = m->images; i; i = i->next)
        for (const struct sim_kernel *k = i->kernels; k; k = k->next) find_function(m, k->name);
}

static CUresult make(const void *image, struct sim_ctx *ctx, bool library, struct sim_module **out)
{
    struct sim_module *m = calloc(1, sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    m->magic = MAGIC_MODULE;
    m->library = library;
    m->ctx = library ? NULL : ctx;
    m->next = modules;
    modules = m;
    bool text = memcmp(image, ELFMAG, SELFMAG) != 0;
    CUresult r = read_image(m, image) ? CUDA_SUCCESS : text ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
    if (!r) name_functions(m);
    if (!r) r = load_first(m, ctx);
    if (r) free_module(m);
    else *out = m;
    return r;
}

static CUresult load(CUmodule *out, const void *image)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!out || !image) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    return sim_leave(make(image, sim_owner(c), false, out));
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rbe");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *text = size > 0 ? calloc(1, (size_t)size + 16) : NULL;
    if (text && fread(text, 1, (size_t)size, f) != (size_t)size) free(text), text = NULL;
    fclose(f);
    return text;
}

API CUresult cuModuleLoadData(CUmodule *out, const void *image) { return load(out, image); }
API CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) { return load(out, image); }
API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned n, int *o, void **v)
{
    return (void)n, (void)o, (void)v, load(out, image);
}

API CUresult cuModuleLoad(CUmodule *out, const char *path)
{
    char *image = path ? read_file(path) : NULL;
    if (!image) return sim.initialised ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_NOT_INITIALIZED;
    CUresult r = load(out, image);
    free(image);
    return r;
}

API CUresult cuModuleUnload(CUmodule m)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!SIM_VALID(m, MODULE) || m->library) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    sim_wait_context(c);
    free_module(m);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!out || !name) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!SIM_VALID(m, MODULE)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    struct sim_function *f = find_function(m, name);
    if (!f) return sim_leave(CUDA_ERROR_NOT_FOUND);
    r = sim.policy.module_handles ? sim_function_load(c, f) : CUDA_SUCCESS;
    if (!r) *out = f;
    return sim_leave(r);
}

static CUresult get_global(CUdeviceptr *at, size_t *size, struct sim_module *m, const char *name, struct sim_ctx *ctx)
{
    struct sim_load *l = sim_load_of(m, m->ctx ? m->ctx : ctx, true);
    if (!l) return sim_no_load(m, m->ctx ? m->ctx : ctx);
    for (const struct sim_global *g = l->image->globals; g; g = g->next) {
        if (strcmp(g->name, name) != 0) continue;
        CUresult r = sim_load_globals(l);
        if (at) *at = l->globals_at + g->offset;
        if (size) *size = g->size;
        return r;
    }
    return CUDA_ERROR_NOT_FOUND;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *at, size_t *size, CUmodule m, const char *name)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!name) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!SIM_VALID(m, MODULE)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    return sim_leave(get_global(at, size, m, name, c));
}

/* Counts the functions that are known by name. */
API CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule m)
{
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    if (!SIM_VALID(m, MODULE)) return CUDA_ERROR_INVALID_HANDLE;
    *count = 0;
    for (struct sim_function *f = m->functions; f; f = f->next) ++*count;
    return CUDA_SUCCESS;
}

API CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned most, CUmodule m)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!SIM_VALID(m, MODULE)) return CUDA_ERROR_INVALID_HANDLE;
    for (struct sim_function *f = m->functions; f && most; f = f->next, most--) *out++ = f;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetLoadingMode(int *out)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = eager() ? 1 : 2;
    return CUDA_SUCCESS;
}

/* ---- libraries, which are not tied to a context ---- */

API CUresult cuLibraryLoadData(CUlibrary *out, const void *image, int *jo, void **jv, unsigned jn, int *lo, void **lv, unsigned ln)
{
    (void)jo, (void)jv, (void)jn, (void)lo, (void)lv, (void)ln;
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !image) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    return sim_leave(make(image, sim_current(), true, out));
}

API CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jo, void **jv, unsigned jn, int *lo, void **lv, unsigned ln)
{
    char *image = path ? read_file(path) : NULL;
    if (!image) return sim.initialised ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_NOT_INITIALIZED;
    CUresult r = cuLibraryLoadData(out, image, jo, jv, jn, lo, lv, ln);
    free(image);
    return r;
}

API CUresult cuLibraryUnload(CUlibrary m)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(m, MODULE) || !m->library) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    for (struct sim_load *l = m->loads; l; l = l->next) sim_wait_context(l->ctx);
    free_module(m);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary m, const char *name)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !name) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!SIM_VALID(m, MODULE)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    *out = find_function(m, name);
    return sim_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

API CUresult cuLibraryGetModule(CUmodule *out, CUlibrary m)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!SIM_VALID(m, MODULE)) return CUDA_ERROR_INVALID_HANDLE;
    *out = m;
    return CUDA_SUCCESS;
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *at, size_t *size, CUlibrary m, const char *name)
{
    return cuModuleGetGlobal_v2(at, size, m, name);
}

API CUresult cuKernelGetLibrary(CUlibrary *out, CUkernel k)
{
    if (!out || !SIM_VALID(k, FUNCTION) || !k->module->library || k->ctx) return CUDA_ERROR_INVALID_HANDLE;
    *out = k->module;
    return CUDA_SUCCESS;
}

/* The context's own function for a library's kernel. */
static struct sim_function *function_in(struct sim_load *l, const struct sim_function *kernel)
{
    for (struct sim_function *f = l->functions; f; f = f->next)
        if (!strcmp(f->name, kernel->name)) return f;
    struct sim_function *f = malloc(sizeof *f);
    if (!f) return NULL;
    *f = *kernel;
    f->ctx = l->ctx;
    f->next = l->functions;
    return l->functions = f;
}

API CUresult cuKernelGetFunction(CUfunction *out, CUkernel k)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!out || !SIM_VALID(k, FUNCTION)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    struct sim_load *l = sim_load_of(k->module, c, true);
    struct sim_function *f = l ? function_in(l, k) : NULL;
    r = f ? sim_load_one(l, f->name) : l ? CUDA_ERROR_OUT_OF_MEMORY : sim_no_load(k->module, c);
    if (!r) *out = f;
    return sim_leave(r);
}

/* ---- facts about functions ---- */

enum { F_MAX_THREADS, F_SHARED, F_CONST, F_LOCAL, F_REGISTERS, F_PTX, F_BINARY, F_CACHE, F_MAX_DYNAMIC_SHARED };

static CUresult function_attribute(int *out, int what, CUfunction f)
{
    static const int values[] = {1024, 0, 0, 0, 32, 80, 80, 0};
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!SIM_VALID(f, FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
    if (what < 0 || what > 16) return CUDA_ERROR_INVALID_VALUE;
    CUresult r = sim_function_asked(f);
    if (r) return r;
    *out = what == F_LOCAL ? (int)f->local_bytes : what < F_MAX_DYNAMIC_SHARED ? values[what] : what == F_MAX_DYNAMIC_SHARED ? f->max_dynamic_shared : 0;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *out, int what, CUfunction f) { return function_attribute(out, what, f); }
API CUresult cuKernelGetAttribute(int *out, int what, CUkernel k, CUdevice d) { return (void)d, function_attribute(out, what, k); }

API CUresult cuFuncSetAttribute(CUfunction f, int what, int value)
{
    if (!SIM_VALID(f, FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
    if (what == F_MAX_DYNAMIC_SHARED) f->max_dynamic_shared = value;
    return sim_function_asked(f);
}
API CUresult cuKernelSetAttribute(int what, int value, CUkernel k, CUdevice d) { return (void)d, cuFuncSetAttribute(k, what, value); }

API CUresult cuFuncSetCacheConfig(CUfunction f, int c) { return (void)c, SIM_VALID(f, FUNCTION) ? sim_function_asked(f) : CUDA_ERROR_INVALID_HANDLE; }
API CUresult cuFuncSetSharedMemConfig(CUfunction f, int c) { return (void)c, SIM_VALID(f, FUNCTION) ? sim_function_asked(f) : CUDA_ERROR_INVALID_HANDLE; }

API CUresult cuFuncGetModule(CUmodule *out, CUfunction f)
{
    if (!out || !SIM_VALID(f, FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
    *out = f->module;
    return CUDA_SUCCESS;
}

static CUresult function_name(const char **out, CUfunction f)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!SIM_VALID(f, FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
    *out = f->name;
    return CUDA_SUCCESS;
}
API CUresult cuFuncGetName(const char **out, CUfunction f) { return function_name(out, f); }
API CUresult cuKernelGetName(const char **out, CUkernel k) { return function_name(out, k); }

static CUresult param_info(CUfunction f, size_t i, size_t *offset, size_t *size)
{
    if (!offset) return CUDA_ERROR_INVALID_VALUE;
    if (!SIM_VALID(f, FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
    if (i >= f->param_count) return CUDA_ERROR_INVALID_VALUE;
    *offset = f->param_offset[i];
    if (size) *size = f->param_size[i];
    return CUDA_SUCCESS;
}
API CUresult cuFuncGetParamInfo(CUfunction f, size_t i, size_t *offset, size_t *size) { return param_info(f, i, offset, size); }
API CUresult cuKernelGetParamInfo(CUkernel k, size_t i, size_t *offset, size_t *size) { return param_info(k, i, offset, size); }

API CUresult cuFuncIsLoaded(int *state, CUfunction f)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!state || !SIM_VALID(f, FUNCTION)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    struct sim_ctx *own = sim_function_context(f);
    struct sim_load *l = sim_load_of(f->module, own ? own : c, false);
    *state = l && sim_is_loaded(l, f->name);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuFuncLoad(CUfunction f)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    return sim_leave(SIM_VALID(f, FUNCTION) ? sim_function_load(c, f) : CUDA_ERROR_INVALID_HANDLE);
}
