/* Waiting for what is in flight: see stream_wait.c. */
#ifndef FRACTILE_PACING_STREAM_WAIT_H
#define FRACTILE_PACING_STREAM_WAIT_H

#include "cuda_abi.h"

#include <stdbool.h>

struct fr_paced_card;
struct fr_stream_state;

bool fr_stream_state_poll(struct fr_stream_state *st);   /* true: less is in flight than was thought */
void fr_stream_states_collect(void);                     /* what is done, of all streams */
void fr_stream_state_wait(struct fr_stream_state *st);   /* until some of what is in flight is done */
void fr_stream_states_drain(struct fr_paced_card *card); /* until all is, but for streams that are blocked; by the lease client */
void fr_stream_states_close(CUstream stream);            /* it is about to be destroyed: no other thread may use it from now on */
void fr_stream_states_close_all(void);                   /* a capture is about to begin, and is counted */
void fr_stream_states_forget(CUcontext context);         /* it is about to be destroyed; then, when that is over, ... */
void fr_stream_states_forgotten(void);

#endif
