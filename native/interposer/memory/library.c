/* Libraries are not tied to a context: each context that uses one has its own code and variables, from the first use on.
 * Loading mode EAGER loads both into all existing contexts when the library is loaded, and into later ones when they are made,
 * until the library is unloaded (cuLibraryLoadData in the driver API's reference). */
#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/oom_retry.h"
#include "ledger/records.h"
#include "memory/api_memory.h"
#include "memory/code_room.h"
#include "memory/context.h"
#include "memory/devices.h"
#include "memory/eager.h"
#include "memory/image.h"
#include "memory/load.h"
#include "memory/loaded.h"
#include "memory/module.h"
#include "memory/primary.h"

#include "cuda_abi.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define FIRST_ROOM 16 /* contexts */
#define DEVICES 64
#define OPTIONS 8 /* CUlibraryOption has two */
#define BINARY_IS_PRESERVED 1

static const struct fr_count everything = {0, true};

/* ---- the contexts of this process ---- */

/* The contexts into which a library is loaded at once, and what is reserved in each. */
struct everywhere {
    struct one { struct fr_place at; struct fr_load load; } *in;
    unsigned room, count, begun;
};

static size_t bytes_of(unsigned contexts) { return contexts * sizeof(struct one); }

static bool make_room(struct everywhere *e)
{
    unsigned room = e->room ? 2 * e->room : FIRST_ROOM;
    struct one *more = mmap(NULL, bytes_of(room), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED) return false;
    for (unsigned i = 0; i < e->count; i++) more[i] = e->in[i];
    if (e->room) munmap(e->in, bytes_of(e->room));
    e->in = more;
    e->room = room;
    return true;
}

static bool add(struct everywhere *e, struct fr_place at)
{
    if (at.card == FR_NO_CARD || !at.context) return true;
    if (e->count == e->room && !make_room(e)) return false;
    e->in[e->count++].at = at;
    return true;
}

/* Green contexts load into the primary context that they are parts of. False: no memory for the list. */
static bool find_contexts(struct everywhere *e)
{
    struct fr_record r = {0};
    e->count = e->begun = 0;
    for (CUdevice d = 0; d < DEVICES; d++) {
        CUcontext primary = fr_primary_context(d);
        if (primary && !add(e, (struct fr_place){.card = fr_card_of(d), .device = d, .context = primary})) return false;
    }
    while (fr_record_next(FR_CONTEXT, r.key, &r)) {
        bool itself = !r.context && !(r.a & FR_GREEN);
        if (itself && !add(e, (struct fr_place){.card = r.card, .context = (CUcontext)(uintptr_t)r.key})) return false;
    }
    return true;
}

/* ---- loading ---- */

static void end(struct everywhere *e, uint64_t library, CUresult r)
{
    for (unsigned i = 0; i < e->begun; i++) {
        e->in[i].load.handle = library;
        fr_load_end(&e->in[i].load, r ? 0 : FR_CODE | FR_GLOBALS, everything);
    }
}

/* What all contexts on a card need together. */
static uint64_t bytes_on(const struct everywhere *e, int card, const struct fr_image *image)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < e->count; i++)
        if (e->in[i].at.card == card) bytes += fr_op_bytes(fr_load_bytes(&e->in[i].at, image));
    return bytes;
}

static CUresult begin_one(struct one *one, const struct fr_image *image, struct fr_op *room)
{
    struct fr_op op;
    CUresult r = CUDA_SUCCESS;
    if (one->at.card == room->card) fr_op_split(room, &op, fr_load_bytes(&one->at, image));
    else r = fr_op_begin(&op, one->at.card, 0);
    return r ? r : fr_load_begin_image(&one->load, &one->at, image, FR_CODE | FR_GLOBALS, &op);
}

/* Takes what it needs out of `room`, the reservation on one card, and does not wait for more. If that is too little, nothing is
 * held in the end, and `missing` has the card and the bytes that are needed there. */
static CUresult begin(struct everywhere *e, const struct fr_image *image, struct fr_op *room, struct fr_op *missing)
{
    CUresult r = CUDA_SUCCESS;
    *missing = (struct fr_op){.card = FR_NO_CARD};
    if (!find_contexts(e)) return fr_op_end(room, 0), CUDA_ERROR_OUT_OF_MEMORY;
    for (; e->begun < e->count && !(r = begin_one(&e->in[e->begun], image, room)); e->begun++) {}
    if (r) {
        int card = e->in[e->begun].at.card;
        end(e, 0, r);
        *missing = (struct fr_op){.card = card, .reserved = bytes_on(e, card, image)};
    }
    fr_op_end(room, 0);
    return r;
}

