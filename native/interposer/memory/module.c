/* Modules: their variables are on the card from the load on. Their code is there from the first use of a function, or from the
 * load if CUDA_MODULE_LOADING is EAGER or the driver decides so (modules with managed variables, kernels whose addresses are
 * stored in variables). Both are reserved for the load; of the code, what the driver reports as loaded stays charged. image.c
 * computes what the image can take. */
#include "memory/module.h"

#include "base/compiler.h"
#include "base/message.h"
#include "resolve/real.h"
#include "ledger/process.h"
#include "memory/api_memory.h"
#include "memory/code_room.h"
#include "memory/context_ends.h"
#include "memory/devices.h"
#include "memory/eager.h"
#include "memory/image.h"
#include "memory/load.h"
#include "memory/loaded.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 }; /* CU_DEVICE_ATTRIBUTE_COMPUTE_ */

/* ---- what an image takes ---- */

static void add_arch(struct fr_arches *arches, CUdevice device)
{
    int major = 0, minor = 0;
    if (REAL(cuDeviceGetAttribute)(&major, CAPABILITY_MAJOR, device)) return;
    if (REAL(cuDeviceGetAttribute)(&minor, CAPABILITY_MINOR, device)) return;
    unsigned arch = (unsigned)(major * 10 + minor);
    for (int i = 0; i < arches->count; i++)
        if (arches->of[i] == arch) return;
    arches->of[arches->count++] = arch;
}

/* The architectures of the cards that this process sees. If a card does not report one, all code counts. */
static void find_arches(struct fr_arches *arches)
{
    int count = 0;
    CUdevice device;
    arches->count = 0;
    if (REAL(cuDeviceGetCount)(&count) || count > FR_ARCHES) return;
    for (int i = 0; i < count; i++)
        if (!REAL(cuDeviceGet)(&device, i)) add_arch(arches, device);
}

/* True, with a message, if it is unknown what the image takes; never if isolation is off. */
static bool is_refused(const struct fr_image *image)
{
    if (image->unreadable && fr_process_state() != FR_OFF) {
        fr_say(FR_SAY_IMAGE, "a module is not loaded: its image is in no form known here, so what its variables take cannot be told");
        return true;
    }
    return false;
}

/* A file or a text may be changed after it was checked, so the driver gets the copy that was checked. Machine code and fat
 * binaries in memory are too large for that. */
