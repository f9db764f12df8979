/* Functions whose code is surely loaded: see function_table.c. */
#ifndef FRACTILE_MEMORY_FUNCTION_TABLE_H
#define FRACTILE_MEMORY_FUNCTION_TABLE_H

#include <stdatomic.h>
#include <stdint.h>

extern _Atomic uintptr_t fr_functions_loaded[];
#define FR_FUNCTION_PLACES 1024
#define FR_FUNCTION_PLACE(f) (((uintptr_t)(f) >> 4 ^ (uintptr_t)(f) >> 14) % FR_FUNCTION_PLACES)
void fr_functions_forget(void);      /* handles may come back for others */
void fr_functions_stream_gone(void); /* a stream's handle may come back for one of another context */

#endif
