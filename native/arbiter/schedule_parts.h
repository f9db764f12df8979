/* What schedule.c and shared_turns.c have in common. */
#ifndef FRACTILE_ARBITER_SCHEDULE_PARTS_H
#define FRACTILE_ARBITER_SCHEDULE_PARTS_H

#include "schedule.h"

#define NOBODY (-1)

/* for EACH_SEAT(s, card, i): the tenants that have a seat at the card, in the order of their numbers. */
#define EACH_SEAT(s, card, i) (uint32_t i = 0, at_ = 0; at_ < (s)->seated[card] && (i = (s)->seat_of[card][at_], true); at_++)

int64_t schedule_claim(const struct schedule_seat *t); /* by which turns are given out */
void schedule_come_back(const struct schedule *s, uint32_t card, struct schedule_seat *t, uint64_t now);
int64_t schedule_credit_to_begin(const struct schedule_seat *t); /* of one with a limit */

static inline bool limited(const struct schedule_seat *t) { return t->terms.limit > 0 && t->terms.limit < 100; }
static inline bool has_credit(const struct schedule_seat *t) { return !limited(t) || t->credit >= schedule_credit_to_begin(t); }
static inline bool may_hold(const struct schedule_seat *t) { return t->present && t->wants && !t->holds && !t->late && has_credit(t); }
static inline bool busy(const struct schedule_seat *t) { return t->present && (t->wants || t->holds || t->late); }
static inline uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }
uint64_t schedule_grace(const struct schedule *s, uint32_t card, const struct schedule_seat *t); /* so long after its end a turn may last before others go on */
void schedule_was_patient(struct schedule *s, uint32_t card, const struct schedule_seat *t, uint64_t since, uint64_t now); /* with a turn that was over then */

/* anticipate.c: nothing is given to the tenant now, but at *again */
bool schedule_anticipates(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now, uint64_t *again);

/* shared_turns.c */
void schedule_count_spare(struct schedule *s, uint32_t card, uint64_t now); /* before anything changes */
bool schedule_together(struct schedule *s, uint32_t card, uint64_t now, struct schedule_decision *out, uint64_t *again); /* true: *out is to be done */
bool schedule_drains(const struct schedule *s, uint32_t card); /* a turn that was shared is recalled and not over */

#endif
