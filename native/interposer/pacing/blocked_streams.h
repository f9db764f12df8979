/* Streams that the program itself blocks: see blocked_streams.c. */
#ifndef FRACTILE_PACING_BLOCKED_STREAMS_H
#define FRACTILE_PACING_BLOCKED_STREAMS_H

#include <stdbool.h>

struct fr_paced_card;
struct fr_stream_state;

void fr_blocked_wait(struct fr_stream_state *st);       /* until its oldest batch is done, or it is known to be blocked */
bool fr_blocked_may_launch(struct fr_stream_state *st); /* the stream is blocked, so launches do not wait for it */
void fr_blocked_takes_more(struct fr_stream_state *st); /* a launch goes all the same: it is watched, however many batches are in flight */
void fr_blocked_settle(struct fr_paced_card *card);     /* with the gate closed: which of the streams that have not begun are blocked? */
bool fr_blocked_any(const struct fr_paced_card *card);
bool fr_blocked_resumed(struct fr_paced_card *card, bool turn); /* one that was blocked runs: its work needs a turn; in a turn: since the last look */

#endif
