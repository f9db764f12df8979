#include "schedule_parts.h"

#include <stddef.h>
#include <string.h>

#define SCALE 100
#define BURST 10000000ll /* ns of virtual time at weight 100: what is kept for who was away */
#define NEVER UINT64_MAX

void schedule_init(struct schedule *s)
{
    for (uint32_t card = 0; card < SCHEDULE_CARDS; card++)
        for EACH_SEAT(s, card, i) memset(&s->seats[card][i], 0, sizeof(struct schedule_seat));
    memset(s, 0, offsetof(struct schedule, seat_of));
    for (uint32_t i = 0; i < SCHEDULE_CARDS; i++) s->holder[i] = s->reserved[i] = NOBODY, s->patience[i] = SCHEDULE_PATIENCE;
}


/* ---- accounts ---- */

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* A kernel cannot be taken back: half of it counts before it begins, so that a tenant with long ones is as far ahead of its due
 * after one as it was behind before. */
static uint64_t half_a_kernel(const struct schedule_seat *t) { return sooner(t->longest_overrun, SCHEDULE_LONG_GRACE) / 2; }

int64_t schedule_credit_to_begin(const struct schedule_seat *t)
{
    uint64_t half = sooner(half_a_kernel(t), SCHEDULE_LONGEST_DEBT * t->terms.limit / 200); /* it never has more than twice that */
    return larger((int64_t)half, (int64_t)SCHEDULE_LEAST);
}

/* Who is kept from its limit by others may make up for it later; who is away may not. */
static int64_t most_credit(const struct schedule_seat *t, uint64_t now)
{
    bool here = t->wants || t->holds || now - t->left_at < SCHEDULE_LONGEST;
    if (here) return (int64_t)(SCHEDULE_LONGEST_DEBT * t->terms.limit / 100);
    int64_t lease = (int64_t)(SCHEDULE_LONGEST * t->terms.limit / 100);
    return larger(lease, larger(2 * (int64_t)SCHEDULE_LEAST, schedule_credit_to_begin(t)));
}

/* Virtual time since the end of its lease. */
static int64_t overrun(const struct schedule_seat *t, uint64_t now)
{
    return t->over_at && now > t->over_at ? (int64_t)((now - t->over_at) * SCALE / t->terms.weight) : 0;
}

/* The time since the last charge: had by who drains or is late; then by all but who drains; by all alike. The driver gives equal slices
 * to processes, so those are what is counted of each. */
struct parts { uint64_t drained, next, both; uint32_t users, late, draining; };

static uint32_t processes_of(const struct schedule_seat *t) { return t->processes ? t->processes : 1; }

static uint64_t part_of(const struct schedule_seat *t, const struct parts *p)
{
    uint64_t each = processes_of(t), part = p->both * each / p->users;
    if (t->late && p->late) part += p->drained * each / p->late;
    if (!t->draining && p->users > p->draining) part += p->next * each / (p->users - p->draining);
    return part;
}

/* So much of `part`, its share of the time since the last charge, was after the end of its lease. */
static uint64_t part_over(const struct schedule_seat *t, uint64_t part, uint64_t now)
{
    if (!t->over_at || now <= t->over_at) return 0;
    uint64_t since = now - t->charged_at, over = now - t->over_at;
    return over < since ? (uint64_t)((double)part * (double)over / (double)since) : part;
}

/* Charges a seat for the time since it was charged last. `front` is the least virtual time of those that have the card or may have it. */
static void charge(struct schedule_seat *t, const struct parts *parts, int64_t front, uint64_t now)
{
    uint64_t since = now - t->charged_at;
    bool held_back = !has_credit(t) && t->virtual_time <= front;
    if (limited(t)) t->credit += (int64_t)((now - t->credit_at) * t->terms.limit / 100);
    t->credit_at = now;
    if (t->held_off) t->held_off_ns += since;
    t->held_off = false;
    if (t->holds || t->late) {
        uint64_t part = part_of(t, parts);
        t->held_ns += part;
        t->overrun_ns += part_over(t, part, now);
        t->virtual_time += (int64_t)(part * SCALE / t->terms.weight);
        if (limited(t)) t->credit -= (int64_t)part;
    } else if (t->wants) {
        t->waited_ns += since;
        if (held_back) t->throttled_ns += since;
    }
    if (t->credit > most_credit(t, now)) t->credit = most_credit(t, now);
    t->charged_at = now;
}

