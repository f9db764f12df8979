/* What is loaded of each module and library, in which context.
 *
 * A module or library has a record under its handle (a: its sizes in granules, b: its serial
 * number, and how many places it has). What is loaded of
 * it in a context has one too, under a key of its own (a: which parts, b: the handle), and dies with the context. A module is
 * tied to a context and has one place; a library has one for every context that used it. Keys come from a serial number, since
 * a handle may stand for another module as soon as the driver has let go of it.
 *
 * A part is charged once, with whole granules for each module: the most that it can take, whatever the driver packs together.
 * Nothing that it says afterwards tells less for certain: its count of free memory is that of the whole card. */
#include "memory/loaded.h"

#include "base/lock.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/records.h"
#include "memory/function_table.h"
#include "memory/granules.h"
#include "memory/image.h"
#include "memory/place.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define GRANULES_BITS 24
#define ALIAS (1ull << 63) /* in a: another name of the library in b */
#define PLACES_BITS 16

static struct fr_lock lock;
static _Atomic uint64_t serials;

/* ---- sizes ---- */

static uint64_t granules(uint64_t bytes)
{
    uint64_t n = fr_round_to_granules(bytes) / FR_GRANULE, most = (1ull << GRANULES_BITS) - 1;
    return n < most ? n : most;
}

static uint64_t pack(const struct fr_image *image) { return granules(image->code) << GRANULES_BITS | granules(image->globals); }

static uint64_t packed_bytes(uint64_t a, int parts)
{
    uint64_t code = a >> GRANULES_BITS & ((1ull << GRANULES_BITS) - 1), globals = a & ((1ull << GRANULES_BITS) - 1);
    return ((parts & FR_CODE ? code : 0) + (parts & FR_GLOBALS ? globals : 0)) * FR_GRANULE;
}

uint64_t fr_parts_bytes(const struct fr_image *image, int parts) { return packed_bytes(pack(image), parts); }

/* ---- records ---- */

static bool find_module(uint64_t handle, struct fr_record *module)
{
    if (!handle || !fr_record_find(FR_MODULE, handle, module)) return false;
    return !(module->a & ALIAS) || (fr_record_find(FR_MODULE, module->b, module) && !(module->a & ALIAS));
}

static uint64_t places(const struct fr_record *module) { return module->b & ((1ull << PLACES_BITS) - 1); }

/* Odd, so that it is no handle. */
static uint64_t key_of(const struct fr_record *module, uint64_t place)
{
    return (module->b >> PLACES_BITS << PLACES_BITS | place) << 1 | 1;
}

/* The record of what is loaded in this context, or a free place for it. Under the lock. */
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

bool fr_module_add(uint64_t handle, CUcontext context, const struct fr_image *image)
{
    struct fr_record module = {.class = FR_MODULE, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = handle, .context = context, .a = pack(image),
                               .b = atomic_fetch_add(&serials, 1) << PLACES_BITS};
    return fr_record_put(module);
}

bool fr_module_alias(uint64_t handle, uint64_t library, CUcontext context)
{
    struct fr_record alias = {.class = FR_MODULE, .card = FR_NO_CARD, .object = FR_NO_OBJECT, .key = handle, .context = context, .a = ALIAS, .b = library};
    return handle == library || fr_record_put(alias);
}

int fr_loaded_parts(uint64_t handle, CUcontext context)
{
    struct fr_record module, part = {0};
    uint64_t place;
    fr_lock(&lock);
    if (find_module(handle, &module)) find_part(&module, context, &part, &place);
    fr_unlock(&lock);
    return (int)part.a;
}

uint64_t fr_parts_keep(uint64_t handle, const struct fr_place *at, int parts)
{
    struct fr_record module, part;
    uint64_t place, bytes = 0;
    fr_lock(&lock);
    if (find_module(handle, &module)) {
        find_part(&module, at->context, &part, &place);
        bytes = packed_bytes(module.a, parts & ~(int)part.a);
        part.a |= (uint64_t)parts;
        part.bytes += bytes;
        part.card = at->card;
        module.b += place == places(&module); /* a new place */
        fr_record_put(module);
        fr_record_put(part); /* without memory for it the bytes stay charged until the process ends */
    }
    fr_unlock(&lock);
    return bytes;
}

/* ---- loading ---- */

CUresult fr_load_parts(struct fr_loading *call)
{
    struct fr_record module;
    struct fr_place at;
    struct fr_op op;
    if (!find_module(call->handle, &module) || !fr_place_here(&at) || at.card == FR_NO_CARD) return call->go(call);
    uint64_t worst = packed_bytes(module.a, call->parts & ~fr_loaded_parts(call->handle, at.context));
    if (!worst) return call->go(call);
    CUresult r = fr_op_begin(&op, at.card, worst);
    if (r) return r;
    r = call->go(call);
    int parts = r ? 0 : call->loaded ? call->loaded(call) : call->parts;
    fr_op_end(&op, parts ? fr_parts_keep(call->handle, &at, parts) : 0);
    return r;
}

/* ---- and back ---- */

static void announce(struct fr_unload *u, int card)
{
    if (card < 0 || card >= FR_UNLOAD_CARDS || u->part[card].announced) return;
    u->part[card].announced = true;
    fr_free_begin(&u->part[card].op, card);
}

/* From now on nobody finds it. */
void fr_unload_begin(struct fr_unload *u, uint64_t handle)
{
    struct fr_record part;
    u->known = handle && fr_record_take(FR_MODULE, handle, &u->module);
    for (int i = 0; i < FR_UNLOAD_CARDS; i++) u->part[i].announced = false, u->part[i].bytes = 0;
    if (!u->known || u->module.a & ALIAS) return;
    for (uint64_t i = 0; i < places(&u->module); i++)
        if (fr_record_find(FR_MODULE, key_of(&u->module, i), &part)) announce(u, part.card);
}

/* What went with a context meanwhile was given back there. */
static void take_parts(struct fr_unload *u)
{
    struct fr_record part;
    for (uint64_t i = 0; i < places(&u->module); i++) {
        if (!fr_record_take(FR_MODULE, key_of(&u->module, i), &part)) continue;
        announce(u, part.card);
        if (part.card >= 0 && part.card < FR_UNLOAD_CARDS) u->part[part.card].bytes += part.bytes;
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
