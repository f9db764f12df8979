/* Linear memory that is freed in a stream (see late_free.c). */
#ifndef FRACTILE_MEMORY_LATE_FREE_H
#define FRACTILE_MEMORY_LATE_FREE_H

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fr_linear;
struct fr_shrinking;

bool fr_synchronised(CUstream s); /* true: the stream is idle, and was waited for */
/* Waits for the context by real(given), and subtracts what comes back. */
CUresult fr_context_synchronised(CUcontext c, CUresult (*real)(CUcontext), CUcontext given);

extern _Atomic uint32_t fr_late_frees;
/* The driver will free the memory when the stream, which belongs to this context, gets there. */
void fr_late_free(struct fr_linear *f, CUstream s, uint64_t stream, CUcontext context);
uint64_t fr_late_frees_so_far(void); /* read before a call that waits, which does not cover later frees */
void fr_late_frees_coming(struct fr_shrinking *s, uint64_t stream, CUcontext context); /* announces what the wait will give back */
void fr_late_frees_done(uint64_t stream, CUcontext context, uint64_t until); /* this stream, or this context, was waited for */

void fr_late_frees_look(void);           /* waits for streams that are done */
void fr_late_frees_stream_ends(CUstream s); /* it is about to be destroyed */
void fr_late_frees_context_ends(CUcontext context);

#endif
