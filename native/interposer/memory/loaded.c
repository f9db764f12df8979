/* What is loaded of each module and library, in which context.
 *
 * A module or library has a record under its handle: what its image takes, its serial number, and how many places it has. What
 * is loaded of it in a context also has a record, under a key of its own, and goes with the context. A module is tied to a
 * context and has one place; a library has one for every context that used it. Keys come from a serial number, since a handle
 * may stand for another module as soon as the driver has let go of it. A third kind of record remembers a function whose code
 * is loaded, so that it is not reserved again.
 *
 * Variables take whole granules. Code shares blocks with that of other modules (code_room.c). */
#include "memory/loaded.h"

#include "base/lock.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/oom_retry.h"
#include "ledger/records.h"
#include "memory/code_room.h"
#include "memory/context_audit.h"
#include "memory/devices.h"
#include "memory/function_table.h"
#include "memory/granules.h"
#include "memory/image.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ALIAS (1ull << 63) /* in a: another name of the library in b */
#define WHOLE (1ull << 2)
enum { PLACES_BITS = 16, EACH_BITS = 20, CODE_BITS = 22, GLOBALS_BITS = 20, FIRST_BITS = 20, FUNCTIONS_SHIFT = 3 };
enum { SERIAL_SHIFT = PLACES_BITS + EACH_BITS, MOST_PLACES = (1 << PLACES_BITS) - 1 };
#define LARGE_UNIT 65536ull
#define SMALL_UNIT 4096ull

static struct fr_lock lock;
static _Atomic uint64_t serials;

void fr_loads_lock(void) { fr_lock(&lock); }
void fr_loads_unlock(void) { fr_unlock(&lock); }

/* A call loaded one function of an image that has others: so this driver loads functions one by one. */
static _Atomic bool one_by_one;

static uint64_t loads_begun, loads_ended; /* calls that may load code, under the lock */

/* ---- sizes ---- */

static uint64_t units(uint64_t bytes, uint64_t unit, unsigned bits)
{
    uint64_t n = bytes / unit + (bytes % unit != 0), most = (1ull << bits) - 1;
    return n < most ? n : most;
}

static uint64_t bits_of(uint64_t word, unsigned from, unsigned count) { return word >> from & ((1ull << count) - 1); }

static void pack(struct fr_record *module, const struct fr_image *i)
{
    bool divided = i->each && i->each < SMALL_UNIT << EACH_BITS;
    module->a = units(i->code, LARGE_UNIT, CODE_BITS) << (GLOBALS_BITS + FIRST_BITS) | units(i->globals, FR_GRANULE, GLOBALS_BITS) << FIRST_BITS |
                units(divided ? i->first : i->code, LARGE_UNIT, FIRST_BITS);
    module->b |= (divided ? units(i->each, SMALL_UNIT, EACH_BITS) : 0) << PLACES_BITS;
}

static struct fr_image image_of(const struct fr_record *module)
{
    return (struct fr_image){.code = bits_of(module->a, GLOBALS_BITS + FIRST_BITS, CODE_BITS) * LARGE_UNIT,
                             .globals = bits_of(module->a, FIRST_BITS, GLOBALS_BITS) * FR_GRANULE,
                             .first = bits_of(module->a, 0, FIRST_BITS) * LARGE_UNIT,
                             .each = bits_of(module->b, PLACES_BITS, EACH_BITS) * SMALL_UNIT};
}

/* ---- records ---- */

static bool find_module(uint64_t handle, struct fr_record *module)
{
    if (!handle || !fr_record_find(FR_MODULE, handle, module)) return false;
    return !(module->a & ALIAS) || (fr_record_find(FR_MODULE, module->b, module) && !(module->a & ALIAS));
}

static uint64_t places(const struct fr_record *module) { return bits_of(module->b, 0, PLACES_BITS); }

/* Odd, so that it is not a handle. */
static uint64_t key_of(const struct fr_record *module, uint64_t place)
{
    return (module->b >> SERIAL_SHIFT << PLACES_BITS | place) << 1 | 1;
}

