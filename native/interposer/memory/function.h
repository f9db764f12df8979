/* What is known to be loaded, as a launch looks at it: see function.c. */
#ifndef FRACTILE_FUNCTION_H
#define FRACTILE_FUNCTION_H

#include "fractile.h"

#define FR_LOADED_PLACES 4096
#define FR_LAST_COMMON_STREAM 2 /* NULL, legacy, per thread: they exist in every context */

struct fr_loaded {
    _Atomic uint32_t writes;  /* odd: being written */
    _Atomic uint32_t streams; /* generation of the streams' handles when it was written */
    _Atomic uintptr_t function, where;
};
extern struct fr_loaded fr_loaded_where[];
extern _Atomic uint32_t fr_stream_generation;

static inline struct fr_loaded *fr_loaded_place(uintptr_t function, uintptr_t where)
{
    uint64_t x = (function ^ where << 7) * 0x9E3779B97F4A7C15ull;
    return &fr_loaded_where[x >> 52];
}

static inline bool fr_is_loaded(uintptr_t function, uintptr_t where)
{
    struct fr_loaded *l = fr_loaded_place(function, where);
    uint32_t before = atomic_load_explicit(&l->writes, memory_order_acquire);
    bool same = atomic_load_explicit(&l->function, memory_order_relaxed) == function && atomic_load_explicit(&l->where, memory_order_relaxed) == where &&
                atomic_load_explicit(&l->streams, memory_order_relaxed) == atomic_load_explicit(&fr_stream_generation, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    return same && !(before & 1) && atomic_load_explicit(&l->writes, memory_order_relaxed) == before;
}

/* Is it known without asking the driver that this launch loads nothing? In a stream that every context has, a library's kernel
 * runs in the current context, which only the driver knows: then the answer is no. */
static inline bool fr_function_ready(CUfunction f, CUstream stream)
{
    uintptr_t at = (uintptr_t)f;
    if (likely(atomic_load_explicit(&fr_functions_loaded[FR_FUNCTION_PLACE(f)], memory_order_relaxed) == at)) return true;
    return (uintptr_t)stream > FR_LAST_COMMON_STREAM && at && fr_is_loaded(at, (uintptr_t)stream);
}

#endif
