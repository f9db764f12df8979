/* Remembers which functions have been used, so that their code is certainly loaded:
 *
 *      fr_functions_loaded   functions, which belong to one context
 *      fr_kernels_loaded     kernels of libraries, which run in every context. Each is stored with the place of its launch: a
 *                            stream, or the current context for the streams that every context has. If there is only one
 *                            context, also with FR_ONLY_CONTEXT for these streams, so that no query for the current one is needed
 *
 * A table is only a cache: a function that another one has displaced is looked up again. Handles are reused, so the result of a
 * call is not remembered if a handle came or went since the call began to look. */
#include "memory/function_table.h"

#include "base/compiler.h"
#include "base/lock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

FR_LARGE _Atomic uintptr_t fr_functions_loaded[FR_FUNCTION_PLACES];
FR_LARGE struct fr_kernel_place fr_kernels_loaded[FR_KERNEL_PLACES];
_Atomic uint32_t fr_handle_generation;
static struct fr_lock lock;

static void write_place(struct fr_kernel_place *l, uintptr_t function, uintptr_t where, uint32_t generation)
{
    atomic_fetch_add_explicit(&l->writes, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&l->function, function, memory_order_relaxed);
    atomic_store_explicit(&l->where, where, memory_order_relaxed);
    atomic_store_explicit(&l->streams, generation, memory_order_relaxed);
    atomic_fetch_add_explicit(&l->writes, 1, memory_order_release);
}

void fr_function_remember(uintptr_t function, uint32_t generation)
{
    fr_lock(&lock);
    bool same = atomic_load(&fr_handle_generation) == generation;
    if (same) atomic_store_explicit(&fr_functions_loaded[FR_FUNCTION_PLACE(function)], function, memory_order_relaxed);
    fr_unlock(&lock);
}

void fr_kernel_remember(uintptr_t function, uintptr_t where, uint32_t generation)
{
    fr_lock(&lock);
    write_place(fr_kernel_place(function, where), function, where, generation);
    fr_unlock(&lock);
}

void fr_functions_forget(void)
{
    fr_lock(&lock);
    atomic_fetch_add(&fr_handle_generation, 1);
    for (int i = 0; i < FR_FUNCTION_PLACES; i++) atomic_store_explicit(&fr_functions_loaded[i], 0, memory_order_relaxed);
    for (int i = 0; i < FR_KERNEL_PLACES; i++)
        if (atomic_load_explicit(&fr_kernels_loaded[i].function, memory_order_relaxed)) write_place(&fr_kernels_loaded[i], 0, 0, 0);
    fr_unlock(&lock);
}

void fr_functions_stream_changes(void) { atomic_fetch_add(&fr_handle_generation, 1); }
