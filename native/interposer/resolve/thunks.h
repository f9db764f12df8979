/* This library's function for each symbol: see thunks.S. */
#ifndef FRACTILE_RESOLVE_THUNKS_H
#define FRACTILE_RESOLVE_THUNKS_H

#include <stdint.h>

extern const int32_t fr_functions[]; /* distance of each function from this table: needs no relocation by the loader */

/* A hook, or the thunk that jumps to the driver's function. */
static inline void *fr_symbol_function(int symbol) { return (char *)fr_functions + fr_functions[symbol]; }

#endif
