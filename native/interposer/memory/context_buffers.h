/* Memory of a context whose size is set by limits (see context_buffers.c). */
#ifndef FRACTILE_MEMORY_CONTEXT_BUFFERS_H
#define FRACTILE_MEMORY_CONTEXT_BUFFERS_H

#include "ledger/records.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

CUresult fr_stack_for(CUfunction function); /* before the first launch of a function: reserves the stack that it needs */
uint64_t fr_buffers_take(CUcontext context); /* what a green context's own buffers held, when it ends */

/* Is it the record of a limit? True while its context ends, too. */
static inline bool fr_is_buffer(const struct fr_record *r) { return r->class == FR_CONTEXT && r->context && (r->key & 7 || r->key >> 63); }

#endif
