/* The arbiter's decisions: which container may use which card, and for how long. This code uses no clock, socket or file.
 *
 *      seat (a tenant at a card):
 *
 *      AWAY --want--> WAITING --grant--> HOLDING --done--> AWAY or WAITING
 *                        ^                  |
 *                        |                  |--its work ends soon, another seat is next--> LATE (draining) --done--> AWAY or WAITING
 *                        |                  '--lease over and not back in time--> LATE --done--> AWAY or WAITING
 *                        '-- limit used up: waits until its credit has grown
 *
 * One tenant holds a card at a time, or, while the card has time to spare, all tenants that want it (shared_turns.c).
 *
 * A tenant is charged from the grant until it has given the card back, however long that takes: overrun is debt. Of the tenants that want a
 * card, the one with the least *virtual time* (time held / weight) is next. So over any period all tenants have held the card in proportion
 * to their weights, whatever the length of their kernels. A tenant that was away comes back at the card's virtual time (that of its holders,
 * without their overruns), less a small credit, so idle time is not saved up. But an absence costs at most as much as holding the card for
 * all that time would have. A late tenant shares the card with the holder: each is charged its part, by the number of its contexts. A hard
 * limit is a credit that grows by the limit's percentage of the time, and that holding the card uses up. Nobody knows whether a tenant that is
 * late has work on the card, or was stopped. So beside it a tenant with a limit is charged only a part of the time within its *tolerance*;
 * beyond that, all of the time uses up its credit. It gets back what the late tenant has worked when that one is done and says so. A tenant that works on several
 * cards at once gets them together or not at all. */
#ifndef FRACTILE_ARBITER_SCHEDULE_H
#define FRACTILE_ARBITER_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#define SCHEDULE_CARDS 64
#define SCHEDULE_TENANTS 2048
#define SCHEDULE_LONGEST 10000000ull  /* ns: a lease is this times the tenant's share of the weights present ... */
#define SCHEDULE_SHORTEST 5000000ull  /* ... but not below this, unless a limit cuts it to ... */
#define SCHEDULE_LEAST 2000000ull     /* ... this: shorter leases would mostly be hand-over */
#define SCHEDULE_GRACE 100000000ull   /* time after the end of a lease, before the next tenant is let in anyway ... */
#define SCHEDULE_FIRST_GRACE 300000000ull /* ... for a tenant whose kernels are not known yet ... */
#define SCHEDULE_CARD_GRACE 2000000ull /* ... for a tenant that waits for another card: its kernels may wait for that ... */
#define SCHEDULE_SELF_GRACE 50000000ull /* ... or for another of its processes. Most processes on one card do not, so this is no shorter than SCHEDULE_GRACE for two ... */
#define SCHEDULE_JOIN 30000000ull /* ... and that long after the end of its turn, and then ever more seldom, its other processes are let in for SCHEDULE_LEAST */
#define SCHEDULE_LONG_GRACE 3000000000ull /* ... and at most, for a tenant whose kernels have been long before */

#define SCHEDULE_PATIENCE 1200000000ull /* most time of a card that all unexpected overruns together may take at once: four first graces */
#define SCHEDULE_PATIENCE_PART 10u /* it grows by the time divided by this; when it is used up, tenants not known to have long kernels have ... */
#define SCHEDULE_SHORT_GRACE 10000000ull /* ... this grace */

#define SCHEDULE_PASSED_ON 400000ull /* a turn is passed on this long before it is over; if it takes longer, both tenants have the card ... */
#define SCHEDULE_AHEAD 2000000ull     /* (the next tenant is chosen and notified this long before that: it is awake when its turn begins) */
#define SCHEDULE_SLICES 5000000ull   /* ... but not before the driver has given the next one a slice or two, which takes this long */
#define SCHEDULE_TOGETHER 5000000ull /* a gang requests card by card: cards not requested this long after the first are not waited for */

#define SCHEDULE_SPARE 500000000ull  /* most idle time to save up: for this long several tenants may have the card together, see shared_turns.c */
#define SCHEDULE_REOPEN 20000000ull  /* idle time needed before they may have it together again */
#define SCHEDULE_STINT 215000000ull  /* a tenant that works for longer without a break does not share */
#define SCHEDULE_LAG 30000000ll      /* most time of the card by which one tenant may fall behind another while they share */
#define SCHEDULE_LOOK 10000000ull    /* how often that is checked */
#define SCHEDULE_ALONE 1000000000ull /* no other container at work for this long */

#define SCHEDULE_TOLERANCE 500000000ull /* most time that a tenant with a limit may leave to tenants that are late, without paying for it ... */
#define SCHEDULE_TOLERANCE_PART 64u /* ... it grows by the time divided by this: in the long run a limit is exceeded by 1.6 points at most */

#define SCHEDULE_LONGEST_DEBT 2000000000ull /* most time, taken by others from a tenant with a limit, that it can make up for */

struct schedule_terms {
    uint32_t weight;   /* > 0 */
    uint32_t limit;    /* hard limit, percent of the time; 0 or >= 100: none */
    uint32_t priority; /* higher goes first, within its weight */
};

