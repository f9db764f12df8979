/* Streams of the application: their identity, and whether they are being captured. */
#ifndef FRACTILE_MEMORY_STREAMS_H
#define FRACTILE_MEMORY_STREAMS_H

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

extern _Atomic int fr_capture_count; /* streams of this process that are being captured */
bool fr_stream_is_capturing(CUstream s);
CUcontext fr_context_of_stream(CUstream s); /* NULL: not known */

/* A call that takes memory outside a capture and none within one must not count as captured if another thread ends the capture,
 * or the context with the stream. True: s is being captured, and stays so until fr_captured; the caller must hold nothing else
 * until then. */
bool fr_capture_hold(CUstream s);
CUresult fr_captured(CUresult r); /* returns r */

/* Around a call that begins or ends a capture, or draws a stream into one. */
void fr_capture_changes_enter(CUstream s);
void fr_capture_changes_leave(void);
uint32_t fr_capture_changes(CUstream s); /* number of these changes, by a hash of the stream; a call under way may be counted already */

extern void (*_Atomic fr_before_stream_ends)(CUstream s);
extern void (*_Atomic fr_before_capture)(void); /* called when fr_capture_count already includes the capture */

#define FR_NO_STREAM UINT64_MAX
uint64_t fr_stream_id(CUstream s);   /* never 0; FR_NO_STREAM: not known */
static inline CUstream fr_per_thread(CUstream s) { return s ? s : CU_STREAM_PER_THREAD; }

#endif
