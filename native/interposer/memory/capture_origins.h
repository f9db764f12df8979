/* The streams in which captures have begun and not ended. */
#ifndef FRACTILE_MEMORY_CAPTURE_ORIGINS_H
#define FRACTILE_MEMORY_CAPTURE_ORIGINS_H

#include "cuda_abi.h"

#include <stdbool.h>

/* To be called between fr_capture_changes_enter and fr_capture_changes_leave, after the driver's call. */
void fr_capture_began(CUstream s);
void fr_capture_ended(CUstream s);
void fr_capture_stream_ended(CUstream s); /* it was destroyed, whether it captured or not */

/* As with records: the captures of a context take another name before it ends, and its own name again if it stays. */
void fr_captures_rename(CUcontext from, CUcontext to);
void fr_captures_end_with(CUcontext context);

#endif