/* So much of the time since the last charge was before `until`. */
static uint64_t before(const struct schedule_seat *t, uint64_t until, uint64_t now)
{
    if (until <= t->charged_at) return 0;
    return (until < now ? until : now) - t->charged_at;
}

/* What is left of a turn that was passed on goes first. If that takes longer, it is because the driver gave a slice to who is
 * next; only after some of these the turn was not as good as done, and both have the card. */
static void divide(const struct schedule_seat *draining, struct parts *p, uint64_t now)
{
    uint64_t rest = before(draining, draining->ends_at + SCHEDULE_PASSED_ON, now);
    uint64_t slices = before(draining, draining->ends_at + SCHEDULE_PASSED_ON + SCHEDULE_SLICES, now);
    p->drained = rest;
    p->next = slices - rest;
    p->both = now - draining->charged_at - slices;
}

/* The card stands idle for a gang, which waits for another card: others could have had it. */
static void charge_for_idling(struct schedule *s, uint32_t card, uint64_t now)
{
    if (s->reserved[card] == NOBODY) return;
    struct schedule_seat *t = &s->seats[card][s->reserved[card]];
    if (t->present) t->virtual_time += (int64_t)((now - t->charged_at) * SCALE / t->terms.weight);
}

/* All seats of a card: before anything changes. The card's virtual time goes with its holder until the end of the lease. */
static void charge_all(struct schedule *s, uint32_t card, uint64_t now)
{
    struct parts parts = {0};
    const struct schedule_seat *draining = NULL;
    int64_t front = INT64_MAX;
    uint32_t tenants = 0;
    schedule_count_spare(s, card, now);
    if (s->patience_at[card]) s->patience[card] = sooner(s->patience[card] + (now - s->patience_at[card]) / SCHEDULE_PATIENCE_PART, SCHEDULE_PATIENCE);
    s->patience_at[card] = now;
    for EACH_SEAT(s, card, i) {
        const struct schedule_seat *t = &s->seats[card][i];
        if (!t->present) continue;
        if (t->holds || t->late) parts.users += processes_of(t), tenants++;
        parts.both = now - t->charged_at;
        if (t->late) parts.late += processes_of(t);
        if (t->draining) parts.draining += processes_of(t);
        if (t->draining && (!draining || t->ends_at > draining->ends_at)) draining = t;
        if ((t->holds || may_hold(t)) && t->virtual_time < front) front = t->virtual_time;
    }
    if (!parts.users) charge_for_idling(s, card, now), parts.users = 1;
    if (draining && tenants > 1) divide(draining, &parts, now);
    for EACH_SEAT(s, card, i) {
        struct schedule_seat *t = &s->seats[card][i];
        if (!t->present) continue;
        bool in_time = (s->holder[card] == (int)i || (s->open[card] && t->holds)) && (!t->over_at || t->charged_at < t->over_at);
        charge(t, &parts, front, now);
        if (in_time && t->virtual_time > s->virtual_time[card]) s->virtual_time[card] = t->virtual_time - overrun(t, now);
    }
}

/* By which turns are given out. */
int64_t schedule_claim(const struct schedule_seat *t)
{
    return t->virtual_time + (int64_t)(half_a_kernel(t) * SCALE / t->terms.weight);
}

/* The least virtual time of the others that are there to use the card; own when there is nobody. */
static int64_t least_of_others(const struct schedule *s, uint32_t card, uint32_t tenant)
{
    int64_t least = INT64_MAX;
    for EACH_SEAT(s, card, i) {
        const struct schedule_seat *t = &s->seats[card][i];
        if (i != tenant && busy(t) && t->virtual_time < least) least = t->virtual_time;
    }
    return least == INT64_MAX ? s->seats[card][tenant].virtual_time : least;
}

static uint32_t weights(const struct schedule *s, uint32_t card)
{
    uint32_t sum = 0;
    for EACH_SEAT(s, card, i)
        if (busy(&s->seats[card][i])) sum += s->seats[card][i].terms.weight;
    return sum ? sum : 1;
}

