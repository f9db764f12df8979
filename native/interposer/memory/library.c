/* Libraries are tied to no context: each context that uses one has its code and its variables of its own, from the first use
 * on. Loading mode EAGER loads both into the contexts that are there when the library is loaded: it is charged in the current
 * one at once, elsewhere with its first use there. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "memory/api_memory.h"
#include "memory/image.h"
#include "memory/loaded.h"
#include "memory/module.h"
#include "memory/place.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static CUresult nothing(struct fr_loading *l) { return (void)l, CUDA_SUCCESS; }

static CUresult load(struct fr_loading *l)
{
    struct fr_place at;
    struct fr_op op = {.card = FR_NO_CARD};
    if (!l->module_out || (!l->image && !l->path)) return l->go(l);
    struct fr_image image = fr_module_read_image(l);
    if (fr_image_is_refused(&image)) return CUDA_ERROR_OUT_OF_MEMORY;
    bool now = fr_loads_eagerly() && fr_place_here(&at) && at.card != FR_NO_CARD;
    CUresult r = now ? fr_op_begin(&op, at.card, fr_parts_bytes(&image, FR_CODE | FR_GLOBALS)) : nothing(l);
    if (r) return r;
    r = l->go(l);
    if (!r && !fr_module_add((uintptr_t)*l->module_out, NULL, &image)) {
        REAL(cuLibraryUnload)(*l->module_out);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    fr_op_end(&op, now && !r ? fr_parts_keep((uintptr_t)*l->module_out, &at, FR_CODE | FR_GLOBALS) : 0);
    return r;
}

static CUresult load_data(struct fr_loading *l)
{
    return REAL(cuLibraryLoadData)(l->module_out, l->image, l->options, l->values, l->count, l->library_options, l->library_values, l->library_count);
}
static CUresult load_file(struct fr_loading *l)
{
    return REAL(cuLibraryLoadFromFile)(l->module_out, l->path, l->options, l->values, l->count, l->library_options, l->library_values, l->library_count);
}

HOOK CUresult cuLibraryLoadData(CUlibrary *out, const void *image, int *jo, void **jv, unsigned jn, int *lo, void **lv, unsigned ln)
{
    return load(&(struct fr_loading){.go = load_data, .module_out = out, .image = image, .options = jo, .values = jv, .count = jn,
                                     .library_options = lo, .library_values = lv, .library_count = ln});
}
HOOK CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jo, void **jv, unsigned jn, int *lo, void **lv, unsigned ln)
{
    return load(&(struct fr_loading){.go = load_file, .module_out = out, .path = path, .options = jo, .values = jv, .count = jn,
                                     .library_options = lo, .library_values = lv, .library_count = ln});
}

/* ---- use: the driver makes the library's module in this context, and with it its variables ---- */

static int what_is_loaded(struct fr_loading *c)
{
    CUmodule here;
    bool code = REAL(cuLibraryGetModule)(&here, (CUlibrary)(uintptr_t)c->handle) || fr_code_is_loaded(here);
    return FR_GLOBALS | (code ? FR_CODE : 0);
}

static CUresult get_global(struct fr_loading *c) { return REAL(cuLibraryGetGlobal)(c->address, c->size, (CUlibrary)(uintptr_t)c->handle, c->name); }
static CUresult get_managed(struct fr_loading *c) { return REAL(cuLibraryGetManaged)(c->address, c->size, (CUlibrary)(uintptr_t)c->handle, c->name); }
static CUresult get_module(struct fr_loading *c) { return REAL(cuLibraryGetModule)(c->module_out, (CUlibrary)(uintptr_t)c->handle); }

HOOK CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
    struct fr_loading c = {.go = get_global, .handle = (uintptr_t)library, .parts = FR_CODE | FR_GLOBALS, .loaded = what_is_loaded,
                           .address = address, .size = size, .name = name};
    return fr_load_parts(&c);
}

/* Modules with managed variables are loaded as a whole. */
HOOK CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
    struct fr_loading c = {.go = get_managed, .handle = (uintptr_t)library, .parts = FR_CODE | FR_GLOBALS, .address = address, .size = size, .name = name};
    return fr_load_parts(&c);
}

HOOK CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
    struct fr_place at;
    struct fr_loading c = {.go = get_module, .handle = (uintptr_t)library, .parts = FR_CODE | FR_GLOBALS, .loaded = what_is_loaded, .module_out = out};
    CUresult r = fr_load_parts(&c);
    if (!r && out && fr_module_known((uintptr_t)library) && fr_place_here(&at)) fr_module_alias((uintptr_t)*out, (uintptr_t)library, at.context);
    return r;
}

/* ---- and back ---- */

HOOK CUresult cuLibraryUnload(CUlibrary library)
{
    struct fr_unload u;
    fr_unload_begin(&u, (uintptr_t)library);
    CUresult r = REAL(cuLibraryUnload)(library);
    fr_unload_end(&u, r);
    return r;
}
