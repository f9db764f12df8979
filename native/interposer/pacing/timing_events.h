/* Measures kernels and finds out what is done by events recorded in the streams: see timing_events.c. */
#ifndef FRACTILE_PACING_TIMING_EVENTS_H
#define FRACTILE_PACING_TIMING_EVENTS_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct fr_prediction;
struct fr_stream_state;

bool fr_timing_before_launch(struct fr_stream_state *st, bool dry); /* true: a batch begins, with its first event */
void fr_timing_after_launch(struct fr_stream_state *st, struct fr_prediction *prediction, uint64_t now, uint64_t ns, bool may_wait);
void fr_timing_launch_failed(struct fr_stream_state *st); /* called instead if the launch failed */

/* With the state locked: */
void fr_timing_collect(struct fr_stream_state *st);        /* finished batches */
bool fr_timing_has_begun(struct fr_stream_state *st);      /* the oldest batch runs, or has run */
bool fr_timing_may_be_blocked(struct fr_stream_state *st); /* the oldest batch may be waiting for the program rather than for the card */
bool fr_timing_may_wait(struct fr_stream_state *st);       /* the oldest batch may wait for the program although it has begun */
bool fr_timing_runs(struct fr_stream_state *st);           /* the oldest batch has begun and is not done; by the lease client */
void fr_timing_goes_on(struct fr_stream_state *st);        /* work that the program held back now runs */
void fr_timing_drain(struct fr_stream_state *st);          /* waits for all work that has begun */
uint64_t fr_timing_due(struct fr_stream_state *st);        /* when the oldest batch should be done */
void fr_timing_close(struct fr_stream_state *st);          /* records an event behind the last launch */
void fr_timing_forget(struct fr_stream_state *st);         /* its events died with their context */
void fr_timing_forget_last(CUcontext context);             /* and so did the event that was reached last */

#endif