static uint64_t lease_of(const struct schedule *s, uint32_t card, const struct schedule_seat *t)
{
    uint64_t lease = SCHEDULE_LONGEST * t->terms.weight / weights(s, card);
    return lease < SCHEDULE_SHORTEST ? SCHEDULE_SHORTEST : lease;
}

/* ---- events ---- */

static void seat_at(struct schedule *s, uint32_t card, uint32_t tenant)
{
    uint16_t *list = s->seat_of[card];
    uint32_t at = s->seated[card]++;
    for (; at && list[at - 1] > tenant; at--) list[at] = list[at - 1];
    list[at] = (uint16_t)tenant;
}

static void unseat(struct schedule *s, uint32_t card, uint32_t tenant)
{
    uint16_t *list = s->seat_of[card];
    uint32_t at = 0;
    while (at < s->seated[card] && list[at] != tenant) at++;
    if (at == s->seated[card]) return;
    memmove(list + at, list + at + 1, (--s->seated[card] - at) * sizeof *list);
}

void schedule_seat(struct schedule *s, uint32_t card, uint32_t tenant, struct schedule_terms terms, uint64_t now)
{
    struct schedule_seat *t = &s->seats[card][tenant];
    if (card >= s->cards) s->cards = card + 1;
    if (tenant >= s->tenants) s->tenants = tenant + 1;
    if (!terms.weight) terms.weight = 1;
    if (!t->present) {
        memset(t, 0, sizeof *t);
        seat_at(s, card, tenant);
        t->charged_at = t->credit_at = now;
        t->terms = terms;
        t->present = true;
        t->virtual_time = s->virtual_time[card];
        return;
    }
    charge_all(s, card, now); /* by the old terms */
    t->terms = terms;
    if (t->credit > most_credit(t, now)) t->credit = most_credit(t, now);
}

static void let_go(struct schedule *s, uint32_t card, uint32_t tenant)
{
    if (s->holder[card] == (int)tenant) s->holder[card] = NOBODY;
}

static void unreserve(struct schedule *s, uint32_t tenant)
{
    for (uint32_t i = 0; i < s->cards; i++)
        if (s->reserved[i] == (int)tenant) s->reserved[i] = NOBODY;
}

void schedule_leave(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now)
{
    charge_all(s, card, now);
    if (s->seats[card][tenant].holds) schedule_was_patient(s, card, &s->seats[card][tenant], s->seats[card][tenant].over_at, now);
    let_go(s, card, tenant);
    unreserve(s, tenant);
    unseat(s, card, tenant);
    memset(&s->seats[card][tenant], 0, sizeof(struct schedule_seat));
}

/* For being away its right to the time of others passes, as fast as it could have used it at most. */
void schedule_come_back(const struct schedule *s, uint32_t card, struct schedule_seat *t, uint64_t now)
{
    int64_t floor = s->virtual_time[card] - (BURST + (int64_t)half_a_kernel(t)) * SCALE / t->terms.weight;
    int64_t most = t->virtual_time + (int64_t)((now - t->left_at) * SCALE / t->terms.weight);
    if (floor > most && now - t->left_at < SCHEDULE_LONGEST) floor = most; /* who was away for longer has saved up nothing */
    if (t->virtual_time < floor) t->virtual_time = floor;
}

void schedule_processes(struct schedule *s, uint32_t card, uint32_t tenant, uint32_t processes, uint64_t now)
{
    if (s->seats[card][tenant].processes == processes) return;
    charge_all(s, card, now);
    s->seats[card][tenant].processes = processes;
}

void schedule_waits(struct schedule *s, uint32_t card, uint32_t tenant, bool waits) { s->seats[card][tenant].waits = waits; }

void schedule_want(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t gang, uint64_t now)
{
    struct schedule_seat *t = &s->seats[card][tenant];
    if (!t->present) return;
    charge_all(s, card, now);
    t->gang = gang | 1ull << card;
    if (t->wants) return;
    if (!t->holds && !t->late) {
        schedule_come_back(s, card, t, now);
        t->stint_at = now;
    }
    t->wants = true;
    t->wanted_at = now;
}

/* A turn that was passed on is over sooner than was thought: the next begins at once; if it has begun, it is over as much sooner, since
 * its first kernels were thought to begin then. Without this the errors of turn after turn would add up. (Where it is over later, the
 * driver may have given the next one a slice meanwhile.) */
