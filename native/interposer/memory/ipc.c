/* IPC handles: 64 bytes that stand for linear memory in other processes. Opening one costs nothing while its maker, or another
 * process of the container, pays; memory that no process of the container made is charged to the process that opens it, in full
 * (foreign.c).
 *
 * What is shared is what the driver shares. For a small piece that is its whole granule: the importer keeps all of it, so the
 * granule is the object, and each handle to one of its pieces is another name of it. */
#include "base/compiler.h"
#include "base/lock.h"
#include "base/message.h"
#include "resolve/real.h"
#include "ledger/descriptor.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/process.h"
#include "ledger/records.h"
#include "memory/api_pool.h"
#include "memory/api_vmm.h"
#include "memory/devices.h"
#include "memory/foreign.h"
#include "memory/granules.h"
#include "memory/handles.h"
#include "memory/holding.h"
#include "memory/linear_records.h"
#include "memory/margin_pool.h"
#include "memory/place.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- export ---- */

static struct fr_lock exporting;

/* The allocation or granule of p as an object, made by this key if it is not one yet. False: p is not known. If another thread
 * frees p meanwhile, that free gives its bytes back, so the object goes without them. */
static bool as_object(CUdeviceptr p, struct fr_key key, int *object, int *card)
{
    uint64_t bytes;
    struct fr_record seen;
    if (!fr_linear_shared(p, card, &bytes, object, &seen)) return false;
    if (*card == FR_NO_CARD || *object != FR_NO_OBJECT) return true;
    *object = fr_object_share(*card, bytes, key);
    if (*object == FR_NO_OBJECT || fr_linear_set_object(&seen, *object)) return true;
    fr_object_unmake(*object);
    *object = FR_NO_OBJECT;
    return false;
}

static void publish(CUdeviceptr p, struct fr_key key)
{
    int card, object;
    fr_lock(&exporting);
    bool ours = as_object(p, key, &object, &card) && card != FR_NO_CARD;
    if (ours && object != FR_NO_OBJECT && !fr_object_also(object, key)) object = FR_NO_OBJECT;
    fr_unlock(&exporting);
    if (ours && object == FR_NO_OBJECT && fr_process_state() == FR_ENFORCE)
        fr_say(FR_SAY_FULL, "warning: " FR_OBJECTS_FULL ": importers pay for what they import");
}

bool fr_linear_export(CUdeviceptr p, size_t size, struct fr_key *key)
{
    int card, object;
    *key = fr_descriptor_key();
    fr_lock(&exporting);
    bool ok = fr_linear_covers(p, size) && as_object(p, *key, &object, &card);
    if (ok && card == FR_NO_CARD) *key = (struct fr_key){0, 0};
    else if (ok) ok = object != FR_NO_OBJECT && fr_object_by_descriptor(object, key);
    fr_unlock(&exporting);
    return ok;
}

/* A small piece from the last granule of the quota lies in a pool, and memory of pools has no handle of this kind. The answer
 * is out of memory: there was no room for memory that has one. */
HOOK CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr p)
{
    CUipcMemHandle own;
    CUresult r = REAL(cuIpcGetMemHandle)(out ? &own : NULL, p);
    if (unlikely(r == CUDA_ERROR_INVALID_VALUE) && fr_margin_holds(p)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!r) publish(p, fr_key_of_bytes(&own)), *out = own;
    return r;
}

/* ---- import: FR_IPC, by address; b counts how often it was opened, since a driver may return one address twice ---- */

static void give_back(const struct fr_record *record)
{
    struct fr_op op;
    fr_free_begin(&op, record->card);
    fr_free_end(&op, record->object == FR_NO_OBJECT ? record->bytes : fr_object_leave(record->object));
}

static bool remember(const struct fr_record *fresh)
{
    struct fr_record r;
    fr_memory_lock();
    bool known = fr_record_find(FR_IPC, fresh->key, &r);
    if (!known) r = *fresh;
    r.b++;
    bool ok = fr_record_put(r);
    fr_memory_unlock();
    if (ok && known) give_back(fresh); /* one hold is kept for the address */
    return ok;
}

/* True if this was its last close. */
static bool leave(CUdeviceptr p, struct fr_record *r)
{
    fr_memory_lock();
    bool known = fr_record_take(FR_IPC, p, r);
    if (known && --r->b) fr_record_put(*r);
    fr_memory_unlock();
    return known && !r->b;
}

