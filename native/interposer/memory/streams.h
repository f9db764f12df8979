/* Streams of the application: who they are, and whether they are being captured. */
#ifndef FRACTILE_MEMORY_STREAMS_H
#define FRACTILE_MEMORY_STREAMS_H

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

extern _Atomic int fr_capture_count; /* streams of this process that are being captured */
bool fr_stream_is_capturing(CUstream s);
CUcontext fr_context_of_stream(CUstream s); /* NULL: it cannot be told */

/* A call that takes memory outside of a capture and none within one must not be taken for captured when another thread ends the capture,
 * or the context with the stream. True: s is being captured, and stays so until fr_captured; nothing else is to be held then. */
bool fr_capture_hold(CUstream s);
CUresult fr_captured(CUresult r); /* r */

/* Around a call that begins or ends a capture, or draws a stream into one. */
void fr_capture_changes_enter(CUstream s);
void fr_capture_changes_leave(void);
uint32_t fr_capture_changes(CUstream s); /* how many there were of this stream, or of one like it; of a call on its way it may be known before */

extern void (*_Atomic fr_before_stream_ends)(CUstream s);
extern void (*_Atomic fr_before_capture)(void); /* when fr_capture_count counts it already */

#define FR_NO_STREAM UINT64_MAX
uint64_t fr_stream_id(CUstream s);   /* never 0; FR_NO_STREAM: it cannot be told */
static inline CUstream fr_per_thread(CUstream s) { return s ? s : CU_STREAM_PER_THREAD; }

#endif