static void correct_next(struct schedule *s, uint32_t card, uint32_t drained, uint64_t now)
{
    struct schedule_seat *h = s->holder[card] == NOBODY ? NULL : &s->seats[card][s->holder[card]];
    if (!h || !h->behind || h->follows != drained) return;
    if (h->granted_at > now) h->early = true;
    else if (now < h->behind) h->sooner_by = sooner(h->behind - now, SCHEDULE_PASSED_ON);
    h->behind = 0;
    if (h->ends_at) h->ends_at -= h->sooner_by;
}

void schedule_done(struct schedule *s, uint32_t card, uint32_t tenant, bool wants_more, uint64_t now)
{
    struct schedule_seat *t = &s->seats[card][tenant];
    if (!t->present) return;
    charge_all(s, card, now);
    if (!t->late) schedule_was_patient(s, card, t, t->over_at, now);
    if (t->over_at && now > t->over_at) {
        t->overruns++;
        t->longest_overrun = t->overrun_ns > t->longest_overrun ? t->overrun_ns : t->longest_overrun - t->longest_overrun / 16;
    }
    if (t->draining) correct_next(s, card, tenant, now);
    t->holds = t->late = t->draining = t->recalled = t->told = false;
    t->over_at = t->ends_at = t->overrun_ns = t->behind = t->sooner_by = 0;
    t->early = false;
    if (!wants_more && (t->wants || t->left_at == 0)) t->left_at = now;
    t->wants = wants_more;
    t->wanted_at = now;
    let_go(s, card, tenant);
    if (!wants_more) unreserve(s, tenant);
}

void schedule_used(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t ns, uint64_t now)
{
    struct schedule_seat *t = &s->seats[card][tenant];
    if (!t->present || !ns) return;
    charge_all(s, card, now);
    t->held_ns += ns;
    t->virtual_time += (int64_t)(ns * SCALE / t->terms.weight);
    if (limited(t)) t->credit -= (int64_t)ns;
}

/* ---- who is next ---- */

/* Priority counts only for who has not had more than its weight: else it would starve the rest. */
static uint32_t rank(const struct schedule *s, uint32_t card, uint32_t tenant)
{
    const struct schedule_seat *t = &s->seats[card][tenant];
    if (!t->terms.priority) return 0;
    return t->virtual_time <= least_of_others(s, card, tenant) + BURST ? t->terms.priority : 0;
}

static bool is_gang(const struct schedule_seat *t) { return (t->gang & (t->gang - 1)) != 0; }

static bool somebody_waits(const struct schedule *s, uint32_t card, uint32_t but)
{
    for EACH_SEAT(s, card, i)
        if (i != but && (may_hold(&s->seats[card][i]) || s->seats[card][i].draining)) return true; /* who drains comes back */
    return false;
}

/* It holds this card, but not for long: if it was given another one now it would hold that in vain, before others who wait for
 * it. Only for a moment: a launch over several cards may be on its way there, and end when it has got the other one. */
static bool is_ending(const struct schedule_seat *t, uint64_t now)
{
    return t->holds && t->over_at && now + SCHEDULE_LEAST >= t->over_at && now < t->over_at + SCHEDULE_LEAST;
}

/* Somebody who uses this card only has had less of it. (Gangs do not wait for each other in this way: it could be mutual.) */
static bool is_behind_single(const struct schedule *s, uint32_t card, uint32_t tenant)
{
    for EACH_SEAT(s, card, i) {
        const struct schedule_seat *t = &s->seats[card][i];
        if (i != tenant && (t->holds || may_hold(t)) && !is_gang(t) && schedule_claim(t) < schedule_claim(&s->seats[card][tenant])) return true;
    }
    return false;
}

/* A gang takes all its cards in one step. It reserves them first; who holds one of them is recalled by end_of_lease. Only one
 * gang can have reserved any of these cards, so no two wait for each other. Who cannot have all of them now is passed over: a
 * gang that is never complete holds up nobody, and after a moment it is taken for what it does ask for. On a card on which it
 * is late it is at work already: a launch over several cards may have passed there, and end when it has got this one, too. */
