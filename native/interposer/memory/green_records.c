/* Records of green contexts, stored under their handles. When a reset ends the primary context of their device, what was
 * allocated in them goes with it. The green contexts themselves stay charged until they are destroyed, since it is not
 * documented when a driver gives back what they cost. But their CUcontext is then dead, and its handle may be reused. */
#include "memory/green_records.h"

#include "base/lock.h"
#include "ledger/records.h"
#include "memory/context.h"
#include "memory/context_audit.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

static struct fr_lock lock; /* for changes of an existing record */
static _Atomic bool any;    /* has there ever been one? */

bool fr_green_has(CUgreenCtx green, CUcontext context)
{
    struct fr_record record;
    fr_lock(&lock);
    bool known = fr_record_find(FR_CONTEXT, (uintptr_t)green, &record) && !(record.a & FR_GREEN_ENDED);
    record.b = (uintptr_t)context;
    if (known) fr_record_put(record);
    fr_unlock(&lock);
    if (known) atomic_store_explicit(&any, true, memory_order_relaxed);
    return known;
}

bool fr_green_device(CUcontext context, CUdevice *device)
{
    struct fr_record r = {.key = 0};
    while (atomic_load_explicit(&any, memory_order_relaxed) && fr_record_next(FR_CONTEXT, r.key, &r)) {
        *device = (CUdevice)(uint32_t)r.a;
        if (!r.context && r.a & FR_GREEN && context && r.b == (uintptr_t)context) return true;
    }
    return false;
}

bool fr_green_take(CUgreenCtx green, struct fr_record *out)
{
    fr_lock(&lock);
    bool found = fr_record_take(FR_CONTEXT, (uintptr_t)green, out);
    fr_unlock(&lock);
    return found;
}

/* The next one of this device that has not ended. */
static bool next(CUdevice device, struct fr_record *r)
{
    while (fr_record_next(FR_CONTEXT, r->key, r))
        if (!r->context && r->a & FR_GREEN && !(r->a & FR_GREEN_ENDED) && (CUdevice)(uint32_t)r->a == device) return true;
    return false;
}

static void has_ended(struct fr_record *r)
{
    fr_lock(&lock);
    if (fr_record_find(FR_CONTEXT, r->key, r)) {
        r->a |= FR_GREEN_ENDED;
        r->b = 0;
        fr_record_put(*r);
    }
    fr_unlock(&lock);
}

void fr_greens_follow(CUdevice device, CUcontext doomed, bool gone)
{
    struct fr_record r = {.key = 0};
    while (next(device, &r)) {
        CUcontext context = (CUcontext)(uintptr_t)r.b;
        if (context) fr_context_follow(context, doomed);
        if (!gone) continue;
        if (context) fr_context_forget(context);
        has_ended(&r);
    }
}
