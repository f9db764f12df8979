/* Modules and libraries: variables are on the card from the load on, code from the first use of a function (or from the load,
 * when CUDA_MODULE_LOADING says EAGER); a library's both come with the first use in a context, and again in another one.
 *
 * The image says the most that it can take, and that is charged: for all but large images it is a granule or two. Of a large
 * one (a fat binary holds code for many cards) the driver loads a part; what its count of free memory lost is charged if the
 * ledger says that nobody else in the container moved meanwhile, else the most that it can be.
 *
 * A module or library has a record (a: code, b: variables that are not loaded with it), and what is loaded of it in a context
 * has one too, under the handle with a number in its lowest bits (a: which parts); that one dies with the context. */
#include "module.h"
#include "api_memory.h"
#include "image.h"
#include "linear.h"

#define LARGE (8ull << 20)
#define PLACES 7

static struct fr_lock lock;

static bool eager(void)
{
    int mode = 0;
    return fr_has(FR_cuModuleGetLoadingMode) && !REAL(cuModuleGetLoadingMode)(&mode) && mode == 1;
}

/* ---- measuring ---- */

struct measure {
    bool on;
    size_t free;
    uint64_t used;
};

static struct measure measure_begin(int card, uint64_t bound)
{
    struct measure m = {.on = bound > LARGE};
    size_t total;
    if (m.on) m.used = fr_used(card);
    if (m.on && REAL(cuMemGetInfo_v2)(&m.free, &total)) m.on = false;
    return m;
}

/* What the driver took, or the bound. */
static uint64_t measure_end(const struct measure *m, int card, uint64_t bound)
{
    size_t now, total;
    if (!m->on || REAL(cuMemGetInfo_v2)(&now, &total) || fr_used(card) != m->used || now > m->free) return bound;
    uint64_t took = fr_granules(m->free - now);
    return took < bound ? took : bound;
}

/* ---- parts ---- */

/* The record of what is loaded in this context, or a free place for it. */
static bool find_part(uint64_t handle, CUcontext context, struct fr_record *out)
{
    uint64_t place = 0;
    for (uint64_t i = 1; i <= PLACES; i++) {
        if (!fr_record_find(FR_MODULE, handle | i, out)) place = place ? place : i;
        else if (out->context == context) return true;
    }
    *out = (struct fr_record){.class = FR_MODULE, .object = FR_NO_OBJECT, .key = handle | (place ? place : PLACES), .context = context};
    return false;
}

static uint64_t bytes_of(const struct fr_record *module, int parts)
{
    return (parts & FR_CODE ? fr_granules(module->a) : 0) + (parts & FR_GLOBALS ? fr_granules(module->b) : 0);
}

static uint64_t book(const struct fr_record *module, const struct fr_place *at, int parts, uint64_t took)
{
    struct fr_record part;
    fr_lock(&lock);
    find_part(module->key, at->context, &part);
    int new = parts & ~(int)part.a;
    uint64_t bound = bytes_of(module, new), kept = took < bound ? took : bound;
    if (kept == bound) part.a |= (uint64_t)new; /* else there may be more to come */
    part.card = at->card;
    part.bytes += kept;
    if (new && !fr_record_put(part)) kept = bound; /* never given back, rather than not counted */
    fr_unlock(&lock);
    return kept;
}

CUresult fr_module_load_parts(struct fr_loading *call)
{
    struct fr_record module, part;
    struct fr_place at;
    struct fr_op op;
    if (!fr_record_find(FR_MODULE, call->handle, &module) || !fr_here(&at)) return call->go(call);
    find_part(call->handle, at.context, &part);
    uint64_t worst = bytes_of(&module, call->parts & ~(int)part.a);
    if (!worst || at.card == FR_NO_CARD) return call->go(call);
    CUresult r = fr_begin(&op, at.card, worst);
    if (r) return r;
    struct measure m = measure_begin(at.card, worst);
    r = call->go(call);
    fr_end(&op, r ? 0 : book(&module, &at, call->parts, measure_end(&m, at.card, worst)));
    return r;
}

bool fr_module_is_library(uint64_t handle)
{
    struct fr_record module;
    return fr_record_find(FR_MODULE, handle, &module) && !module.context;
}

/* ---- modules ---- */

struct load {
    CUresult (*go)(struct load *l);
    CUmodule *out;
    const void *image;
    const char *path;
    unsigned count, library_count;
    int *options, *library_options;
    void **values, **library_values;
};