static bool gang_may(const struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now)
{
    const struct schedule_seat *asks = &s->seats[card][tenant];
    for (uint32_t i = 0; i < s->cards; i++) {
        const struct schedule_seat *t = &s->seats[i][tenant];
        if (i == card || !(asks->gang >> i & 1) || !t->present) continue;
        if (s->holder[i] == (int)tenant && !(is_ending(t, now) && somebody_waits(s, card, tenant))) continue;
        if (t->late || (!busy(t) && now >= asks->wanted_at + SCHEDULE_TOGETHER)) continue;
        if (!may_hold(t) || (s->reserved[i] != NOBODY && s->reserved[i] != (int)tenant)) return false;
        if (s->reserved[i] != (int)tenant && is_behind_single(s, i, tenant)) return false;
    }
    return true;
}

/* So long the card will take to be free for this tenant, as far as is known, if its holder is recalled now. */
static uint64_t time_to_free(const struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now)
{
    if (s->holder[card] == NOBODY || s->holder[card] == (int)tenant) return 0;
    const struct schedule_seat *h = &s->seats[card][s->holder[card]];
    uint64_t free = (h->over_at ? sooner(h->over_at, now) : now) + h->longest_overrun;
    return free > now ? free - now : 0;
}

/* Of a gang's cards the one that takes longest is reserved first, and another when it takes as long as that one still does: it would stand
 * idle if it were kept free from now on. */
static bool takes_longest(const struct schedule *s, uint32_t card, uint32_t tenant, uint64_t gang, uint64_t now)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i < s->cards; i++) {
        uint64_t takes = gang >> i & 1 ? time_to_free(s, i, tenant, now) : 0;
        if (takes > longest) longest = takes;
    }
    return s->reserved[card] == (int)tenant || time_to_free(s, card, tenant, now) + SCHEDULE_LEAST >= longest;
}

static uint64_t next_gang(const struct schedule *s, uint32_t card, uint64_t now)
{
    uint64_t when = NEVER;
    for EACH_SEAT(s, card, i) {
        const struct schedule_seat *t = &s->seats[card][i];
        if (!may_hold(t) || !is_gang(t)) continue;
        if (t->wanted_at + SCHEDULE_TOGETHER > now) when = sooner(when, t->wanted_at + SCHEDULE_TOGETHER);
        for (uint32_t k = 0; k < s->cards; k++)
            if (is_ending(&s->seats[k][i], now)) when = sooner(when, s->seats[k][i].over_at + SCHEDULE_LEAST);
    }
    return when;
}

static int best_of(const struct schedule *s, uint32_t card, bool at_once, uint64_t now)
{
    int best = NOBODY;
    uint32_t best_rank = 0;
    for EACH_SEAT(s, card, i) {
        const struct schedule_seat *t = &s->seats[card][i];
        if (!may_hold(t) || !gang_may(s, card, i, now) || (at_once && is_gang(t) && !takes_longest(s, card, i, t->gang, now))) continue;
        uint32_t r = rank(s, card, i);
        if (best < 0 || r > best_rank || (r == best_rank && schedule_claim(t) < schedule_claim(&s->seats[card][best]))) best = (int)i, best_rank = r;
    }
    return best;
}

static int next_of(const struct schedule *s, uint32_t card, uint64_t now) { return best_of(s, card, true, now); }

static void reserve_what_takes_longest(struct schedule *s, uint32_t card, uint64_t now)
{
    int best = best_of(s, card, false, now);
    uint64_t gang = best == NOBODY ? 0 : s->seats[card][best].gang;
    if (!(gang & (gang - 1)) || takes_longest(s, card, (uint32_t)best, gang, now)) return;
    for (uint32_t i = 0; i < s->cards; i++)
        if (gang >> i & 1 && i != card && s->reserved[i] == NOBODY && takes_longest(s, i, (uint32_t)best, gang, now)) s->reserved[i] = (int16_t)best;
}

/* When will a tenant without credit have enough? */
static uint64_t next_credit(const struct schedule *s, uint32_t card, uint64_t now)
{
    uint64_t when = NEVER;
    for EACH_SEAT(s, card, i) {
        const struct schedule_seat *t = &s->seats[card][i];
        if (!t->present || !t->wants || t->holds || t->late || may_hold(t)) continue;
        uint64_t missing = (uint64_t)(schedule_credit_to_begin(t) - t->credit);
        when = sooner(when, now + missing * 100 / t->terms.limit + 1);
    }
    return when;
}

