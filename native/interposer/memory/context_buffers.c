/* Memory of a context whose size is set by limits: the stack of its threads, the buffer of printf, the heap of kernels' malloc,
 * and the memory for kernels that launch kernels.
 *
 * The default sizes are part of what a context costs. Above its default a limit is charged in full: for the stack, bytes a
 * thread times all threads that the card can hold; for buffer and heap, the limit's own bytes. That is the most that a driver
 * takes, when the limit is set or at the launch that needs it, and the old buffer may stay until the new one exists: so the
 * whole of the new one is reserved while the limit is set. Afterwards the larger of the two is kept, and a lower limit gives
 * nothing back: it is not documented when the driver gives the memory back (of the stack the documentation says that it never
 * shrinks). All of it goes with the context.
 *
 * At the launch of a kernel whose local memory does not fit, the driver enlarges the stack without a call. That is charged in
 * advance, when the function is used for the first time in a context. */
#include "memory/context_buffers.h"

#include "base/compiler.h"
#include "base/kernel.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/records.h"
#include "memory/api_memory.h"
#include "memory/context_ends.h"
#include "memory/context_users.h"
#include "memory/devices.h"
#include "memory/granules.h"
#include "memory/loaded.h"
#include "memory/place.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STACK = CU_LIMIT_STACK_SIZE, PRINTF = CU_LIMIT_PRINTF_FIFO_SIZE, HEAP = CU_LIMIT_MALLOC_HEAP_SIZE, SYNC_DEPTH, PENDING, LIMITS };
enum { SM_COUNT = 16, THREADS_OF_SM = 39 };  /* device attributes */
enum { LOCAL_SIZE = 3 };                     /* function attribute */
#define STACK_UNIT 512
#define SYNC_LEVEL (150ull << 20) /* of nested synchronisation: CUDA programming guide, device runtime */
#define PENDING_LAUNCH 36864      /* no figure is documented: a kernel's parameters at most (32,764 bytes), and a page beside them */

CUresult cuDeviceGetAttribute(int *, int, CUdevice);
CUresult cuFuncGetAttribute(int *, int, CUfunction);
CUresult cuKernelGetAttribute(int *, int, CUkernel, CUdevice);

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t stack_of(CUdevice device, uint64_t bytes)
{
    int sms = 0, threads = 0;
    uint64_t each = bytes > UINT64_MAX - STACK_UNIT ? bytes : (bytes + STACK_UNIT - 1) / STACK_UNIT * STACK_UNIT;
    if (REAL(cuDeviceGetAttribute)(&sms, SM_COUNT, device) || REAL(cuDeviceGetAttribute)(&threads, THREADS_OF_SM, device)) return UINT64_MAX;
    return times(each, (uint64_t)sms * (uint64_t)threads);
}

static uint64_t most(CUdevice device, int limit, uint64_t value)
{
    switch (limit) {
    case STACK: return fr_round_to_granules(stack_of(device, value));
    case SYNC_DEPTH: return fr_round_to_granules(times(value, SYNC_LEVEL));
    case PENDING: return fr_round_to_granules(times(value, PENDING_LAUNCH));
    default: return fr_round_to_granules(value);
    }
}

/* ---- the record of a limit: under the context's handle and a number in its lowest bits; a: the default ---- */

static uint64_t key_of(CUcontext context, int limit) { return (uintptr_t)context | (unsigned)(limit + 1); }

static bool is_known(const struct fr_place *at, int limit, struct fr_record *out)
{
    return fr_record_find(FR_CONTEXT, key_of(at->context, limit), out) && out->context == at->context;
}

/* False: the driver does not report the limit, so it will not set it either. The default is the limit that was read while there
 * is still no record: a thread that changes the limit writes the record first (remember). */
static bool find(const struct fr_place *at, int limit, struct fr_record *out)
{
    size_t now;
    if (is_known(at, limit, out)) return true;
    if (REAL(cuCtxGetLimit)(&now, limit)) return false;
    if (is_known(at, limit, out)) return true;
    *out = (struct fr_record){.class = FR_CONTEXT, .card = at->card, .object = FR_NO_OBJECT, .key = key_of(at->context, limit), .context = at->context, .a = now};
    return true;
}

/* To be called between fr_user_begin and fr_user_end. False: no memory for the table. */
static bool remember(const struct fr_place *at, int limit, const struct fr_record *seen)
{
    struct fr_record r;
    if (!fr_current_context_lives()) return true; /* the driver will refuse to set the limit */
    fr_loads_lock();
    bool ok = is_known(at, limit, &r);
    if (!ok) r = *seen, r.bytes = 0, ok = fr_record_put(r);
    fr_loads_unlock();
    return ok;
}

/* Writes what the limit needs into its record, unless that is more than the operation has reserved: then returns how much is
 * missing. If the record was moved away with a context that is about to end, a fresh one is written: until the end too much is
 * counted, and not too little. */
static uint64_t note(const struct fr_place *at, const struct fr_record *seen, uint64_t bytes, uint64_t reserved, uint64_t *more)
{
    struct fr_record r;
    fr_loads_lock();
    if (!fr_record_find(FR_CONTEXT, seen->key, &r) || r.context != at->context) r = *seen, r.bytes = 0;
    *more = bytes > r.bytes ? bytes - r.bytes : 0;
    uint64_t missing = *more > reserved ? *more - reserved : 0;
    r.bytes += *more;
    if (!missing) fr_record_put(r); /* without memory for the table the charge is never given back, which is safer than not counting it */
    fr_loads_unlock();
    return missing;
}

/* To be called between fr_user_begin and fr_user_end. The bytes in the record are charged before they are written there, since
 * another thread that ends the context gives them back at once. In a context that has already ended there is nothing to charge. */