static CUresult copy(struct fr_loading *l)
{
    if (l->path && !fr_copy_of_file(&l->copy, l->path)) return CUDA_ERROR_FILE_NOT_FOUND;
    if (l->path && fr_image_is_wrapper(l->copy.at)) return CUDA_ERROR_INVALID_IMAGE; /* its pointers mean nothing in a file */
    if (!l->path && fr_image_is_text(l->image) && !fr_copy_of_text(&l->copy, l->image)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (l->copy.at) l->image = l->copy.at;
    return CUDA_SUCCESS;
}

CUresult fr_module_look(struct fr_loading *l, struct fr_image *image)
{
    struct fr_arches arches;
    CUresult r = copy(l);
    if (r) return r;
    find_arches(&arches);
    *image = fr_image_read(l->image, l->copy.at ? l->copy.size : SIZE_MAX, &arches);
    return is_refused(image) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult fr_module_load(struct fr_loading *l, CUresult (*load)(struct fr_loading *l))
{
    CUmodule made = NULL, *out = l->module_out;
    if (out) l->module_out = &made;
    CUresult r = load(l);
    if (!r && out) *out = made;
    fr_copy_drop(&l->copy);
    return r;
}

/* ---- loading ---- */

static const struct fr_count everything = {0, true};

static struct fr_count count_loaded(const CUfunction *list, unsigned count)
{
    struct fr_count loaded = {0};
    int state = 0;
    for (unsigned i = 0; i < count; i++) {
        if (REAL(cuFuncIsLoaded)(&state, list[i])) return everything;
        loaded.functions += state != 0;
    }
    loaded.whole = count && loaded.functions == count;
    return loaded;
}

/* If the driver cannot report what is loaded, everything counts as loaded. */
static struct fr_count functions_in(CUmodule module)
{
    unsigned count = 0;
    CUfunction few[256], *list = few;
    if (fr_loads_eagerly() || !fr_driver_has(FR_cuModuleGetFunctionCount) || REAL(cuModuleGetFunctionCount)(&count, module)) return everything;
    size_t bytes = count * sizeof *list;
    if (bytes > sizeof few) list = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (list == MAP_FAILED) return everything;
    bool known = !count || !REAL(cuModuleEnumerateFunctions)(list, count, module);
    struct fr_count loaded = known ? count_loaded(list, count) : everything;
    if (list != few) munmap(list, bytes);
    return loaded;
}

struct fr_count fr_functions_in(CUmodule module, const struct fr_question *q)
{
    if (!fr_may_ask(q)) return everything;
    struct fr_count loaded = functions_in(module);
    fr_asked(q);
    return loaded;
}

static struct fr_count loaded_of(uint64_t handle, CUfunction function)
{
    CUmodule here = (CUmodule)(uintptr_t)handle;
    int state = 1;
    if (fr_module_is_library(handle) && REAL(cuLibraryGetModule)(&here, (CUlibrary)(uintptr_t)handle)) return everything;
    struct fr_count loaded = functions_in(here);
    /* Counts the function even if it is not loaded now: it may be loaded at any time. */
    if (function && fr_driver_has(FR_cuFuncIsLoaded) && !REAL(cuFuncIsLoaded)(&state, function) && !state) loaded.functions++;
    if (!loaded.functions) loaded.whole = true;
    return loaded;
}

struct fr_count fr_loaded_of(uint64_t handle, CUfunction function, const struct fr_question *q)
{
    if (!fr_may_ask(q)) return everything;
    struct fr_count loaded = loaded_of(handle, function);
    fr_asked(q);
    return loaded;
}

static CUresult load(struct fr_loading *call)
{
    struct fr_place at;
    struct fr_load l;
    if (!call->module_out || (!call->image && !call->path)) return call->go(call);
    bool green;
    if (!fr_load_place(&at, &green)) return at.error;
    struct fr_image image;
    CUresult r = fr_module_look(call, &image);
    if (!r) r = fr_load_begin_image(&l, &at, &image, FR_CODE | FR_GLOBALS, NULL);
    if (r) return r;
    l.here = true;
    l.green = green;
    r = call->go(call);
    if (!r && !fr_module_add((uintptr_t)*call->module_out, at.context, &image)) {
        REAL(cuModuleUnload)(*call->module_out);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct fr_count loaded = {0};
    if (!r) l.handle = (uintptr_t)*call->module_out, loaded = fr_functions_in(*call->module_out, &l.question);
    fr_load_end(&l, r ? 0 : FR_GLOBALS | (loaded.functions || loaded.whole ? FR_CODE : 0), loaded);
    return r;
}

static CUresult load_path(struct fr_loading *l)
{
    return l->copy.at ? REAL(cuModuleLoadData)(l->module_out, l->copy.at) : REAL(cuModuleLoad)(l->module_out, l->path);
}
static CUresult load_data(struct fr_loading *l) { return REAL(cuModuleLoadData)(l->module_out, l->image); }
static CUresult load_fat(struct fr_loading *l) { return REAL(cuModuleLoadFatBinary)(l->module_out, l->image); }
static CUresult load_data_ex(struct fr_loading *l)
{
    return REAL(cuModuleLoadDataEx)(l->module_out, l->image, l->count, l->options, l->values);
}

HOOK CUresult cuModuleLoad(CUmodule *out, const char *path) { return fr_module_load(&(struct fr_loading){.go = load_path, .module_out = out, .path = path}, load); }
HOOK CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    return fr_module_load(&(struct fr_loading){.go = load_data, .module_out = out, .image = image}, load);
}
HOOK CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values)
{
    return fr_module_load(&(struct fr_loading){.go = load_data_ex, .module_out = out, .image = image, .count = count, .options = options, .values = values}, load);
}
HOOK CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
    return fr_module_load(&(struct fr_loading){.go = load_fat, .module_out = out, .image = image}, load);
}

/* ---- unloading ---- */

HOOK CUresult cuModuleUnload(CUmodule module)
{
    struct fr_unload u;
    fr_unload_begin(&u, (uintptr_t)module);
    CUresult r = REAL(cuModuleUnload)(module);
    fr_unload_end(&u, r);
    return r;
}