/* ---- the holder ---- */

/* Its turn was given ahead, and the one before is over already. */
static bool begin_early(struct schedule *s, uint32_t card, uint64_t now, struct schedule_decision *out)
{
    struct schedule_seat *h = &s->seats[card][s->holder[card]];
    if (!h->early) return false;
    h->early = false;
    h->granted_at = now;
    *out = (struct schedule_decision){SCHEDULE_BEGIN, card, (uint32_t)s->holder[card], 0, 0, false};
    return true;
}

/* When should this lease end? At once, at a time, or NEVER as things stand. */
static uint64_t end_of_lease(const struct schedule *s, uint32_t card, const struct schedule_seat *h, uint64_t now)
{
    uint64_t end = NEVER;
    int next = s->reserved[card] != NOBODY ? s->reserved[card] : next_of(s, card, now);
    if (limited(h)) end = h->credit > 0 ? now + (uint64_t)h->credit * 100 / (100 - h->terms.limit) + 1 : now;
    if (next == NOBODY || &s->seats[card][next] == h) return end;
    const struct schedule_seat *n = &s->seats[card][next];
    uint64_t turn = h->granted_at + lease_of(s, card, h), least = h->granted_at + SCHEDULE_LEAST;
    bool another_card_idles = s->reserved[card] != NOBODY; /* until the gang has this one too */
    if (rank(s, card, (uint32_t)next) > h->terms.priority) turn = now;
    else if (another_card_idles && turn > least) turn = least;
    else if (schedule_claim(n) < schedule_claim(h) - BURST * SCALE / n->terms.weight && turn > least) turn = least; /* long behind */
    return sooner(end, turn > now ? turn : now);
}

static uint64_t known_overrun(const struct schedule_seat *t) { return t->longest_overrun + t->longest_overrun / 2; }

/* Who overruns pays, but not who then ends and begins again. So what is unexpected has a bound for all tenants of a card together. */
uint64_t schedule_grace(const struct schedule *s, uint32_t card, const struct schedule_seat *t)
{
    uint64_t known = known_overrun(t), least = sooner(t->leases > 1 ? SCHEDULE_GRACE : SCHEDULE_FIRST_GRACE, s->patience[card]);
    if (least < SCHEDULE_SHORT_GRACE) least = SCHEDULE_SHORT_GRACE;
    if (known < least) return least;
    return known < SCHEDULE_LONG_GRACE ? known : SCHEDULE_LONG_GRACE;
}

void schedule_was_patient(struct schedule *s, uint32_t card, const struct schedule_seat *t, uint64_t since, uint64_t now)
{
    uint64_t expected = since + known_overrun(t);
    if (since && now > expected) s->patience[card] -= sooner(s->patience[card], now - expected);
}

/* A kernel may take longer than was known. Who is next is owed nothing as long as it is ahead of the holder, who pays for that time. */
static uint64_t patience_with(const struct schedule *s, uint32_t card, const struct schedule_seat *h, uint64_t now)
{
    uint64_t patience = h->over_at + schedule_grace(s, card, h), most = h->over_at + SCHEDULE_LONG_GRACE;
    int next = s->reserved[card] != NOBODY ? s->reserved[card] : next_of(s, card, now);
    if (next == NOBODY || s->seats[card][next].terms.priority > h->terms.priority) return patience;
    int64_t ahead = s->seats[card][next].virtual_time - h->virtual_time;
    if (ahead <= 0 || patience >= most) return patience;
    uint64_t even = now + (uint64_t)ahead * h->terms.weight / SCALE + 1;
    return even > patience ? sooner(even, most) : patience;
}