typedef CUresult (*open_call)(CUdeviceptr *, CUipcMemHandle, unsigned);

struct opening {
    struct fr_foreign foreign; /* must be first */
    open_call call;
    CUdeviceptr *out;
    CUipcMemHandle handle;
    unsigned flags;
};

static CUresult open_foreign(struct fr_foreign *f)
{
    struct opening *o = (struct opening *)f;
    return o->call(o->out, o->handle, o->flags);
}

static void close_foreign(struct fr_foreign *f) { REAL(cuIpcCloseMemHandle)(*((struct opening *)f)->out); }

/* The card that it lies on need not be the current one. */
static bool measure_foreign(struct fr_foreign *f)
{
    CUdeviceptr p = *((struct opening *)f)->out, base;
    CUdevice device;
    size_t size = 0;
    bool known = !REAL(cuMemGetAddressRange_v2)(&base, &size, p) && !REAL(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p);
    f->card = known ? fr_card_of(device) : FR_NO_CARD;
    f->bytes = fr_round_to_granules(size);
    return known;
}

static CUresult pay(struct opening *o, struct fr_record *record, struct fr_key key)
{
    struct fr_op op;
    bool made = true;
    o->foreign = (struct fr_foreign){.import = open_foreign, .drop = close_foreign, .measure = measure_foreign};
    CUresult r = fr_foreign_import(&o->foreign, &op);
    if (r) return r;
    record->card = o->foreign.card;
    record->object = fr_object_claim(record->card, o->foreign.bytes, key, &made);
    record->bytes = record->object == FR_NO_OBJECT || made ? o->foreign.bytes : 0;
    fr_op_end(&op, record->bytes);
    return CUDA_SUCCESS;
}

static CUresult open_handle(struct opening *o)
{
    struct fr_place at;
    if (!o->out) return o->call(o->out, o->handle, o->flags);
    if (!fr_place_here(&at)) return at.error;
    struct fr_key key = fr_key_of_bytes(&o->handle);
    struct fr_record record = {.class = FR_IPC, .context = at.context, .object = fr_object_join(key)};
    bool paid = record.object != FR_NO_OBJECT;
    if (paid) record.card = fr_object_card(record.object);
    CUresult r = paid ? o->call(o->out, o->handle, o->flags) : pay(o, &record, key);
    if (r) {
        fr_object_release(record.object);
        return r;
    }
    record.key = *o->out;
    if (remember(&record)) return CUDA_SUCCESS;
    REAL(cuIpcCloseMemHandle)(*o->out);
    give_back(&record);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

HOOK CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle h, unsigned flags)
{
    CUdeviceptr at = 0;
    CUresult r = open_handle(&(struct opening){.call = REAL(cuIpcOpenMemHandle), .out = out ? &at : NULL, .handle = h, .flags = flags});
    if (!r) *out = at; /* another thread may change that */
    return r;
}

HOOK CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle h, unsigned flags)
{
    CUdeviceptr at = 0;
    CUresult r = open_handle(&(struct opening){.call = REAL(cuIpcOpenMemHandle_v2), .out = out ? &at : NULL, .handle = h, .flags = flags});
    if (!r) *out = at; /* another thread may change that */
    return r;
}

static CUresult close_handle(CUdeviceptr p)
{
    struct fr_record r;
    struct fr_op op;
    if (!leave(p, &r)) return REAL(cuIpcCloseMemHandle)(p);
    fr_free_begin(&op, r.card);
    CUresult result = REAL(cuIpcCloseMemHandle)(p);
    uint64_t bytes = 0;
    if (result) remember(&r); /* the driver refused */
    else bytes = r.object != FR_NO_OBJECT ? fr_object_leave(r.object) : r.bytes;
    fr_free_end(&op, bytes);
    return result;
}

/* One thread at a time: if two threads close memory that was opened twice, the close that is last here must be the driver's
 * last, too. */
HOOK CUresult cuIpcCloseMemHandle(CUdeviceptr p)
{
    static struct fr_mutex turn;
    fr_mutex_lock(&turn);
    CUresult r = close_handle(p);
    fr_mutex_unlock(&turn);
    return r;
}