static CUresult load(struct load *l)
{
    struct fr_place at;
    struct fr_op op;
    if (!l->out || (!l->image && !l->path) || !fr_here(&at)) return l->go(l);
    struct fr_image image = l->path ? fr_image_read_file(l->path) : fr_image_read(l->image, SIZE_MAX);
    bool now = eager();
    uint64_t worst = fr_granules(image.globals) + (now ? fr_granules(image.code) : 0);
    CUresult r = fr_begin_here(&op, &at, worst);
    if (r) return r;
    struct measure m = measure_begin(at.card, worst);
    r = l->go(l);
    uint64_t took = r ? 0 : measure_end(&m, at.card, worst);
    struct fr_record record = {.class = FR_MODULE, .card = at.card, .object = FR_NO_OBJECT, .bytes = took, .context = at.context,
                               .a = now ? 0 : image.code};
    if (!r) record.key = (uintptr_t)*l->out;
    if (!r && !fr_record_put(record)) {
        REAL(cuModuleUnload)(*l->out);
        took = 0, r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    fr_end(&op, took);
    return r;
}

static CUresult load_path(struct load *l) { return REAL(cuModuleLoad)(l->out, l->path); }
static CUresult load_data(struct load *l) { return REAL(cuModuleLoadData)(l->out, l->image); }
static CUresult load_data_ex(struct load *l) { return REAL(cuModuleLoadDataEx)(l->out, l->image, l->count, l->options, l->values); }
static CUresult load_fat(struct load *l) { return REAL(cuModuleLoadFatBinary)(l->out, l->image); }

HOOK CUresult cuModuleLoad(CUmodule *out, const char *path) { return load(&(struct load){.go = load_path, .out = out, .path = path}); }
HOOK CUresult cuModuleLoadData(CUmodule *out, const void *image) { return load(&(struct load){.go = load_data, .out = out, .image = image}); }
HOOK CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values)
{
    return load(&(struct load){.go = load_data_ex, .out = out, .image = image, .count = count, .options = options, .values = values});
}
HOOK CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) { return load(&(struct load){.go = load_fat, .out = out, .image = image}); }

/* ---- libraries: known here, charged where they are used ---- */

static CUresult load_library(struct load *l)
{
    if (!l->out || (!l->image && !l->path)) return l->go(l);
    struct fr_image image = l->path ? fr_image_read_file(l->path) : fr_image_read(l->image, SIZE_MAX);
    CUresult r = l->go(l);
    if (r) return r;
    struct fr_record record = {.class = FR_MODULE, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = (uintptr_t)*l->out, .a = image.code, .b = image.globals};
    if (fr_record_put(record)) return CUDA_SUCCESS;
    REAL(cuLibraryUnload)(*l->out);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult library_data(struct load *l)
{
    return REAL(cuLibraryLoadData)(l->out, l->image, l->options, l->values, l->count, l->library_options, l->library_values, l->library_count);
}
static CUresult library_file(struct load *l)
{
    return REAL(cuLibraryLoadFromFile)(l->out, l->path, l->options, l->values, l->count, l->library_options, l->library_values, l->library_count);
}

HOOK CUresult cuLibraryLoadData(CUlibrary *out, const void *image, int *jo, void **jv, unsigned jn, int *lo, void **lv, unsigned ln)
{
    return load_library(&(struct load){.go = library_data, .out = out, .image = image, .options = jo, .values = jv, .count = jn,
                                       .library_options = lo, .library_values = lv, .library_count = ln});
}
HOOK CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jo, void **jv, unsigned jn, int *lo, void **lv, unsigned ln)
{
    return load_library(&(struct load){.go = library_file, .out = out, .path = path, .options = jo, .values = jv, .count = jn,
                                       .library_options = lo, .library_values = lv, .library_count = ln});
}

static CUresult get_global(struct fr_loading *c) { return REAL(cuLibraryGetGlobal)(c->address, c->size, (CUlibrary)(uintptr_t)c->handle, c->name); }
static CUresult get_module(struct fr_loading *c) { return REAL(cuLibraryGetModule)(c->module_out, (CUlibrary)(uintptr_t)c->handle); }

HOOK CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
    struct fr_loading c = {.go = get_global, .handle = (uintptr_t)library, .parts = FR_GLOBALS, .address = address, .size = size, .name = name};
    return fr_module_load_parts(&c);
}

/* The module of a library is another name for it: an alias keeps its functions' code where the library's is. */
HOOK CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
    struct fr_loading c = {.go = get_module, .handle = (uintptr_t)library, .module_out = out};
    return get_module(&c);
}

/* ---- and back ---- */

struct unload {
    struct fr_record records[PLACES + 1];
    struct fr_op ops[PLACES + 1];
    int count;
};

static void unload_begin(struct unload *u, uint64_t handle)
{
    u->count = 0;
    for (uint64_t i = 0; i <= PLACES; i++)
        if (fr_record_take(FR_MODULE, handle | i, &u->records[u->count])) {
            fr_free_begin(&u->ops[u->count], u->records[u->count].card);
            u->count++;
        }
}

static void unload_end(struct unload *u, CUresult r)
{
    for (int i = 0; i < u->count; i++) {
        if (r) fr_record_put(u->records[i]);
        fr_free_end(&u->ops[i], r ? 0 : u->records[i].bytes);
    }
    if (!r) fr_functions_forget();
}

HOOK CUresult cuModuleUnload(CUmodule module)
{
    struct unload u;
    if (!module) return REAL(cuModuleUnload)(module);
    unload_begin(&u, (uintptr_t)module);
    CUresult r = REAL(cuModuleUnload)(module);
    unload_end(&u, r);
    return r;
}

HOOK CUresult cuLibraryUnload(CUlibrary library)
{
    struct unload u;
    if (!library) return REAL(cuLibraryUnload)(library);
    unload_begin(&u, (uintptr_t)library);
    CUresult r = REAL(cuLibraryUnload)(library);
    unload_end(&u, r);
    return r;
}
