/* Our function of each symbol: see thunks.S. */
#ifndef FRACTILE_RESOLVE_THUNKS_H
#define FRACTILE_RESOLVE_THUNKS_H

void *fr_symbol_function(int symbol); /* a hook, or the thunk that goes on to the driver */

#endif