/* Finds the record of what is loaded in this context, or a free place for it. Called under the lock. */
static bool find_part(const struct fr_record *module, CUcontext context, struct fr_record *out, uint64_t *place)
{
    *place = places(module);
    for (uint64_t i = 0; i < places(module); i++) {
        bool there = fr_record_find(FR_MODULE, key_of(module, i), out);
        if (there && out->context == context) return true;
        if (!there && *place == places(module)) *place = i;
    }
    *out = (struct fr_record){.class = FR_MODULE, .object = FR_NO_OBJECT, .key = key_of(module, *place), .context = context};
    return false;
}

static struct fr_count count_of(const struct fr_record *part)
{
    return (struct fr_count){(uint32_t)(part->a >> FUNCTIONS_SHIFT), part->a & WHOLE};
}

/* Different from handles and from the other keys in its lowest bits. */
static uint64_t key_of_function(CUfunction f, CUcontext context)
{
    uint64_t mixed = (uintptr_t)f * 0x9E3779B97F4A7C15ull ^ (uintptr_t)context * 0xBF58476D1CE4E5B9ull;
    return (mixed & ~7ull) | 4;
}

static bool function_is_loaded(const struct fr_record *module, CUfunction f, CUcontext context)
{
    struct fr_record r;
    if (!f || !fr_record_find(FR_MODULE, key_of_function(f, context), &r)) return false;
    return r.context == context && r.a == (uintptr_t)f && r.b == module->b >> SERIAL_SHIFT;
}

static void note_function(const struct fr_record *module, CUfunction f, CUcontext context)
{
    fr_record_put((struct fr_record){.class = FR_MODULE, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = key_of_function(f, context),
                                     .context = context, .a = (uintptr_t)f, .b = module->b >> SERIAL_SHIFT});
}

bool fr_module_known(uint64_t handle)
{
    struct fr_record module;
    return find_module(handle, &module);
}

bool fr_module_is_library(uint64_t handle)
{
    struct fr_record module;
    return find_module(handle, &module) && !module.context;
}

/* A context that is about to end has another name, which is not a handle (context.c). */
static CUcontext lives(CUcontext context) { return (uintptr_t)context & 1 ? NULL : context; }

CUcontext fr_module_context(uint64_t handle)
{
    struct fr_record module;
    return find_module(handle, &module) ? lives(module.context) : NULL;
}

void fr_function_got(CUfunction f, uint64_t library, CUcontext context)
{
    struct fr_record r;
    if (fr_record_find(FR_FUNCTION, (uintptr_t)f, &r) && r.context == context && r.a == library) return;
    fr_record_put((struct fr_record){.class = FR_FUNCTION, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = (uintptr_t)f, .context = context, .a = library});
}

CUcontext fr_function_context(CUfunction f)
{
    struct fr_record r;
    return fr_record_find(FR_FUNCTION, (uintptr_t)f, &r) && fr_module_known(r.a) ? lives(r.context) : NULL;
}

static _Atomic bool libraries;

bool fr_libraries_known(void) { return atomic_load_explicit(&libraries, memory_order_relaxed); }

bool fr_module_add(uint64_t handle, CUcontext context, const struct fr_image *image)
{
    struct fr_record module = {.class = FR_MODULE, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = handle, .context = context,
                               .b = atomic_fetch_add(&serials, 1) << SERIAL_SHIFT};
    pack(&module, image);
    if (!context) atomic_store_explicit(&libraries, true, memory_order_relaxed);
    fr_functions_forget(); /* its functions may have the handles of functions that are gone */
    return fr_record_put(module);
}

bool fr_module_alias(uint64_t handle, uint64_t library, CUcontext context)
{
    struct fr_record alias = {.class = FR_MODULE, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = handle, .context = context, .a = ALIAS, .b = library};
    struct fr_record known;
    if (handle == library || (fr_record_find(FR_MODULE, handle, &known) && known.a == ALIAS && known.b == library && known.context == context)) return true;
    fr_functions_forget();
    return fr_record_put(alias);
}

