/* Our function of each symbol: see thunks.S. */
#ifndef FRACTILE_RESOLVE_THUNKS_H
#define FRACTILE_RESOLVE_THUNKS_H

#include <stdint.h>

extern const int32_t fr_functions[]; /* distance of each from this table: nothing for the loader to relocate */

/* A hook, or the thunk that goes on to the driver. */
static inline void *fr_symbol_function(int symbol) { return (char *)fr_functions + fr_functions[symbol]; }

#endif