static void book(struct fr_op *op, const struct fr_place *at, const struct fr_record *seen, uint64_t bytes)
{
    struct fr_op back;
    uint64_t more = 0, missing = 1, charged = 0; /* beyond what could be reserved */
    int card = op->card;
    while (card >= 0 && missing && fr_current_context_lives()) {
        missing = note(at, seen, bytes, op->reserved + charged, &more);
        if (missing && !fr_op_more(op, missing)) fr_charge(card, missing), charged += missing;
    }
    if (missing) more = 0;
    fr_op_end(op, more > charged ? more - charged : 0);
    if (charged <= more) return;
    fr_free_begin(&back, card);
    fr_free_end(&back, charged - more);
}

static uint64_t needed(const struct fr_place *at, int limit, size_t value, const struct fr_record *seen)
{
    return value > seen->a ? most(at->device, limit, value) : 0;
}

/* Waits for room, then calls fr_user_begin. If the context has ended meanwhile, and another one perhaps has its handle, nothing
 * is reserved and `again` is set. */
static CUresult reserve(const struct fr_place *at, int limit, size_t value, struct fr_record *seen, struct fr_op *op, struct fr_user *user, bool *again)
{
    struct fr_record now;
    size_t size;
    *again = true;
    CUresult r = REAL(cuCtxGetLimit)(&size, limit);
    if (r || !find(at, limit, seen)) return r ? r : CUDA_ERROR_INVALID_CONTEXT;
    r = fr_op_begin_at(op, at, needed(at, limit, value, seen)); /* the new buffer may be taken before the old one is freed, even if it is no larger */
    if (r) return r;
    fr_user_begin(user, at->card);
    *again = !find(at, limit, &now) || now.a != seen->a || now.bytes != seen->bytes;
    if (*again) fr_user_end(user), fr_op_end(op, 0);
    return CUDA_SUCCESS;
}

static CUresult set(const struct fr_place *at, int limit, size_t value)
{
    struct fr_record seen;
    struct fr_op op;
    struct fr_user user;
    size_t now;
    CUresult r;
    if (!REAL(cuCtxGetLimit)(&now, limit) && now == value) return CUDA_SUCCESS; /* a driver might allocate again, and hold two buffers for a moment */
    for (bool again = true; again;) {
        r = reserve(at, limit, value, &seen, &op, &user, &again);
        if (r) return r == CUDA_ERROR_OUT_OF_MEMORY ? r : REAL(cuCtxSetLimit)(limit, value); /* the driver reports what is wrong */
    }
    uint64_t bytes = needed(at, limit, value, &seen);
    r = remember(at, limit, &seen) ? REAL(cuCtxSetLimit)(limit, value) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!r && !REAL(cuCtxGetLimit)(&now, limit) && now > value && now > seen.a) bytes = most(at->device, limit, now); /* the driver rounds */
    if (r) fr_op_end(&op, 0);
    else book(&op, at, &seen, bytes);
    fr_user_end(&user);
    return r;
}

/* One call at a time in this process: whether a size grows depends on the call before. A thread waits here as long as the
 * driver waits for kernels to end; only this function takes this lock. */
HOOK CUresult cuCtxSetLimit(int limit, size_t value)
{
    static _Atomic uint32_t setting;
    struct fr_place at;
    uint32_t idle = 0;
    if (limit < 0 || limit >= LIMITS) return REAL(cuCtxSetLimit)(limit, value);
    if (!fr_place_here(&at)) return at.error;
    if (at.card == FR_NO_CARD) return REAL(cuCtxSetLimit)(limit, value);
    for (; !atomic_compare_exchange_weak(&setting, &idle, 1); idle = 0) fr_sleep_us(100);
    CUresult r = set(&at, limit, value);
    atomic_store(&setting, 0);
    return r;
}

/* ---- kernels ---- */

static uint64_t local_of(CUfunction f)
{
    int bytes = 0;
    CUdevice device;
    if (fr_driver_has(FR_cuFuncGetAttribute) && !REAL(cuFuncGetAttribute)(&bytes, LOCAL_SIZE, f)) return (uint64_t)bytes;
    if (!fr_driver_has(FR_cuKernelGetAttribute) || REAL(cuCtxGetDevice)(&device)) return 0;
    return REAL(cuKernelGetAttribute)(&bytes, LOCAL_SIZE, (CUkernel)f, device) ? 0 : (uint64_t)bytes;
}

/* Here the driver frees the old stack before it takes the new one: the launch waits for the card. So only the increase is
 * reserved. */
CUresult fr_stack_for(CUfunction f)
{
    struct fr_place at;
    struct fr_record seen;
    struct fr_op op;
    struct fr_user user;
    uint64_t local = local_of(f);
    if (local <= STACK_UNIT || !fr_place_here(&at) || at.card == FR_NO_CARD || !find(&at, STACK, &seen) || local <= seen.a) return CUDA_SUCCESS;
    uint64_t bytes = most(at.device, STACK, local);
    if (bytes <= seen.bytes) return CUDA_SUCCESS;
    CUresult r = fr_op_begin_at(&op, &at, bytes - seen.bytes);
    if (r) return r;
    fr_user_begin(&user, at.card);
    book(&op, &at, &seen, bytes);
    fr_user_end(&user);
    return CUDA_SUCCESS;
}

/* For a green context, whose memory lives on in its primary context. Returns the bytes that its own buffers held. */
uint64_t fr_buffers_take(CUcontext context)
{
    struct fr_record r;
    uint64_t bytes = 0;
    for (int limit = 0; limit < LIMITS; limit++)
        if (fr_record_take(FR_CONTEXT, key_of(context, limit), &r)) bytes += r.bytes;
    return bytes;
}