bool fr_module_image(uint64_t handle, struct fr_image *out)
{
    struct fr_record module;
    if (!find_module(handle, &module)) return false;
    *out = image_of(&module);
    return true;
}

/* ---- before a call ---- */

/* Calls of other threads may take the room that was available for this one, so it is computed again until the reservation
 * suffices. */
static CUresult promise(struct fr_load *l, struct fr_code more, uint64_t own, const struct fr_op *reserved)
{
    CUresult r = CUDA_SUCCESS;
    struct fr_retry patience = {0};
    if (reserved) l->op = *reserved;
    for (bool begun = reserved;;) {
        fr_lock(&lock);
        uint64_t missing = fr_room_missing(l->at.context, more), needed = missing + own;
        bool enough = begun && (l->op.card == FR_NO_CARD || l->op.reserved >= needed);
        if (enough && !fr_room_promise(&l->at, more, missing)) r = CUDA_ERROR_OUT_OF_MEMORY;
        if (enough && !r) l->ended = loads_ended, loads_begun++;
        fr_unlock(&lock);
        if (enough) {
            l->promised = more, l->granted = missing, l->counts = true;
        } else if (!begun) {
            r = fr_op_begin_at_within(&l->op, &l->at, needed, &patience);
            begun = !r;
        } else if (!fr_op_more(&l->op, needed - l->op.reserved)) {
            if (reserved || !fr_retry_wait(&patience)) r = CUDA_ERROR_OUT_OF_MEMORY;
            else fr_op_end(&l->op, 0), begun = false; /* nothing is held while waiting for room */
        }
        if (r && begun) fr_op_end(&l->op, 0), l->counts = false;
        if (!r && enough) fr_user_begin(&l->user, l->at.card), fr_question_prepare(&l->question, l->at.context);
        if (r || enough) return r;
    }
}

CUresult fr_load_begin_image(struct fr_load *l, const struct fr_place *at, const struct fr_image *image, int parts, const struct fr_op *reserved)
{
    *l = (struct fr_load){.op.card = FR_NO_CARD, .at = *at};
    struct fr_code code = {0};
    if (parts & FR_CODE) code = fr_code_of(image, (struct fr_count){0, true});
    return promise(l, code, code.own + (parts & FR_GLOBALS ? fr_round_to_granules(image->globals) : 0), reserved);
}

uint64_t fr_load_bytes(const struct fr_place *at, const struct fr_image *image)
{
    struct fr_code code = fr_code_of(image, (struct fr_count){0, true});
    fr_lock(&lock);
    uint64_t missing = fr_room_missing(at->context, code);
    fr_unlock(&lock);
    return missing + code.own + fr_round_to_granules(image->globals);
}

/* With the first function a driver may load the whole image, unless it has been seen not to. */
static struct fr_code most_of(const struct fr_image *image, struct fr_count now, enum fr_load_what what)
{
    struct fr_count one_more = {now.functions + 1, now.whole};
    bool whole = what == FR_LOAD_FIRST || !image->each || !atomic_load_explicit(&one_by_one, memory_order_relaxed);
    struct fr_code code = fr_code_of(image, one_more);
    return whole ? fr_code_most(code, fr_code_of(image, (struct fr_count){0, true})) : code;
}

CUresult fr_load_begin_at(struct fr_load *l, const struct fr_place *at, uint64_t handle, enum fr_load_what what, CUfunction function)
{
    struct fr_record module, part;
    uint64_t place;
    *l = (struct fr_load){.op.card = FR_NO_CARD, .at = *at, .handle = handle, .function = function};
    if (!find_module(handle, &module) || at->card == FR_NO_CARD) return CUDA_SUCCESS;
    fr_lock(&lock);
    find_part(&module, l->at.context, &part, &place);
    bool loaded = part.a & FR_GLOBALS && (what == FR_LOAD_FIRST || part.a & WHOLE || function_is_loaded(&module, function, l->at.context));
    fr_unlock(&lock);
    if (loaded) return CUDA_SUCCESS;
    struct fr_image image = image_of(&module);
    struct fr_code more = fr_code_more(fr_code_of(&image, count_of(&part)), most_of(&image, count_of(&part), what));
    return promise(l, more, more.own + (part.a & FR_GLOBALS ? 0 : image.globals), NULL);
}