struct schedule_seat {
    struct schedule_terms terms;
    bool present, wants, holds, recalled, late;
    bool told; /* it was notified that it shares its turn */
    bool draining; /* late, but not to blame: it has announced that it is almost done */
    bool asks;     /* a process without a turn has requested one */
    bool incomplete; /* it has or had a turn here that is not over, and another of its processes or cards waits for one: see may_hold() */
    uint64_t gang;        /* bit set of cards that it wants together, including this one */
    int64_t virtual_time; /* ns held at weight 100 */
    int64_t credit;       /* ns that its limit still lets it hold */
    uint64_t tolerance;   /* what is left of SCHEDULE_TOLERANCE ... */
    uint64_t left_to_silent; /* ... and the others' parts of the time beside silent tenants, whether tolerated or paid for */
    uint64_t silent_ns, worked_ns; /* its own part while it was silent in this turn; how long its work took, as its processes say */
    uint64_t credit_at, charged_at, granted_at, over_at, left_at, wanted_at, stint_at, ends_at; /* ends_at: announced, or drains since; 0: none */
    uint64_t joined_at; /* late, and other processes of it were let in: see see_to_late() */
    bool waits;         /* it understands grants that come before the turn begins */
    uint32_t processes, contexts; /* number of its processes that have the turn, and of their contexts; 0: unknown, counts as one */
    uint32_t follows;   /* the tenant whose turn was passed on to this one */
    uint64_t behind;    /* when that turn should be over; 0: it is over, or there was none */
    uint64_t sooner_by; /* how much sooner than predicted that turn was over */
    bool early;         /* that turn is over already, and this tenant was not notified yet */
    uint64_t pause_ns, visit_ns; /* means of its last absences, and of the times that it had the card in between */
    uint64_t held_before;        /* held_ns when it came last */
    bool held_off;        /* since the last charge, its long kernel waits for a tenant that has just been here (anticipate.c) ... */
    uint64_t held_off_ns; /* ... and the time that it has waited so since its last turn */
    uint64_t overrun_ns, longest_overrun; /* charged since the end of this lease; the longest of its recent leases */
    /* for the status */
    uint64_t held_ns, waited_ns;
    uint64_t throttled_ns; /* part of waited_ns: it was first in line, and only its limit held it back */
    uint64_t leases, overruns, lates;
};

struct schedule {
    uint32_t cards, tenants; /* highest number in use + 1 */
    int16_t holder[SCHEDULE_CARDS], reserved[SCHEDULE_CARDS]; /* tenant; -1: none */
    int16_t awaited[SCHEDULE_CARDS]; /* tenant for which the idle card waits, since the last charge (anticipate.c); -1: none */
    int64_t virtual_time[SCHEDULE_CARDS];
    bool exclusive;         /* never share a card at the same time */
    bool open[SCHEDULE_CARDS]; /* all tenants that want the card have it together; there is no holder */
    uint64_t spare[SCHEDULE_CARDS], spare_at[SCHEDULE_CARDS];
    uint64_t patience[SCHEDULE_CARDS], patience_at[SCHEDULE_CARDS]; /* what is left of SCHEDULE_PATIENCE */
    uint32_t seated[SCHEDULE_CARDS]; /* number of tenants with a seat at the card: */
    uint16_t seat_of[SCHEDULE_CARDS][SCHEDULE_TENANTS];
    struct schedule_seat seats[SCHEDULE_CARDS][SCHEDULE_TENANTS]; /* unused seats are never touched, and take no memory */
};

enum schedule_what { SCHEDULE_GRANT, SCHEDULE_BEGIN, SCHEDULE_RECALL, SCHEDULE_LATE, SCHEDULE_JOINED };
struct schedule_decision {
    enum schedule_what what;
    uint32_t card, tenant;
    uint64_t begins; /* of a grant: nothing may be launched before; 0: at once */
    uint64_t until; /* of a grant: the end of the lease; 0: until it is recalled */
    bool shared;    /* other tenants may have the card too, or (SCHEDULE_JOINED) have it from now on */
};

void schedule_init(struct schedule *s); /* must be in static storage, or initialised before */
void schedule_seat(struct schedule *s, uint32_t card, uint32_t tenant, struct schedule_terms terms, uint64_t now); /* also to change the terms */
void schedule_leave(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now);
/* Whether the tenant understands a turn that is granted before it begins, and waits for its beginning. */
void schedule_waits(struct schedule *s, uint32_t card, uint32_t tenant, bool waits);
void schedule_want(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t gang, uint64_t now);
void schedule_done(struct schedule *s, uint32_t card, uint32_t tenant, bool wants_more, uint64_t now);

/* The number of the tenant's processes that have the turn, or the rest of it, and of their contexts. Time that several tenants have together
 * is divided equally between their contexts. */
void schedule_processes(struct schedule *s, uint32_t card, uint32_t tenant, uint32_t processes, uint32_t contexts, uint64_t now);

/* A process says, before its part of the turn is done, how long its work took. The longest counts. */
void schedule_worked(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t ns);

void schedule_used(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t ns, uint64_t now); /* charges time used outside of turns */

/* The holder will be done shortly after `when` (0: unknown). If another tenant is next, it is notified ahead (SCHEDULE_AHEAD) and begins at
 * `when`, with its first kernels behind the holder's last ones. */
void schedule_ending(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t when, uint64_t now);

/* Does another seat have unfinished work on the card: a turn that was passed on, or one whose holder is late? */
bool schedule_is_behind_another(const struct schedule *s, uint32_t card, uint32_t tenant);

/* Returns the next thing to do, if any. Call it until it returns false: then nothing is due before *again (0: nothing until an event). */
bool schedule_decide(struct schedule *s, uint64_t now, struct schedule_decision *out, uint64_t *again);

/* For the status: brings accounts up to now; returns the GPU time that a tenant has had in advance, so that others come first or it waits for
 * its limit. */
void schedule_settle(struct schedule *s, uint64_t now);
uint64_t schedule_debt(const struct schedule *s, uint32_t card, uint32_t tenant);

#endif
