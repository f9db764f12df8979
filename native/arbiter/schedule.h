/* Who may feed which card, and for how long: the decisions of the arbiter, without a clock, a socket or a file.
 *
 *      seat (a tenant at a card):
 *
 *      AWAY --want--> WAITING --grant--> HOLDING --done--> AWAY or WAITING
 *                        ^                  |
 *                        |                  |--its work ends soon, another seat is next--> LATE (draining) --done--> AWAY or WAITING
 *                        |                  '--lease over and not back in time--> LATE --done--> AWAY or WAITING
 *                        '-- limit used up: waits until its credit has grown
 *
 * One holds a card at a time, or, while the card has time to spare, all who want it (shared_turns.c).
 *
 * Time held is charged from the grant until the tenant has let go, however long that takes: overrun is debt. Between tenants
 * that want a card, the one with the least *virtual time* (time held / weight) is next, so that over any while all have
 * held in proportion to their weights, whatever the length of their kernels. Who was away comes back at the card's virtual time
 * (that of its holders, without what they overran), less a small credit: idle time is not saved up; but an absence costs at
 * most what holding the card all that time would have. Who is late shares the card with the holder: each is charged its part, by the number of its processes. A hard limit is a credit that grows by so many percent of the
 * time, and is used up by holding. A tenant that works on several cards at once gets them together or not at all. */
#ifndef FRACTILE_ARBITER_SCHEDULE_H
#define FRACTILE_ARBITER_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#define SCHEDULE_CARDS 64
#define SCHEDULE_TENANTS 2048
#define SCHEDULE_LONGEST 10000000ull  /* ns: a lease is this, times the tenant's share of the weights present ... */
#define SCHEDULE_SHORTEST 5000000ull  /* ... but not below this, unless a limit cuts it to ... */
#define SCHEDULE_LEAST 2000000ull     /* ... this: shorter leases would mostly be hand-over */
#define SCHEDULE_GRACE 100000000ull   /* after the end of a lease, before the next tenant is let in all the same ... */
#define SCHEDULE_FIRST_GRACE 300000000ull /* ... for one of whose kernels nothing is known yet ... */
#define SCHEDULE_LONG_GRACE 3000000000ull /* ... at most so long for one whose kernels have been long before */

#define SCHEDULE_PATIENCE 1200000000ull /* what all unexpected overruns on a card may take of its time at once: four first graces; ... */
#define SCHEDULE_PATIENCE_PART 10u /* ... it grows by this part of the time; when it is used up, who is not known to have long kernels has a grace of ... */
#define SCHEDULE_SHORT_GRACE 10000000ull /* ... this */

#define SCHEDULE_PASSED_ON 400000ull /* a turn is passed on so long before it is over; if that takes longer, both have the card */
#define SCHEDULE_AHEAD 2000000ull     /* ... and who is next is decided, and told, so long before that: it is awake when its turn begins */
#define SCHEDULE_SLICES 5000000ull   /* ... but not before the driver has given the next one a slice or two */
#define SCHEDULE_TOGETHER 5000000ull /* a gang asks card by card: so long after the first, what it did not ask for it does not want */

#define SCHEDULE_SPARE 500000000ull  /* of idle time: for so long several may have the card together, see shared_turns.c */
#define SCHEDULE_REOPEN 20000000ull  /* of it, before they may again */
#define SCHEDULE_STINT 215000000ull  /* a tenant that works for longer without a break has no part in it */
#define SCHEDULE_LAG 30000000ll      /* who is behind another by more, of the card's time, has been overreached */
#define SCHEDULE_LOOK 10000000ull    /* how often that is looked at */
#define SCHEDULE_ALONE 1000000000ull /* no other container at work for this long */

#define SCHEDULE_LONGEST_DEBT 2000000000ull /* of time that others took from a limit: what can be made up for */

struct schedule_terms {
    uint32_t weight;   /* > 0 */
    uint32_t limit;    /* percent of the time that is never passed; 0 or >= 100: none */
    uint32_t priority; /* higher goes first, within its weight */
};