/* ---- after a call ---- */

struct change {
    struct fr_code code;
    uint64_t bytes; /* besides the blocks */
};

/* A call loads its own function or the whole image. So if more functions were loaded than calls were under way meanwhile, one
 * of these calls loaded the whole image, as one piece, and each of the others loaded one function at most, if this driver does
 * that. A call that ends later has nothing to add. */
static struct fr_count loaded_now(struct fr_count was, struct fr_count loaded, uint64_t calls)
{
    if (was.whole && loaded.whole) return was;
    if (loaded.whole && loaded.functions > was.functions + calls) return (struct fr_count){was.functions + (one_by_one ? (uint32_t)calls - 1 : 0), true};
    /* If functions were loaded one by one before, the last one is one more function, and not the whole image. */
    return (struct fr_count){loaded.functions > was.functions ? loaded.functions : was.functions, was.whole || (loaded.whole && !was.functions)};
}

/* Called under the lock. */
static struct change note(uint64_t handle, const struct fr_place *at, int parts, struct fr_count loaded, uint64_t calls, CUfunction function)
{
    struct fr_record module, part;
    uint64_t place;
    struct change change = {0};
    if (!parts || !find_module(handle, &module)) return change;
    struct fr_image image = image_of(&module);
    bool new_place = !find_part(&module, at->context, &part, &place) && place == places(&module), full = new_place && place == MOST_PLACES;
    struct fr_count was = count_of(&part), now = was;
    if (parts & FR_CODE) now = loaded_now(was, loaded, calls);
    change.code = fr_code_more(fr_code_of(&image, was), fr_code_of(&image, now));
    change.bytes = change.code.own + (parts & ~(int)part.a & FR_GLOBALS ? image.globals : 0);
    part.a = (part.a & FR_GLOBALS) | (uint64_t)parts | (now.whole ? WHOLE : 0) | (uint64_t)now.functions << FUNCTIONS_SHIFT;
    part.bytes += change.bytes;
    part.card = at->card;
    module.b += new_place && !full;
    fr_record_put(module);
    if (!full) fr_record_put(part); /* without memory for it, or a place, the bytes stay charged until the process ends */
    if (function && parts & FR_CODE) note_function(&module, function, at->context);
    return change;
}

static void give_back(int card, uint64_t bytes)
{
    struct fr_op op;
    fr_free_begin(&op, card);
    fr_free_end(&op, bytes);
}

/* True if what was loaded has ended with its context. It does not end with a green context, which is only a part of its
 * context. */
static bool has_ended(const struct fr_load *l)
{
    if (!l->here || fr_current_context_lives()) return false;
    bool goes_on = l->green && fr_may_ask(&l->question);
    if (goes_on) fr_asked(&l->question);
    return !goes_on;
}

void fr_load_end(struct fr_load *l, int parts, struct fr_count loaded)
{
    if (!l->counts) return;
    if (parts && has_ended(l)) parts = 0;
    if (parts & FR_CODE && loaded.functions && !loaded.whole) atomic_store_explicit(&one_by_one, true, memory_order_relaxed);
    fr_lock(&lock);
    struct change c = note(l->handle, &l->at, parts, loaded, loads_begun - l->ended, l->function);
    loads_ended++;
    struct fr_room_change room = fr_room_keep(l->at.context, l->promised, c.code, l->granted);
    if (room.spare > 0) fr_slack_add(l->at.card, room.spare);
    fr_unlock(&lock);
    fr_op_end(&l->op, c.bytes + (room.bytes > 0 ? (uint64_t)room.bytes : 0));
    if (room.bytes < 0) give_back(l->at.card, (uint64_t)-room.bytes);
    if (room.spare < 0) fr_slack_add(l->at.card, room.spare);
    fr_user_end(&l->user);
    if (parts & FR_CODE) fr_context_audit_soon(l->at.card);
}

