/* Streams of the application: who they are, and whether they are being captured. */
#include "memory/streams.h"

#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/api_pool.h"

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