static CUresult load_it(struct fr_loading *call, const struct fr_image *image, bool eagerly)
{
    CUresult r = call->go(call);
    if (r) return r;
    uint64_t library = (uintptr_t)*call->module_out;
    if (fr_module_add(library, NULL, image) && (!eagerly || fr_eager_remember(library))) return CUDA_SUCCESS;
    REAL(cuLibraryUnload)(*call->module_out);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Takes turns with contexts that are being made, so that each sees the other either entirely or not at all. It waits for memory
 * on the card that had too little, outside the turn and while it holds nothing: the threads that hold the memory may be waiting
 * for the turn. */
static CUresult load_into_all(struct everywhere *e, struct fr_loading *call, const struct fr_image *image)
{
    struct fr_op room = {.card = FR_NO_CARD}, missing;
    struct fr_retry patience = {0};
    for (;;) {
        fr_eager_enter();
        CUresult begun = begin(e, image, &room, &missing), r = begun;
        if (!begun) {
            r = load_it(call, image, true);
            end(e, r ? 0 : (uintptr_t)*call->module_out, r);
        }
        fr_eager_leave();
        if (!begun) return r;
        if (missing.card == FR_NO_CARD || !fr_retry_wait(&patience)) return begun;
        r = fr_op_begin_within(&room, missing.card, missing.reserved, &patience);
        if (r) return r;
    }
}

static CUresult load_everywhere(struct fr_loading *call, const struct fr_image *image)
{
    struct everywhere e = {.count = 0};
    CUresult r = load_into_all(&e, call, image);
    int before = errno;
    if (e.room) munmap(e.in, bytes_of(e.room));
    errno = before;
    return r;
}

static CUresult load(struct fr_loading *call)
{
    if (!call->module_out || (!call->image && !call->path)) return call->go(call);
    struct fr_image image;
    CUresult r = fr_module_look(call, &image);
    if (r) return r;
    return fr_loads_eagerly() ? load_everywhere(call, &image) : load_it(call, &image, false);
}

/* Our copy is not preserved, whatever the program states about its image. */
static CUresult load_copy(struct fr_loading *l)
{
    int options[OPTIONS];
    void *values[OPTIONS];
    unsigned count = 0;
    for (unsigned i = 0; i < l->library_count && l->library_options; i++) {
        int option = l->library_options[i];
        if (option == BINARY_IS_PRESERVED && !l->path) continue;
        if (option == BINARY_IS_PRESERVED || count == OPTIONS) return CUDA_ERROR_INVALID_VALUE;
        options[count] = option;
        values[count++] = l->library_values ? l->library_values[i] : NULL;
    }
    return REAL(cuLibraryLoadData)(l->module_out, l->copy.at, l->options, l->values, l->count, options, values, count);
}

static CUresult load_data(struct fr_loading *l)
{
    if (l->copy.at) return load_copy(l);
    return REAL(cuLibraryLoadData)(l->module_out, l->image, l->options, l->values, l->count, l->library_options, l->library_values, l->library_count);
}
static CUresult load_file(struct fr_loading *l)
{
    if (l->copy.at) return load_copy(l);
    return REAL(cuLibraryLoadFromFile)(l->module_out, l->path, l->options, l->values, l->count, l->library_options, l->library_values, l->library_count);
}

HOOK CUresult cuLibraryLoadData(CUlibrary *out, const void *image, int *jo, void **jv, unsigned jn, int *lo, void **lv, unsigned ln)
{
    return fr_module_load(&(struct fr_loading){.go = load_data, .module_out = out, .image = image, .options = jo, .values = jv, .count = jn,
                                     .library_options = lo, .library_values = lv, .library_count = ln}, load);
}
HOOK CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jo, void **jv, unsigned jn, int *lo, void **lv, unsigned ln)
{
    return fr_module_load(&(struct fr_loading){.go = load_file, .module_out = out, .path = path, .options = jo, .values = jv, .count = jn,
                                     .library_options = lo, .library_values = lv, .library_count = ln}, load);
}

/* ---- use: the driver makes the library's module in this context, and with it its variables ---- */

static void used(struct fr_load *l, CUresult r)
{
    CUmodule here;
    struct fr_count loaded = everything;
    if (!l->counts) return;
    if (!r && fr_may_ask(&l->question)) {
        if (!REAL(cuLibraryGetModule)(&here, (CUlibrary)(uintptr_t)l->handle)) loaded = fr_functions_in(here, &l->question);
        fr_asked(&l->question);
    }
    fr_load_end(l, r ? 0 : FR_GLOBALS | (loaded.functions || loaded.whole ? FR_CODE : 0), loaded);
}

HOOK CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
    struct fr_load l;
    CUresult r = fr_load_begin(&l, (uintptr_t)library, FR_LOAD_FIRST, NULL);
    if (!r) used(&l, r = REAL(cuLibraryGetGlobal)(address, size, library, name));
    return r;
}

/* Modules with managed variables are loaded as a whole. */
HOOK CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
    struct fr_load l;
    CUresult r = fr_load_begin(&l, (uintptr_t)library, FR_LOAD_FIRST, NULL);
    if (r) return r;
    r = REAL(cuLibraryGetManaged)(address, size, library, name);
    fr_load_end(&l, r ? 0 : FR_CODE | FR_GLOBALS, everything);
    return r;
}

HOOK CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
    struct fr_place at;
    struct fr_load l;
    bool green;
    CUresult r = fr_load_begin(&l, (uintptr_t)library, FR_LOAD_FIRST, NULL);
    if (r) return r;
    CUmodule module = NULL;
    r = REAL(cuLibraryGetModule)(out ? &module : NULL, library);
    used(&l, r);
    if (!r && out && fr_module_known((uintptr_t)library) && fr_load_place(&at, &green)) fr_module_alias((uintptr_t)module, (uintptr_t)library, at.context);
    if (!r && out) *out = module;
    return r;
}

/* ---- unloading ---- */

HOOK CUresult cuLibraryUnload(CUlibrary library)
{
    struct fr_unload u;
    bool turn = fr_eager_ends();
    fr_unload_begin(&u, (uintptr_t)library);
    CUresult r = REAL(cuLibraryUnload)(library);
    if (!r) fr_eager_forget((uintptr_t)library);
    fr_unload_end(&u, r);
    fr_eager_ended(turn);
    return r;
}
