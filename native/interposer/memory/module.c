/* Modules: variables are on the card from the load on, code from the first use of a function, or from the load: when
 * CUDA_MODULE_LOADING says EAGER, and whenever the driver chooses so (modules with managed variables). Both are reserved for
 * the load; the code stays charged unless the driver says that it is not loaded. What the image can take: image.c. */
#include "memory/module.h"

#include "base/compiler.h"
#include "base/message.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/process.h"
#include "memory/api_memory.h"
#include "memory/image.h"
#include "memory/loaded.h"
#include "memory/place.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 }; /* CU_DEVICE_ATTRIBUTE_COMPUTE_ */

bool fr_loads_eagerly(void)
{
    int mode = 0;
    return fr_driver_has(FR_cuModuleGetLoadingMode) && !REAL(cuModuleGetLoadingMode)(&mode) && mode == 1;
}

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

/* Those of the cards that this process sees. A card that cannot say makes all code count. */
static void find_arches(struct fr_arches *arches)
{
    int count = 0;
    CUdevice device;
    arches->count = 0;
    if (REAL(cuDeviceGetCount)(&count) || count > FR_ARCHES) return;
    for (int i = 0; i < count; i++)
        if (!REAL(cuDeviceGet)(&device, i)) add_arch(arches, device);
}

struct fr_image fr_module_read_image(struct fr_loading *l)
{
    struct fr_arches arches;
    find_arches(&arches);
    return l->path ? fr_image_read_file(l->path, &arches) : fr_image_read(l->image, SIZE_MAX, &arches);
}

bool fr_image_is_refused(const struct fr_image *image)
{
    if (image->unreadable && fr_process_state() != FR_OFF) {
        fr_say(FR_SAY_IMAGE, "a module is not loaded: its image is in no form known here, so what its variables take cannot be told");
        return true;
    }
    return false;
}

/* ---- loading ---- */

/* The driver's word on its first function. Without one: there is no code, or it cannot be told. */
bool fr_code_is_loaded(CUmodule module)
{
    unsigned count = 0;
    int state = 1;
    CUfunction first;
    if (fr_loads_eagerly()) return true;
    if (!fr_driver_has(FR_cuModuleGetFunctionCount) || REAL(cuModuleGetFunctionCount)(&count, module)) return true;
    if (!count) return false;
    if (REAL(cuModuleEnumerateFunctions)(&first, 1, module)) return true;
    return REAL(cuFuncIsLoaded)(&state, first) || state != 0;
}

static CUresult load(struct fr_loading *l)
{
    struct fr_place at;
    struct fr_op op;
    if (!l->module_out || (!l->image && !l->path) || !fr_place_here(&at)) return l->go(l);
    struct fr_image image = fr_module_read_image(l);
    if (fr_image_is_refused(&image)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = fr_op_begin_at(&op, &at, fr_parts_bytes(&image, FR_CODE | FR_GLOBALS));
    if (r) return r;
    r = l->go(l);
    if (!r && !fr_module_add((uintptr_t)*l->module_out, at.context, &image)) {
        REAL(cuModuleUnload)(*l->module_out);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    int parts = r ? 0 : FR_GLOBALS | (fr_code_is_loaded(*l->module_out) ? FR_CODE : 0);
    fr_op_end(&op, r ? 0 : fr_parts_keep((uintptr_t)*l->module_out, &at, parts));
    return r;
}

static CUresult load_path(struct fr_loading *l) { return REAL(cuModuleLoad)(l->module_out, l->path); }
static CUresult load_data(struct fr_loading *l) { return REAL(cuModuleLoadData)(l->module_out, l->image); }
static CUresult load_fat(struct fr_loading *l) { return REAL(cuModuleLoadFatBinary)(l->module_out, l->image); }
static CUresult load_data_ex(struct fr_loading *l)
{
    return REAL(cuModuleLoadDataEx)(l->module_out, l->image, l->count, l->options, l->values);
}

HOOK CUresult cuModuleLoad(CUmodule *out, const char *path) { return load(&(struct fr_loading){.go = load_path, .module_out = out, .path = path}); }
HOOK CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    return load(&(struct fr_loading){.go = load_data, .module_out = out, .image = image});
}
HOOK CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values)
{
    return load(&(struct fr_loading){.go = load_data_ex, .module_out = out, .image = image, .count = count, .options = options, .values = values});
}
HOOK CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
    return load(&(struct fr_loading){.go = load_fat, .module_out = out, .image = image});
}

/* ---- and back ---- */

HOOK CUresult cuModuleUnload(CUmodule module)
{
    struct fr_unload u;
    fr_unload_begin(&u, (uintptr_t)module);
    CUresult r = REAL(cuModuleUnload)(module);
    fr_unload_end(&u, r);
    return r;
}
