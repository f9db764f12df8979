/* The driver's real functions. gen/symbols.h has FR_<symbol> for every symbol of the table.
 *
 * An entry of fr_real is empty until its first use. REAL finds the driver and the function then, so a call through it always works. A
 * function that the driver lacks returns CUDA_ERROR_NOT_FOUND, and without a driver CUDA_ERROR_NO_DEVICE (NVML: FUNCTION_NOT_FOUND,
 * LIBRARY_NOT_FOUND). fr_driver_has reports whether the driver has a function. */
#ifndef FRACTILE_RESOLVE_REAL_H
#define FRACTILE_RESOLVE_REAL_H

#include "base/compiler.h"

#include "symbols.h"

#include <stdbool.h>

extern void *fr_real[FR_SYMBOLS];
void *fr_resolve(int symbol); /* never NULL */
static inline void *fr_real_function(int symbol)
{
    void *function = __atomic_load_n(&fr_real[symbol], __ATOMIC_RELAXED);
    return likely(function) ? function : fr_resolve(symbol);
}
static inline void *fr_known_function(int symbol) { return __atomic_load_n(&fr_real[symbol], __ATOMIC_RELAXED); } /* NULL: not resolved yet */
#define REAL(name) ((__typeof__(&name))fr_real_function(FR_##name))
bool fr_driver_has(int symbol);

#endif
