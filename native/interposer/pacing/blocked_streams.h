/* Detects streams that the program itself blocks, so that launches into them need not wait. See blocked_streams.c. */
#ifndef FRACTILE_PACING_BLOCKED_STREAMS_H
#define FRACTILE_PACING_BLOCKED_STREAMS_H

#include <stdbool.h>

struct fr_paced_card;
struct fr_stream_state;

void fr_blocked_wait(struct fr_stream_state *st);       /* until its oldest batch is done, or the stream is found to be blocked */
bool fr_blocked_may_launch(struct fr_stream_state *st); /* the stream is blocked, so launches do not wait for it */
void fr_blocked_takes_more(struct fr_stream_state *st); /* a launch goes through the closed gate: track it even if all batches are in use */
void fr_blocked_settle(struct fr_paced_card *card);     /* with the gate closed: decide which of the streams that have not begun are blocked */
bool fr_blocked_runs(const struct fr_paced_card *card); /* work that an event will show to be done runs on the card */
bool fr_blocked_any(const struct fr_paced_card *card);
/* True: a blocked stream runs, so its work needs a turn. turn: the call comes during one, and looks only at streams still marked as blocked. */
bool fr_blocked_resumed(struct fr_paced_card *card, bool turn);

#endif
