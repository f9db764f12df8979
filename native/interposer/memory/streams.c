/* Streams of the application: their identity, and whether they are being captured. */
#include "memory/streams.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/context_ends.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

_Atomic int fr_capture_count;

uint64_t fr_stream_id(CUstream s)
{
    unsigned long long id;
    if (fr_driver_has(FR_cuStreamGetId)) return REAL(cuStreamGetId)(s, &id) ? FR_NO_STREAM : id + 1;
    uint64_t thread = s == CU_STREAM_PER_THREAD ? (uint64_t)syscall(SYS_gettid) : 0;
    CUcontext c = NULL;
    if ((uintptr_t)s <= 2 && REAL(cuStreamGetCtx)(s, &c)) return FR_NO_STREAM;
    return ((uint64_t)(uintptr_t)s + (uint64_t)(uintptr_t)c + (thread << 32)) | 1ull << 63;
}

bool fr_stream_is_capturing(CUstream s)
{
    int status = 0;
    if (likely(!atomic_load_explicit(&fr_capture_count, memory_order_relaxed))) return false;
    return REAL(cuStreamIsCapturing)(s, &status) || status;
}

/* ---- captures that begin or end meanwhile ---- */

#define PLACES 256

static struct fr_mutex changing;
static _Atomic uint32_t changes[PLACES]; /* by a hash of the stream's handle */

static _Atomic uint32_t *changes_of(CUstream s) { return &changes[(uintptr_t)s * 0x9E3779B97F4A7C15ull >> 56]; }

uint32_t fr_capture_changes(CUstream s) { return atomic_load(changes_of(s)); }

void fr_capture_changes_enter(CUstream s)
{
    fr_mutex_lock(&changing);
    atomic_fetch_add(changes_of(s), 1);
}

void fr_capture_changes_leave(void) { fr_mutex_unlock(&changing); }

static struct fr_question captured; /* the query of fr_capture_hold, until fr_captured; under `changing` */

CUcontext fr_context_of_stream(CUstream s)
{
    CUcontext c = NULL;
    bool made = (uintptr_t)s > (uintptr_t)CU_STREAM_PER_THREAD;
    return (made ? REAL(cuStreamGetCtx)(s, &c) : REAL(cuCtxGetCurrent)(&c)) ? NULL : c;
}

/* A context takes its streams with it, and their handles may be reused for others. True: a call that ends this context waits
 * until fr_asked. */
static bool context_stays(CUstream s)
{
    CUcontext c = fr_context_of_stream(s);
    if (!c) return false;
    fr_question_prepare(&captured, c);
    if (!fr_may_ask(&captured)) return false;
    if (fr_context_of_stream(s) == c) return true;
    fr_asked(&captured);
    return false;
}

/* If a capture forbids this query with an error, it forbids the call as well. */
static bool is_captured(CUstream s)
{
    int status = 0;
    CUresult r = REAL(cuStreamIsCapturing)(s, &status);
    return r ? r >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && r <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD : status;
}

bool fr_capture_hold(CUstream s)
{
    if (likely(!atomic_load(&fr_capture_count))) return false;
    fr_mutex_lock(&changing);
    if (context_stays(s)) {
        if (is_captured(s)) return true;
        fr_asked(&captured);
    } else {
        atomic_fetch_add(changes_of(s), 1); /* it may be captured nevertheless */
    }
    fr_mutex_unlock(&changing);
    return false;
}

CUresult fr_captured(CUresult r)
{
    fr_asked(&captured);
    fr_mutex_unlock(&changing);
    return r;
}
