/* Functions whose code is certainly loaded (see function_table.c). A launch gets its answer here, without a call. */
#ifndef FRACTILE_MEMORY_FUNCTION_TABLE_H
#define FRACTILE_MEMORY_FUNCTION_TABLE_H

#include "base/compiler.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

extern _Atomic uintptr_t fr_functions_loaded[];
#define FR_FUNCTION_PLACES 1024
#define FR_FUNCTION_PLACE(f) (((uintptr_t)(f) >> 4 ^ (uintptr_t)(f) >> 14) % FR_FUNCTION_PLACES)
void fr_function_remember(uintptr_t function, uint32_t generation);
void fr_kernel_remember(uintptr_t function, uintptr_t where, uint32_t generation);
void fr_functions_forget(void);      /* handles may be reused for others */
void fr_functions_stream_changes(void); /* a stream ended, or was made: its handle may have been that of a stream in another context */

/* Kernels of libraries, each with the place where it is launched: a stream, or a context. */
#define FR_KERNEL_PLACES 4096
#define FR_LAST_COMMON_STREAM 2 /* NULL, legacy, per thread: they exist in every context */
#define FR_ONLY_CONTEXT 1       /* the place of these if there is one context (fr_one_context); not a handle */

struct fr_kernel_place {
    _Atomic uint32_t writes;  /* odd: being written */
    _Atomic uint32_t streams; /* generation of the streams' handles when it was written */
    _Atomic uintptr_t function, where;
};
extern struct fr_kernel_place fr_kernels_loaded[];
extern _Atomic uint32_t fr_handle_generation;

static inline struct fr_kernel_place *fr_kernel_place(uintptr_t function, uintptr_t where)
{
    uint64_t x = (function ^ where << 7) * 0x9E3779B97F4A7C15ull;
    return &fr_kernels_loaded[x >> 52];
}

static ALWAYS_INLINE bool fr_kernel_is_loaded(uintptr_t function, uintptr_t where)
{
    struct fr_kernel_place *l = fr_kernel_place(function, where);
    uint32_t before = atomic_load_explicit(&l->writes, memory_order_acquire);
    bool same = atomic_load_explicit(&l->function, memory_order_relaxed) == function && atomic_load_explicit(&l->where, memory_order_relaxed) == where &&
                atomic_load_explicit(&l->streams, memory_order_relaxed) == atomic_load_explicit(&fr_handle_generation, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    return same && !(before & 1) && atomic_load_explicit(&l->writes, memory_order_relaxed) == before;
}

#endif
