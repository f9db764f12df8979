/* Streams of the application: who they are, and whether they are being captured. */
#ifndef FRACTILE_MEMORY_STREAMS_H
#define FRACTILE_MEMORY_STREAMS_H

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

extern _Atomic int fr_capture_count; /* streams of this process that are being captured */
bool fr_stream_is_capturing(CUstream s);
#define FR_NO_STREAM UINT64_MAX
uint64_t fr_stream_id(CUstream s);   /* never 0; FR_NO_STREAM: it cannot be told */
static inline CUstream fr_per_thread(CUstream s) { return s ? s : CU_STREAM_PER_THREAD; }

#endif
