/* Modules and libraries: what they hold of the card. Variables are there from the load on; code is loaded with the first
 * use of one of its functions (CUDA_MODULE_LOADING=EAGER: with the module), as since CUDA 12.2. */
#include "module.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FATBIN_WRAPPER 0x466243b1u
#define FATBIN 0xba55ed50u

static struct sim_module *modules;

static void free_module(struct sim_module *m)
{
    for (struct sim_module **p = &modules; *p; p = &(*p)->next)
        if (*p == m) {
            *p = m->next;
            break;
        }
    sim_give(m->charge);
    struct sim_region *r = m->globals_at ? sim_region_at(m->globals_at) : NULL;
    if (r) sim_free_region(r);
    for (struct sim_function *f = m->functions, *next; f; f = next) next = f->next, f->magic = 0, free(f);
    for (struct sim_global *g = m->globals, *next; g; g = next) next = g->next, free(g);
    m->magic = 0;
    free(m);
}

void sim_modules_forget(struct sim_ctx *ctx)
{
    for (struct sim_module *m = modules, *next; m; m = next) {
        next = m->next;
        if (m->ctx != ctx) continue;
        if (!m->library) {
            free_module(m);
            continue;
        }
        sim_give(m->charge);
        m->charge = 0;
        m->loaded = false;
        m->ctx = NULL;
        m->globals_at = 0; /* the region goes with the context */
    }
}

static size_t elf_size(const unsigned char *image)
{
    Elf64_Ehdr h;
    memcpy(&h, image, sizeof h);
    return (size_t)h.e_shoff + (size_t)h.e_shnum * h.e_shentsize;
}

/* Machine code says nothing about its kernels: any name is found, any parameters are taken. */
static bool read_image(struct sim_module *m, const void *image)
{
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    const unsigned char *bytes = image;
    if (magic == FATBIN_WRAPPER) {
        const void *inner;
        memcpy(&inner, bytes + 8, sizeof inner);
        return inner && read_image(m, inner);
    }
    if (magic == FATBIN) {
        uint64_t size;
        memcpy(&size, bytes + 8, sizeof size);
        m->code_bytes = (size_t)size + 16;
        return m->opaque = true;
    }
    if (!memcmp(image, ELFMAG, SELFMAG)) {
        m->code_bytes = elf_size(image);
        return m->opaque = true;
    }
    m->code_bytes = strlen(image);
    return sim_parse_ptx(m, image);
}

static bool eager(void)
{
    const char *mode = getenv("CUDA_MODULE_LOADING");
    return mode && !strcmp(mode, "EAGER");
}

static CUresult load_globals(struct sim_module *m, struct sim_ctx *ctx)
{
    if (!m->global_bytes || m->globals_at) return CUDA_SUCCESS;
    return sim_alloc_linear(ctx, m->global_bytes, SIM_MODULE, &m->globals_at);
}

static CUresult load_code(struct sim_module *m, struct sim_ctx *ctx)
{
    if (m->loaded) return CUDA_SUCCESS;
    if (m->library && !m->ctx) m->ctx = ctx;
    m->charge = sim_take(ctx->card, SIM_MODULE, (size_t)sim_round(m->code_bytes, sim.granule), m->code_bytes);
    if (!m->charge) return CUDA_ERROR_OUT_OF_MEMORY;
    m->loaded = true;
    return load_globals(m, ctx);
}

CUresult sim_function_load(struct sim_ctx *ctx, struct sim_function *f) { return load_code(f->module, ctx); }

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
    if (!r && !library) r = load_globals(m, ctx);
    if (!r && ctx && eager()) r = load_code(m, ctx);
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
    return sim_leave(make(image, c, false, out));
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

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!out || !name) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!SIM_VALID(m, MODULE)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    struct sim_function *f = find_function(m, name);
    if (!f) return sim_leave(CUDA_ERROR_NOT_FOUND);
    *out = f;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *at, size_t *size, CUmodule m, const char *name)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!name) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!SIM_VALID(m, MODULE)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    for (struct sim_global *g = m->globals; g; g = g->next) {
        if (strcmp(g->name, name) != 0) continue;
        r = load_globals(m, c);
        if (at) *at = m->globals_at + g->offset;
        if (size) *size = g->size;
        return sim_leave(r);
    }
    return sim_leave(CUDA_ERROR_NOT_FOUND);
}

API CUresult cuModuleGetLoadingMode(int *out)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = eager() ? 1 : 2;
    return CUDA_SUCCESS;
}

/* ---- libraries: not tied to a context ---- */

API CUresult cuLibraryLoadData(CUlibrary *out, const void *image, int *jo, void **jv, unsigned jn, int *lo, void **lv, unsigned ln)
{
    (void)jo, (void)jv, (void)jn, (void)lo, (void)lv, (void)ln;
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !image) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    return sim_leave(make(image, NULL, true, out));
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
    if (m->ctx) sim_wait_context(m->ctx);
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

API CUresult cuKernelGetFunction(CUfunction *out, CUkernel k)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!out || !SIM_VALID(k, FUNCTION)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    *out = k;
    return sim_leave(load_code(k->module, c));
}

/* ---- facts about functions ---- */

enum { F_MAX_THREADS, F_SHARED, F_CONST, F_LOCAL, F_REGISTERS, F_PTX, F_BINARY, F_CACHE, F_MAX_DYNAMIC_SHARED };

static CUresult function_attribute(int *out, int what, CUfunction f)
{
    static const int values[] = {1024, 0, 0, 0, 32, 80, 80, 0};
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!SIM_VALID(f, FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
    if (what < 0 || what > 16) return CUDA_ERROR_INVALID_VALUE;
    *out = what == F_LOCAL ? (int)f->local_bytes : what < F_MAX_DYNAMIC_SHARED ? values[what] : what == F_MAX_DYNAMIC_SHARED ? f->max_dynamic_shared : 0;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *out, int what, CUfunction f) { return function_attribute(out, what, f); }
API CUresult cuKernelGetAttribute(int *out, int what, CUkernel k, CUdevice d) { return (void)d, function_attribute(out, what, k); }

API CUresult cuFuncSetAttribute(CUfunction f, int what, int value)
{
    if (!SIM_VALID(f, FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
    if (what == F_MAX_DYNAMIC_SHARED) f->max_dynamic_shared = value;
    return CUDA_SUCCESS;
}
API CUresult cuKernelSetAttribute(int what, int value, CUkernel k, CUdevice d) { return (void)d, cuFuncSetAttribute(k, what, value); }

API CUresult cuFuncSetCacheConfig(CUfunction f, int c) { return (void)c, SIM_VALID(f, FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
API CUresult cuFuncSetSharedMemConfig(CUfunction f, int c) { return (void)c, SIM_VALID(f, FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }

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
    if (!state || !SIM_VALID(f, FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
    *state = f->module->loaded;
    return CUDA_SUCCESS;
}

API CUresult cuFuncLoad(CUfunction f)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    return sim_leave(SIM_VALID(f, FUNCTION) ? load_code(f->module, c) : CUDA_ERROR_INVALID_HANDLE);
}
