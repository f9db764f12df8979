/* Declarations shared by schedule.c, shared_turns.c and anticipate.c. */
#ifndef FRACTILE_ARBITER_SCHEDULE_PARTS_H
#define FRACTILE_ARBITER_SCHEDULE_PARTS_H

#include "schedule.h"

#define NOBODY (-1)

/* for EACH_SEAT(s, card, i): iterates over the tenants that have a seat at the card, in the order of their numbers. */
#define EACH_SEAT(s, card, i) (uint32_t i = 0, at_ = 0; at_ < (s)->seated[card] && (i = (s)->seat_of[card][at_], true); at_++)

int64_t schedule_claim(const struct schedule_seat *t); /* the least claim gets the next turn */
void schedule_come_back(const struct schedule *s, uint32_t card, struct schedule_seat *t, uint64_t now);
int64_t schedule_credit_to_begin(const struct schedule_seat *t); /* of a seat with a limit */

static inline bool limited(const struct schedule_seat *t) { return t->terms.limit > 0 && t->terms.limit < 100; }
static inline bool has_credit(const struct schedule_seat *t) { return !limited(t) || t->credit >= schedule_credit_to_begin(t); }
/* Work of a late tenant may be waiting for a kernel that another of its processes would launch, here or on another card. So that tenant has
 * its next turns all the same. Other late tenants have none before their work is done. */
static inline bool may_go_on(const struct schedule_seat *t) { return !t->late || (t->incomplete && !t->draining); }
static inline bool may_hold(const struct schedule_seat *t) { return t->present && t->wants && !t->holds && may_go_on(t) && has_credit(t); }
static inline bool busy(const struct schedule_seat *t) { return t->present && (t->wants || t->holds || t->late); }
static inline uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }
/* How long a turn may last beyond its end before others go on. */
uint64_t schedule_grace(const struct schedule *s, uint32_t card, const struct schedule_seat *t);
/* Takes an unexpected overrun, since the turn's end at `since`, from the card's patience. */
void schedule_was_patient(struct schedule *s, uint32_t card, const struct schedule_seat *t, uint64_t since, uint64_t now);

/* anticipate.c */
void schedule_note_pause(struct schedule_seat *t, uint64_t now);
bool schedule_expects(const struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now); /* the tenant's turn should be short */
/* True: the tenant gets no turn now, but may at *again. */
bool schedule_anticipates(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now, uint64_t *again);

/* shared_turns.c */
void schedule_count_spare(struct schedule *s, uint32_t card, uint64_t now); /* call before anything changes */
/* True: *out has to be done. */
bool schedule_together(struct schedule *s, uint32_t card, uint64_t now, struct schedule_decision *out, uint64_t *again);
bool schedule_drains(const struct schedule *s, uint32_t card); /* a shared turn was recalled and is not over */

#endif
