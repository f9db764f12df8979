/* Linear memory that was freed in a stream, by cuMemFreeAsync. The driver takes it back when the stream gets there, or at the
 * next synchronisation: so it stays charged until, after the free, a call has waited for its stream or its context. Each free
 * has a record (FR_LATE) under a number of its own, since the address may be given to others before that; the record goes with
 * the context like other records. The list here says which numbers wait for which stream. */
#include "memory/late_free.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/linear_records.h"
#include "memory/pool_shrink.h"
#include "memory/streams.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

struct wait {
    uint64_t number, stream;
    CUstream handle; /* of the stream; NULL: a default stream, or one that was destroyed */
    CUcontext context;
    bool outlives; /* the memory does not belong to the context */
    int card;
};

_Atomic uint32_t fr_late_frees; /* number of waiting frees */

static struct fr_lock lock;
static struct wait *waits;
static uint32_t room, era;
static uint64_t numbers;

static void enter(void)
{
    fr_lock(&lock);
    uint32_t now = atomic_load_explicit(&fr_era, memory_order_relaxed);
    if (likely(era == now)) return;
    era = now; /* a forked child has none of its parent's memory */
    waits = NULL;
    room = 0;
    atomic_store(&fr_late_frees, 0);
}

static bool grow(void)
{
    uint32_t more = room ? room * 2 : 128;
    void *grown = room ? mremap(waits, room * sizeof *waits, more * sizeof *waits, MREMAP_MAYMOVE)
                       : mmap(NULL, more * sizeof *waits, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (grown == MAP_FAILED) return false;
    waits = grown;
    room = more;
    return true;
}

void fr_late_free(struct fr_linear *f, CUstream s, uint64_t stream, CUcontext context)
{
    enter();
    uint32_t count = atomic_load_explicit(&fr_late_frees, memory_order_relaxed);
    uint64_t number = ++numbers;
    /* Without a place in the list the charge stays until the context ends. */
    bool known = (count < room || grow()) && fr_linear_keep(f, number, context);
    if (known) {
        waits[count] = (struct wait){number, stream, (uintptr_t)s > 2 ? s : NULL, context, f->record.context != context, f->op.card};
        atomic_store(&fr_late_frees, count + 1);
    }
    fr_unlock(&lock);
    fr_free_end(&f->op, 0);
    fr_user_end(&f->user);
}

uint64_t fr_late_frees_so_far(void)
{
    enter();
    uint64_t so_far = numbers;
    fr_unlock(&lock);
    return so_far;
}

static bool waits_for(const struct wait *w, uint64_t stream, CUcontext context)
{
    return (stream != FR_NO_STREAM && w->stream == stream) || (context && w->context == context);
}

void fr_late_frees_coming(struct fr_shrinking *s, uint64_t stream, CUcontext context)
{
    uint64_t cards = 0;
    if (!atomic_load_explicit(&fr_late_frees, memory_order_relaxed)) return;
    enter();
    for (uint32_t i = 0; i < atomic_load_explicit(&fr_late_frees, memory_order_relaxed); i++)
        if (waits[i].card >= 0 && waits_for(&waits[i], stream, context)) cards |= 1ull << waits[i].card;
    fr_unlock(&lock);
    for (cards &= ~s->cards; cards; cards &= cards - 1) fr_shrinking_announce(s, __builtin_ctzll(cards));
}

/* Takes one free that waited for this out of the list. */
static bool take(uint64_t stream, CUcontext context, uint64_t until, uint64_t *number)
{
    bool found = false;
    enter();
    uint32_t count = atomic_load_explicit(&fr_late_frees, memory_order_relaxed);
    for (uint32_t i = 0; i < count && !found; i++) {
        found = waits_for(&waits[i], stream, context) && waits[i].number <= until;
        if (!found) continue;
        *number = waits[i].number;
        waits[i] = waits[count - 1];
        atomic_store(&fr_late_frees, count - 1);
    }
    fr_unlock(&lock);
    return found;
}

void fr_late_frees_done(uint64_t stream, CUcontext context, uint64_t until)
{
    uint64_t number;
    while (atomic_load(&fr_late_frees) && take(stream, context, until, &number)) fr_linear_release(number);
}

/* For the library itself, if a stream has nothing left to do: the call is a synchronisation and costs no time. */
bool fr_synchronised(CUstream s)
{
    struct fr_shrinking shrinking;
    if (atomic_load_explicit(&fr_capture_count, memory_order_relaxed) || REAL(cuStreamQuery)(s)) return false;
    uint64_t so_far = fr_late_frees_so_far();
    fr_pools_shrinking(&shrinking, FR_BRIEF);
    fr_late_frees_coming(&shrinking, fr_stream_id(s), NULL);
    CUresult r = REAL(cuStreamSynchronize)(s);
    if (!r && atomic_load(&fr_late_frees)) fr_late_frees_done(fr_stream_id(s), NULL, so_far);
    fr_pools_shrunk(&shrinking);
    return !r;
}

static struct fr_mutex asking; /* held while a stream of the list is queried: no such stream ends meanwhile */

CUresult fr_context_synchronised(CUcontext c, CUresult (*real)(CUcontext), CUcontext given)
{
    struct fr_shrinking shrinking;
    uint64_t so_far = fr_late_frees_so_far();
    fr_pools_shrinking(&shrinking, FR_WAITS);
    fr_late_frees_coming(&shrinking, FR_NO_STREAM, c);
    CUresult r = real(given);
    if (!r && atomic_load(&fr_late_frees)) fr_late_frees_done(FR_NO_STREAM, c, so_far);
    fr_pools_shrunk(&shrinking);
    return r;
}

static CUstream some_handle(uint32_t i)
{
    enter();
    bool there = i < atomic_load_explicit(&fr_late_frees, memory_order_relaxed);
    CUstream s = there ? waits[i].handle : NULL;
    fr_unlock(&lock);
    return s;
}

/* Waits for the streams that have nothing left to do; that costs no time. */
void fr_late_frees_look(void)
{
    for (uint32_t i = 0; i < atomic_load(&fr_late_frees);) {
        uint32_t before = atomic_load(&fr_late_frees);
        fr_mutex_lock(&asking);
        CUstream s = some_handle(i);
        if (s) fr_synchronised(s);
        fr_mutex_unlock(&asking);
        if (atomic_load(&fr_late_frees) >= before) i++;
    }
}

/* From now on their streams are not queried. */
static void leave_to_context(CUstream s, CUcontext context)
{
    fr_mutex_lock(&asking);
    enter();
    for (uint32_t i = 0; i < atomic_load_explicit(&fr_late_frees, memory_order_relaxed); i++)
        if (waits[i].handle && (waits[i].handle == s || waits[i].context == context)) waits[i].handle = NULL;
    fr_unlock(&lock);
    fr_mutex_unlock(&asking);
}

static bool any_waits(CUstream s, CUcontext context)
{
    bool found = false;
    if (likely(!atomic_load(&fr_late_frees))) return false;
    enter();
    for (uint32_t i = 0; i < atomic_load_explicit(&fr_late_frees, memory_order_relaxed) && !found; i++)
        found = s ? waits[i].handle == s : waits[i].context == context && waits[i].outlives;
    fr_unlock(&lock);
    return found;
}

/* Memory that has not come back by now waits for the stream's context. */
void fr_late_frees_stream_ends(CUstream s)
{
    if (!any_waits(s, NULL)) return;
    fr_synchronised(s);
    leave_to_context(s, NULL);
}

static CUresult synchronise_current(CUcontext none)
{
    (void)none;
    return REAL(cuCtxSynchronize)();
}

/* After the end nothing can be waited for. Memory of other contexts does not end with this one, so its frees are waited for
 * now. */
void fr_late_frees_context_ends(CUcontext context)
{
    CUcontext popped;
    if (any_waits(NULL, context) && !atomic_load(&fr_capture_count) && !REAL(cuCtxPushCurrent_v2)(context)) {
        fr_context_synchronised(context, synchronise_current, NULL);
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    if (atomic_load(&fr_late_frees)) leave_to_context(NULL, context);
}