uint64_t fr_load_note(uint64_t handle, const struct fr_place *at, int parts, struct fr_count loaded)
{
    fr_lock(&lock);
    struct change c = note(handle, at, parts, loaded, UINT32_MAX, NULL);
    fr_room_promise(at, (struct fr_code){0}, 0);
    struct fr_room_change room = fr_room_keep(at->context, (struct fr_code){0}, c.code, 0);
    fr_slack_add(at->card, room.spare);
    fr_unlock(&lock);
    return c.bytes + (room.bytes > 0 ? (uint64_t)room.bytes : 0);
}

/* ---- unloading ---- */

static void announce(struct fr_unload *u, const struct fr_image *image, const struct fr_record *part)
{
    int card = part->card;
    if (card < 0 || card >= FR_UNLOAD_CARDS) return;
    if (!u->part[card].announced) fr_free_begin(&u->part[card].op, card);
    u->part[card].announced = true;
    fr_lock(&lock);
    uint64_t blocks = fr_room_less(part->context, fr_code_of(image, count_of(part)).pieces);
    fr_unlock(&lock);
    fr_free_most(&u->part[card].op, part->bytes + blocks);
}

/* Their handles may be reused for others. */
static void forget_all(enum fr_class class, uint64_t library)
{
    struct fr_record r = {.key = 0};
    while (fr_record_next(class, r.key, &r))
        if (r.a == library) fr_record_take(class, r.key, &r);
}

static void forget_kernels(uint64_t library)
{
    forget_all(FR_KERNEL_USED, library);
    forget_all(FR_FUNCTION, library);
}

/* From now on no other thread finds it. */
void fr_unload_begin(struct fr_unload *u, uint64_t handle)
{
    struct fr_record part;
    u->known = handle && fr_record_take(FR_MODULE, handle, &u->module);
    for (int i = 0; i < FR_UNLOAD_CARDS; i++) u->part[i].announced = false, u->part[i].bytes = 0;
    if (u->known) fr_functions_forget(); /* before the driver can give their handles to others */
    if (u->known) forget_kernels(handle);
    if (!u->known || u->module.a & ALIAS) return;
    struct fr_image image = image_of(&u->module);
    for (uint64_t i = 0; i < places(&u->module); i++)
        if (fr_record_find(FR_MODULE, key_of(&u->module, i), &part)) announce(u, &image, &part);
}

/* What ended with a context meanwhile was given back there. */
static void take_parts(struct fr_unload *u)
{
    struct fr_record part;
    struct fr_image image = image_of(&u->module);
    for (uint64_t i = 0; i < places(&u->module); i++) {
        if (!fr_record_take(FR_MODULE, key_of(&u->module, i), &part)) continue;
        bool new = part.card >= 0 && part.card < FR_UNLOAD_CARDS && !u->part[part.card].announced;
        if (new) announce(u, &image, &part); /* it was loaded during the call */
        fr_lock(&lock);
        struct fr_room_change room = fr_room_leave(part.context, fr_code_of(&image, count_of(&part)).pieces);
        fr_slack_add(part.card, room.spare);
        fr_unlock(&lock);
        if (part.card >= 0 && part.card < FR_UNLOAD_CARDS) u->part[part.card].bytes += part.bytes + (room.bytes < 0 ? (uint64_t)-room.bytes : 0);
    }
}

void fr_unload_end(struct fr_unload *u, CUresult r)
{
    if (!u->known) return;
    if (r) fr_record_put(u->module);
    else if (!(u->module.a & ALIAS)) take_parts(u);
    for (int i = 0; i < FR_UNLOAD_CARDS; i++)
        if (u->part[i].announced) fr_free_end(&u->part[i].op, u->part[i].bytes);
    if (!r) fr_functions_forget();
}