struct schedule_seat {
    struct schedule_terms terms;
    bool present, wants, holds, recalled, late;
    bool told; /* that it shares its turn */
    bool draining; /* late, but not to blame: it has said that it is as good as done */
    uint64_t gang;        /* bit set of cards that it wants together, this one among them */
    int64_t virtual_time; /* ns held at weight 100 */
    int64_t credit;       /* ns that its limit still lets it hold */
    uint64_t credit_at, charged_at, granted_at, over_at, left_at, wanted_at, stint_at, ends_at; /* ends_at: as it has said, or began to drain; 0: it has not */
    bool waits;         /* it can be told ahead when its turn begins */
    uint32_t processes; /* of it that have the turn; 0: not said, taken for one */
    uint32_t follows;   /* the tenant whose turn was passed on to this one */
    uint64_t behind;    /* when that turn should be over; 0: it is over, or there was none */
    uint64_t sooner_by; /* the turn that it followed was over by so much sooner than was thought */
    bool early;         /* the turn that it follows is over already, and it has not been told */
    bool held_off;        /* since the last charge: its long kernel waits for who has just been here (anticipate.c) ... */
    uint64_t held_off_ns; /* ... and so long since its last turn */
    uint64_t overrun_ns, longest_overrun; /* charged since the end of this lease; the most of its leases, lately */
    /* for people */
    uint64_t held_ns, waited_ns;
    uint64_t throttled_ns; /* of waited: it was first in line, and only its limit held it back */
    uint64_t leases, overruns, lates;
};

struct schedule {
    uint32_t cards, tenants; /* highest number in use + 1 */
    int16_t holder[SCHEDULE_CARDS], reserved[SCHEDULE_CARDS]; /* tenant, -1: nobody */
    int64_t virtual_time[SCHEDULE_CARDS];
    bool exclusive;         /* never */
    bool open[SCHEDULE_CARDS]; /* all who want the card have it together; there is no holder */
    uint64_t spare[SCHEDULE_CARDS], spare_at[SCHEDULE_CARDS];
    uint64_t patience[SCHEDULE_CARDS], patience_at[SCHEDULE_CARDS]; /* what is left of SCHEDULE_PATIENCE */
    uint32_t seated[SCHEDULE_CARDS]; /* so many tenants have a seat there: */
    uint16_t seat_of[SCHEDULE_CARDS][SCHEDULE_TENANTS];
    struct schedule_seat seats[SCHEDULE_CARDS][SCHEDULE_TENANTS]; /* what was never used is never touched, and takes no memory */
};

enum schedule_what { SCHEDULE_GRANT, SCHEDULE_BEGIN, SCHEDULE_RECALL, SCHEDULE_LATE, SCHEDULE_JOINED };
struct schedule_decision {
    enum schedule_what what;
    uint32_t card, tenant;
    uint64_t begins; /* of a grant: nothing may be launched before; 0: at once */
    uint64_t until; /* of a grant: the end of the lease; 0: until it is recalled */
    bool shared;    /* others may have the card too, or (SCHEDULE_JOINED) have it from now on */
};

void schedule_init(struct schedule *s); /* of static storage, or used before */
void schedule_seat(struct schedule *s, uint32_t card, uint32_t tenant, struct schedule_terms terms, uint64_t now); /* also new terms */
void schedule_leave(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now);
/* It waits for the beginning of a turn that is granted ahead. */
void schedule_waits(struct schedule *s, uint32_t card, uint32_t tenant, bool waits);
void schedule_want(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t gang, uint64_t now);
void schedule_done(struct schedule *s, uint32_t card, uint32_t tenant, bool wants_more, uint64_t now);

/* So many processes of it have the turn, or what is left of it: of time that several tenants have together, each process has an equal part. */
void schedule_processes(struct schedule *s, uint32_t card, uint32_t tenant, uint32_t processes, uint64_t now);

void schedule_used(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t ns, uint64_t now); /* without having held it */

/* Shortly after `when` the holder will be done: who is next, if that is another, is told ahead (SCHEDULE_AHEAD), begins then, and finds
 * its first kernels behind the holder's last ones. 0: it is not known when. */
void schedule_ending(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t when, uint64_t now);

/* Another seat has something on the card that is not done: a turn that was passed on, or one whose holder is late. */
bool schedule_is_behind_another(const struct schedule *s, uint32_t card, uint32_t tenant);

/* The next thing to do, if any; call until false. Then nothing is due before *again (0: nothing until an event). */
bool schedule_decide(struct schedule *s, uint64_t now, struct schedule_decision *out, uint64_t *again);

/* For people: accounts up to now; the GPU time that a tenant has had too early, for which others come first or its limit waits. */
void schedule_settle(struct schedule *s, uint64_t now);
uint64_t schedule_debt(const struct schedule *s, uint32_t card, uint32_t tenant);

#endif