/* True when there is something to do about the holder; *again else. */
static bool see_to_holder(struct schedule *s, uint32_t card, uint64_t now, struct schedule_decision *out, uint64_t *again)
{
    struct schedule_seat *h = &s->seats[card][s->holder[card]];
    *out = (struct schedule_decision){.card = card, .tenant = (uint32_t)s->holder[card]};
    if (!h->recalled) {
        uint64_t end = h->over_at ? sooner(h->over_at, end_of_lease(s, card, h, now)) : end_of_lease(s, card, h, now);
        if (end > now) return *again = sooner(*again, end), false;
        h->recalled = true;
        h->over_at = now;
        out->what = SCHEDULE_RECALL;
        return true;
    }
    uint64_t patience = patience_with(s, card, h, now);
    if (patience > now) return *again = sooner(*again, patience), false;
    schedule_was_patient(s, card, h, h->over_at, now);
    h->holds = false;
    h->late = true;
    h->lates++;
    s->holder[card] = NOBODY;
    out->what = SCHEDULE_LATE;
    return true;
}

/* Who is next when this turn is over. The holder is counted half a turn ahead: else two with equal claims would often have two turns in
 * a row, and the other wait for both. */
static int next_after(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now)
{
    struct schedule_seat *t = &s->seats[card][tenant], before = *t;
    s->holder[card] = NOBODY;
    t->holds = false;
    t->wants = true;
    uint64_t rest = t->ends_at > now ? t->ends_at - now : 0;
    t->virtual_time += (int64_t)((rest + lease_of(s, card, t) / 2) * SCALE / t->terms.weight);
    int next = next_of(s, card, now);
    *t = before;
    s->holder[card] = (int16_t)tenant;
    return next == (int)tenant ? NOBODY : next;
}

void schedule_ending(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t when, uint64_t now)
{
    struct schedule_seat *t = &s->seats[card][tenant];
    charge_all(s, card, now);
    if (t->present && s->holder[card] == (int)tenant) t->ends_at = when ? when - t->sooner_by : 0;
}

/* A gang's turns, and those before one, end together on all cards: not early. Who is not there yet may be when the turn ends. */
static void pass_on(struct schedule *s, uint32_t card, uint64_t now, uint64_t *again)
{
    struct schedule_seat *t = &s->seats[card][s->holder[card]];
    if (!t->ends_at) return;
    if (t->ends_at > now + SCHEDULE_AHEAD) {
        *again = sooner(*again, t->ends_at - SCHEDULE_AHEAD);
        return;
    }
    bool over = t->ends_at <= now;
    int next = is_gang(t) || s->reserved[card] != NOBODY ? NOBODY : next_after(s, card, (uint32_t)s->holder[card], now);
    bool may = next != NOBODY && !is_gang(&s->seats[card][next]);
    if (may && (over || s->seats[card][next].waits)) {
        if (over) t->ends_at = now;
        t->holds = false;
        t->late = t->draining = true;
        s->holder[card] = NOBODY;
    } else if (over) {
        t->ends_at = 0;
    } else {
        *again = sooner(*again, t->ends_at);
    }
}

bool schedule_is_behind_another(const struct schedule *s, uint32_t card, uint32_t tenant)
{
    for EACH_SEAT(s, card, i)
        if (i != tenant && s->seats[card][i].late) return true;
    return false;
}

/* It was not: from now on it is to blame. */
static bool see_to_draining(struct schedule *s, uint32_t card, uint64_t now, struct schedule_decision *out, uint64_t *again)
{
    for EACH_SEAT(s, card, i) {
        struct schedule_seat *t = &s->seats[card][i];
        if (!t->draining) continue;
        uint64_t patience = t->ends_at + schedule_grace(s, card, t);
        if (patience > now) {
            *again = sooner(*again, patience);
            continue;
        }
        schedule_was_patient(s, card, t, t->ends_at, now);
        t->draining = false;
        t->lates++;
        *out = (struct schedule_decision){SCHEDULE_LATE, card, i, 0, 0, false};
        return true;
    }
    return false;
}

/* ---- for people ---- */

void schedule_settle(struct schedule *s, uint64_t now)
{
    for (uint32_t card = 0; card < s->cards; card++) charge_all(s, card, now);
}

uint64_t schedule_debt(const struct schedule *s, uint32_t card, uint32_t tenant)
{
    const struct schedule_seat *t = &s->seats[card][tenant];
    if (!t->present) return 0;
    int64_t ahead = (t->virtual_time - least_of_others(s, card, tenant)) * (int64_t)t->terms.weight / SCALE;
    int64_t limit = limited(t) && t->credit < 0 ? -t->credit : 0, debt = ahead > limit ? ahead : limit;
    return debt > 0 ? (uint64_t)debt : 0;
}

