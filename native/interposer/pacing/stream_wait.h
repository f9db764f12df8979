/* Waits for work in flight: see stream_wait.c. */
#ifndef FRACTILE_PACING_STREAM_WAIT_H
#define FRACTILE_PACING_STREAM_WAIT_H

#include "cuda_abi.h"

#include <stdbool.h>

struct fr_paced_card;
struct fr_stream_state;

bool fr_stream_state_poll(struct fr_stream_state *st);   /* true: some work was found done */
void fr_stream_states_collect(void);                     /* finished work of all streams */
void fr_stream_state_wait(struct fr_stream_state *st);   /* until some of its work in flight is done */
void fr_stream_states_drain(struct fr_paced_card *card); /* until all work is done, except in blocked streams; by the lease client */
void fr_stream_states_close(CUstream stream);            /* the stream is about to be destroyed: no other thread may use it from now on */
void fr_stream_states_tell(CUcontext context);           /* the program makes all streams of this context wait; NULL: of all contexts */
void fr_stream_states_close_all(void);                   /* a capture is about to begin, and is already counted */
void fr_stream_states_forget(CUcontext context);         /* the context is about to be destroyed ... */
void fr_stream_states_forgotten(void);                   /* ... and the driver has returned from destroying it */

#endif