/* ---- granting ---- */

/* Whose turn was passed on and is not over yet; of several, the one that is over last. */
static int last_to_drain(const struct schedule *s, uint32_t card, uint64_t now)
{
    int last = NOBODY;
    for EACH_SEAT(s, card, i) {
        const struct schedule_seat *t = &s->seats[card][i];
        if (t->draining && t->ends_at > now && (last == NOBODY || t->ends_at > s->seats[card][last].ends_at)) last = (int)i;
    }
    return last;
}

static void seat_holder(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now, struct schedule_decision *out)
{
    struct schedule_seat *t = &s->seats[card][tenant];
    int before = last_to_drain(s, card, now);
    uint64_t begins = before == NOBODY ? now : s->seats[card][before].ends_at, until = somebody_waits(s, card, tenant) ? begins + lease_of(s, card, t) : 0;
    if (limited(t)) {
        uint64_t end = begins + (uint64_t)t->credit * 100 / (100 - t->terms.limit);
        until = until ? sooner(until, end) : end;
    }
    t->holds = true;
    t->recalled = false;
    t->granted_at = begins;
    if (t->virtual_time > s->virtual_time[card]) s->virtual_time[card] = t->virtual_time;
    t->over_at = until;
    t->ends_at = 0;
    t->behind = before == NOBODY ? 0 : begins + SCHEDULE_PASSED_ON;
    t->follows = before == NOBODY ? 0 : (uint32_t)before;
    t->sooner_by = t->held_off_ns = 0;
    t->early = false;
    t->leases++;
    s->holder[card] = (int16_t)tenant;
    *out = (struct schedule_decision){SCHEDULE_GRANT, card, tenant, begins > now ? begins : 0, until, false};
}

static bool gang_ready(struct schedule *s, uint32_t tenant, uint64_t gang)
{
    bool ready = true;
    for (uint32_t i = 0; i < s->cards; i++) {
        if (!(gang >> i & 1) || !may_hold(&s->seats[i][tenant])) continue;
        s->reserved[i] = (int16_t)tenant;
        if (s->holder[i] != NOBODY) ready = false;
    }
    return ready;
}

/* The reserved one, else the next that can have its whole gang. */
static int choose(struct schedule *s, uint32_t card, uint64_t now)
{
    int first = s->reserved[card];
    if (first == NOBODY) return next_of(s, card, now);
    if (may_hold(&s->seats[card][first]) && gang_may(s, card, (uint32_t)first, now)) return first;
    unreserve(s, (uint32_t)first);
    return next_of(s, card, now);
}

static bool seat_next(struct schedule *s, uint32_t card, uint64_t now, struct schedule_decision *out, uint64_t *again)
{
    int next = choose(s, card, now);
    if (next == NOBODY || schedule_anticipates(s, card, (uint32_t)next, now, again)) return false;
    uint64_t gang = s->seats[card][next].gang;
    if ((gang & (gang - 1)) && !gang_ready(s, (uint32_t)next, gang)) return false;
    seat_holder(s, card, (uint32_t)next, now, out);
    s->reserved[card] = NOBODY;
    return true;
}

bool schedule_decide(struct schedule *s, uint64_t now, struct schedule_decision *out, uint64_t *again)
{
    uint64_t next = NEVER;
    schedule_settle(s, now); /* all: a gang is measured by what it and others have had on each of its cards */
    for (uint32_t card = 0; card < s->cards; card++) {
        reserve_what_takes_longest(s, card, now);
        if (schedule_together(s, card, now, out, &next) || see_to_draining(s, card, now, out, &next)) return true;
        if (s->holder[card] != NOBODY && begin_early(s, card, now, out)) return true;
        if (s->holder[card] != NOBODY) pass_on(s, card, now, &next);
        if (s->holder[card] != NOBODY && see_to_holder(s, card, now, out, &next)) return true;
        if (s->holder[card] == NOBODY && !s->open[card] && !schedule_drains(s, card) && seat_next(s, card, now, out, &next)) return true;
        next = sooner(next, sooner(next_credit(s, card, now), next_gang(s, card, now)));
    }
    *again = next == NEVER ? 0 : next;
    return false;
}
