/* The rules of schedule.h: charges every seat for the time that it had, decides which seat is next, and ends turns. */
#include "schedule_parts.h"

#include <stddef.h>
#include <string.h>

#define SCALE 100
#define BURST 10000000ll /* ns of virtual time at weight 100: the credit of a tenant that was away */
#define NEVER UINT64_MAX

void schedule_init(struct schedule *s)
{
    for (uint32_t card = 0; card < SCHEDULE_CARDS; card++)
        for EACH_SEAT(s, card, i) memset(&s->seats[card][i], 0, sizeof(struct schedule_seat));
    memset(s, 0, offsetof(struct schedule, seat_of));
    for (uint32_t i = 0; i < SCHEDULE_CARDS; i++) s->holder[i] = s->reserved[i] = s->awaited[i] = NOBODY, s->patience[i] = SCHEDULE_PATIENCE;
}


/* ---- accounts ---- */

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* A kernel cannot be interrupted. Half of it counts before it begins, so that a tenant with long kernels is as far ahead of its share after
 * one as it was behind before. */
static uint64_t half_a_kernel(const struct schedule_seat *t) { return sooner(t->longest_overrun, SCHEDULE_LONG_GRACE) / 2; }

int64_t schedule_credit_to_begin(const struct schedule_seat *t)
{
    uint64_t half = sooner(half_a_kernel(t), SCHEDULE_LONGEST_DEBT * t->terms.limit / 200); /* its credit is never more than twice that */
    return larger((int64_t)half, (int64_t)SCHEDULE_LEAST);
}

/* A tenant that others keep from reaching its limit may make up for it later; a tenant that is away may not. */
static int64_t most_credit(const struct schedule_seat *t, uint64_t now)
{
    bool here = t->wants || t->holds || now - t->left_at < SCHEDULE_LONGEST;
    if (here) return (int64_t)(SCHEDULE_LONGEST_DEBT * t->terms.limit / 100);
    int64_t lease = (int64_t)(SCHEDULE_LONGEST * t->terms.limit / 100);
    return larger(lease, larger(2 * (int64_t)SCHEDULE_LEAST, schedule_credit_to_begin(t)));
}

/* Virtual time since the end of the tenant's lease. */
static int64_t overrun(const struct schedule_seat *t, uint64_t now)
{
    return t->over_at && now > t->over_at ? (int64_t)((now - t->over_at) * SCALE / t->terms.weight) : 0;
}

/* How the time since the last charge is divided: the part of the seats that drain or are late; the part of all users except those that
 * drain; the part of all users. The driver gives equal slices to contexts, so each seat counts by the number of its contexts. `silent`: the
 * number of seats that may have no work on the card. */
struct parts { uint64_t drained, next, both; uint32_t users, late, draining, silent; };

static uint32_t processes_of(const struct schedule_seat *t) { return t->processes ? t->processes : 1; }
static uint32_t contexts_of(const struct schedule_seat *t) { return t->contexts ? t->contexts : 1; }

static uint64_t part_of(const struct schedule_seat *t, const struct parts *p)
{
    uint64_t each = contexts_of(t), part = p->both * each / p->users;
    if (t->late && p->late) part += p->drained * each / p->late;
    if (!t->draining && p->users > p->draining) part += p->next * each / (p->users - p->draining);
    return part;
}

/* A turn that is not given back in time may have no work on the card any more: its process may be stopped. */
static uint64_t due_at(const struct schedule_seat *t) { return t->over_at ? t->over_at : t->granted_at + SCHEDULE_LONGEST; }
static bool is_silent(const struct schedule_seat *t, uint64_t now) { return t->late || (t->holds && now > due_at(t) + SCHEDULE_SHORT_GRACE); }

/* What a limit is charged beyond the seat's own part: the others' parts, if one of them is silent, because the seat may have had the card alone.
 * The tolerance is for kernels that take unexpectedly long, and for busy hosts. */
static uint64_t part_of_silent(struct schedule_seat *t, const struct parts *p, uint64_t now)
{
    uint64_t own = p->both * contexts_of(t) / p->users, others = p->both - own, tolerated;
    t->tolerance = sooner(t->tolerance + (now - t->charged_at) / SCHEDULE_TOLERANCE_PART, SCHEDULE_TOLERANCE);
    if (is_silent(t, now)) t->silent_ns += own;
    if (p->silent <= is_silent(t, now)) return 0;
    tolerated = sooner(others, t->tolerance);
    t->tolerance -= tolerated;
    t->left_to_silent += others;
    return others - tolerated;
}

/* Of the time in which the tenant was silent, the part in which it worked. A measured time may be too short by what could not be measured. */
static uint64_t proven_work(const struct schedule_seat *t, uint64_t now)
{
    uint64_t due = due_at(t), worked_until = t->granted_at + t->worked_ns;
    if (now <= due || t->worked_ns >= (now - t->granted_at) / 4 * 3) return t->silent_ns;
    return worked_until <= due ? 0 : (uint64_t)((double)t->silent_ns * (double)(worked_until - due) / (double)(now - due));
}

/* A tenant that was silent is done, so it is known how long it worked: others with a limit get that time back. */
static void give_back_to_others(struct schedule *s, uint32_t card, struct schedule_seat *done, uint64_t now)
{
    uint64_t worked = proven_work(done, now);
    done->silent_ns = done->worked_ns = 0;
    for EACH_SEAT(s, card, i) {
        struct schedule_seat *t = &s->seats[card][i];
        if (!worked || t == done || !limited(t)) continue;
        uint64_t back = sooner(t->left_to_silent, worked), tolerated = sooner(back, SCHEDULE_TOLERANCE - t->tolerance);
        t->left_to_silent -= back;
        t->tolerance += tolerated;
        t->credit += (int64_t)(back - tolerated);
    }
}

/* How much of `part`, the seat's share of the time since the last charge, was after the end of its lease. */
static uint64_t part_over(const struct schedule_seat *t, uint64_t part, uint64_t now)
{
    if (!t->over_at || now <= t->over_at) return 0;
    uint64_t since = now - t->charged_at, over = now - t->over_at;
    return over < since ? (uint64_t)((double)part * (double)over / (double)since) : part;
}

/* Charges a seat for the time since its last charge. `front` is the least virtual time of the seats that have the card or may have it. */
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
        uint64_t more = part_of_silent(t, parts, now);
        if (limited(t)) t->credit -= (int64_t)(part + more);
    } else if (t->wants) {
        t->waited_ns += since;
        if (held_back) t->throttled_ns += since;
    }
    if (t->credit > most_credit(t, now)) t->credit = most_credit(t, now);
    t->charged_at = now;
}

/* How much of the time since the last charge was before `until`. */
static uint64_t before(const struct schedule_seat *t, uint64_t until, uint64_t now)
{
    if (until <= t->charged_at) return 0;
    return (until < now ? until : now) - t->charged_at;
}

/* The rest of a turn that was passed on runs first. If it takes longer, the driver has probably given the next tenant a slice. Only if it
 * lasts longer than some slices, the turn was not almost done, and both tenants have the card. */
static void divide(const struct schedule_seat *draining, struct parts *p, uint64_t now)
{
    uint64_t rest = before(draining, draining->ends_at + SCHEDULE_PASSED_ON, now);
    uint64_t slices = before(draining, draining->ends_at + SCHEDULE_PASSED_ON + SCHEDULE_SLICES, now);
    p->drained = rest;
    p->next = slices - rest;
    p->both = now - draining->charged_at - slices;
}

/* The card is idle because it is reserved for a gang that waits for another card, or waits for a tenant that pauses. That tenant pays, since
 * others could have used the card. */
static void charge_for_idling(struct schedule *s, uint32_t card, uint64_t now)
{
    int tenant = s->reserved[card] != NOBODY ? s->reserved[card] : s->awaited[card];
    if (tenant == NOBODY) return;
    struct schedule_seat *t = &s->seats[card][tenant];
    if (t->present) t->virtual_time += (int64_t)((now - t->charged_at) * SCALE / t->terms.weight);
}

/* Charges all seats of a card; call it before anything changes. The card's virtual time follows its holder's until the end of the lease. */
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
        if (t->holds || t->late) parts.users += contexts_of(t), parts.silent += is_silent(t, now), tenants++;
        parts.both = now - t->charged_at;
        if (t->late) parts.late += contexts_of(t);
        if (t->draining) parts.draining += contexts_of(t);
        if (t->draining && (!draining || t->ends_at > draining->ends_at)) draining = t;
        if ((t->holds || may_hold(t)) && t->virtual_time < front) front = t->virtual_time;
    }
    if (!parts.users) charge_for_idling(s, card, now), parts.users = 1;
    s->awaited[card] = NOBODY;
    if (draining && tenants > 1) divide(draining, &parts, now);
    for EACH_SEAT(s, card, i) {
        struct schedule_seat *t = &s->seats[card][i];
        if (!t->present) continue;
        bool in_time = (s->holder[card] == (int)i || (s->open[card] && t->holds)) && (!t->over_at || t->charged_at < t->over_at);
        charge(t, &parts, front, now);
        if (in_time && t->virtual_time > s->virtual_time[card]) s->virtual_time[card] = t->virtual_time - overrun(t, now);
    }
}

/* The least claim gets the next turn. */
int64_t schedule_claim(const struct schedule_seat *t)
{
    return t->virtual_time + (int64_t)(half_a_kernel(t) * SCALE / t->terms.weight);
}

/* The least virtual time of the other seats that use the card or want it; the tenant's own if there are none. */
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
        t->tolerance = SCHEDULE_TOLERANCE;
        t->terms = terms;
        t->present = true;
        t->virtual_time = s->virtual_time[card];
        return;
    }
    charge_all(s, card, now); /* by the old terms */
    t->terms = terms;
    if (t->credit > most_credit(t, now)) t->credit = most_credit(t, now);
}

/* A tenant that has a turn on some cards of a gang, or in some processes, while others wait for one. */
static void note_incomplete(struct schedule *s, uint32_t tenant)
{
    uint64_t waits = 0;
    for (uint32_t i = 0; i < s->cards; i++)
        if (s->seats[i][tenant].asks) waits |= s->seats[i][tenant].gang;
    for (uint32_t i = 0; i < s->cards; i++) {
        struct schedule_seat *t = &s->seats[i][tenant];
        t->incomplete = (t->holds || t->late) && (waits >> i & 1);
    }
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

/* However short its pauses are, a tenant may be behind the others by no more than one turn of one of them, with its overrun. What it is behind
 * beyond that is time that it did not want. INT64_MIN: there are no others. */
static int64_t a_turn_behind_others(const struct schedule *s, uint32_t card, const struct schedule_seat *t)
{
    int64_t least = INT64_MAX, turn = 0;
    for EACH_SEAT(s, card, i) {
        const struct schedule_seat *o = &s->seats[card][i];
        if (&s->seats[card][i] == t || !busy(o)) continue;
        turn = larger(turn, (int64_t)(SCHEDULE_LONGEST + later(o->overrun_ns, o->longest_overrun)) * SCALE / o->terms.weight);
        if (o->virtual_time < least) least = o->virtual_time;
    }
    return least == INT64_MAX ? INT64_MIN : least - turn;
}

/* While a tenant is away, its claim to time that others have had expires, at most as fast as it could have used that time. */
void schedule_come_back(const struct schedule *s, uint32_t card, struct schedule_seat *t, uint64_t now)
{
    int64_t credit = (BURST + (int64_t)half_a_kernel(t)) * SCALE / t->terms.weight, floor = s->virtual_time[card] - credit;
    int64_t most = t->virtual_time + (int64_t)((now - t->left_at) * SCALE / t->terms.weight), behind = a_turn_behind_others(s, card, t);
    if (floor > most && now - t->left_at < SCHEDULE_LONGEST) floor = most; /* a tenant that was away for longer has saved up nothing */
    if (behind != INT64_MIN) floor = larger(floor, behind - credit);
    if (t->virtual_time < floor) t->virtual_time = floor;
}

void schedule_processes(struct schedule *s, uint32_t card, uint32_t tenant, uint32_t processes, uint32_t contexts, uint64_t now)
{
    struct schedule_seat *t = &s->seats[card][tenant];
    if (t->processes == processes && t->contexts == contexts) return;
    charge_all(s, card, now);
    t->processes = processes;
    t->contexts = contexts;
}

void schedule_waits(struct schedule *s, uint32_t card, uint32_t tenant, bool waits) { s->seats[card][tenant].waits = waits; }

void schedule_want(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t gang, uint64_t now)
{
    struct schedule_seat *t = &s->seats[card][tenant];
    if (!t->present) return;
    charge_all(s, card, now);
    t->gang = gang | 1ull << card;
    t->asks = true;
    note_incomplete(s, tenant);
    if (t->wants) return;
    if (!t->holds && !t->late) {
        schedule_come_back(s, card, t, now);
        schedule_note_pause(t, now);
        t->stint_at = now;
    }
    t->wants = true;
    t->wanted_at = now;
}

/* A turn that was passed on is over sooner than predicted. If the next turn has not begun, it begins at once. If it has begun, it will be over
 * sooner by the same amount, since its prediction assumed that its first kernels begin at the predicted end. Otherwise the errors of
 * successive turns would add up. (If the turn is over later, the driver may have given the next tenant a slice meanwhile.) */
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
    give_back_to_others(s, card, t, now);
    t->holds = t->late = t->draining = t->recalled = t->told = false;
    t->asks = wants_more;
    note_incomplete(s, tenant);
    t->over_at = t->ends_at = t->overrun_ns = t->behind = t->sooner_by = 0;
    t->early = false;
    if (!wants_more && (t->wants || t->left_at == 0)) t->left_at = now;
    t->wants = wants_more;
    t->wanted_at = now;
    let_go(s, card, tenant);
    if (!wants_more) unreserve(s, tenant);
}

void schedule_worked(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t ns)
{
    struct schedule_seat *t = &s->seats[card][tenant];
    t->worked_ns = later(t->worked_ns, ns);
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

/* ---- which tenant is next ---- */

/* Priority counts only for a tenant that has not had more than its weight; otherwise it would starve the others. */
static uint32_t rank(const struct schedule *s, uint32_t card, uint32_t tenant)
{
    const struct schedule_seat *t = &s->seats[card][tenant];
    if (!t->terms.priority) return 0;
    return t->virtual_time <= least_of_others(s, card, tenant) + BURST ? t->terms.priority : 0;
}

static bool is_gang(const struct schedule_seat *t) { return (t->gang & (t->gang - 1)) != 0; }

/* A draining tenant comes back. A late one with a limit pays for all of the time, unless others show that they have work too, by giving back
 * their turns. */
static bool another_waits(const struct schedule *s, uint32_t card, uint32_t but)
{
    for EACH_SEAT(s, card, i) {
        const struct schedule_seat *t = &s->seats[card][i];
        if (i != but && (may_hold(t) || t->draining || (t->late && limited(t)))) return true;
    }
    return false;
}

/* The tenant holds this card, but not for much longer. A second card given to it now would be held in vain while others wait for it. This is
 * true only for a moment: a launch over several cards may be waiting with this card for the other one, and end when it gets that. */
static bool is_ending(const struct schedule_seat *t, uint64_t now)
{
    return t->holds && t->over_at && now + SCHEDULE_LEAST >= t->over_at && now < t->over_at + SCHEDULE_LEAST;
}

/* A tenant that uses only this card has had less of it. (Gangs do not wait for each other in this way: the wait could be mutual.) */
static bool is_behind_single(const struct schedule *s, uint32_t card, uint32_t tenant)
{
    for EACH_SEAT(s, card, i) {
        const struct schedule_seat *t = &s->seats[card][i];
        if (i != tenant && (t->holds || may_hold(t)) && !is_gang(t) && schedule_claim(t) < schedule_claim(&s->seats[card][tenant])) return true;
    }
    return false;
}

/* A gang takes all its cards in one step. It reserves them first; the tenant that holds one is recalled by end_of_lease. Only one gang can
 * have reserved any of these cards, so no two gangs wait for each other. A gang that cannot have all its cards now is skipped: an incomplete
 * gang delays no other tenant, and after SCHEDULE_TOGETHER only the cards that it has requested count. A card on which the tenant is late
 * does not count: it works there already, and a launch over several cards may have passed the gate there and end when it gets this card. */
static bool gang_may(const struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now)
{
    const struct schedule_seat *asks = &s->seats[card][tenant];
    for (uint32_t i = 0; i < s->cards; i++) {
        const struct schedule_seat *t = &s->seats[i][tenant];
        if (i == card || !(asks->gang >> i & 1) || !t->present) continue;
        if (s->holder[i] == (int)tenant && !(is_ending(t, now) && another_waits(s, card, tenant))) continue;
        if (t->late || (!busy(t) && now >= asks->wanted_at + SCHEDULE_TOGETHER)) continue;
        if (!may_hold(t) || (s->reserved[i] != NOBODY && s->reserved[i] != (int)tenant)) return false;
        if (s->reserved[i] != (int)tenant && is_behind_single(s, i, tenant)) return false;
    }
    return true;
}

/* How long it will take, as far as known, until the card is free for this tenant if its holder is recalled now. */
static uint64_t time_to_free(const struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now)
{
    if (s->holder[card] == NOBODY || s->holder[card] == (int)tenant) return 0;
    const struct schedule_seat *h = &s->seats[card][s->holder[card]];
    uint64_t free = (h->over_at ? sooner(h->over_at, now) : now) + h->longest_overrun;
    return free > now ? free - now : 0;
}

/* Of a gang's cards, the one that takes longest to become free is reserved first. Another card is reserved when it takes about as long as
 * that one still does: reserved sooner, it would be idle. */
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
        if (!t->present || !t->wants || t->holds || !may_go_on(t) || may_hold(t)) continue;
        uint64_t missing = (uint64_t)(schedule_credit_to_begin(t) - t->credit);
        when = sooner(when, now + missing * 100 / t->terms.limit + 1);
    }
    return when;
}

/* ---- the holder ---- */

/* The holder's turn was granted before its beginning, and the turn before is over already. */
static bool begin_early(struct schedule *s, uint32_t card, uint64_t now, struct schedule_decision *out)
{
    struct schedule_seat *h = &s->seats[card][s->holder[card]];
    if (!h->early) return false;
    h->early = false;
    h->granted_at = now;
    *out = (struct schedule_decision){SCHEDULE_BEGIN, card, (uint32_t)s->holder[card], 0, 0, false};
    return true;
}

/* When should this lease end? Now, at a later time, or, as things stand, NEVER. */
static uint64_t end_of_lease(const struct schedule *s, uint32_t card, const struct schedule_seat *h, uint64_t now)
{
    uint64_t end = NEVER;
    int next = s->reserved[card] != NOBODY ? s->reserved[card] : next_of(s, card, now);
    if (limited(h)) end = h->credit > 0 ? now + (uint64_t)h->credit * 100 / (100 - h->terms.limit) + 1 : later(now, h->granted_at + SCHEDULE_LEAST);
    if (next == NOBODY || &s->seats[card][next] == h) return end;
    const struct schedule_seat *n = &s->seats[card][next];
    uint64_t turn = h->granted_at + lease_of(s, card, h), least = h->granted_at + SCHEDULE_LEAST;
    bool another_card_idles = s->reserved[card] != NOBODY; /* until the gang has this card, too */
    if (rank(s, card, (uint32_t)next) > h->terms.priority) turn = now;
    else if (another_card_idles && turn > least) turn = least;
    else if (schedule_claim(n) < schedule_claim(h) - BURST * SCALE / n->terms.weight && turn > least) turn = least; /* n is far behind */
    return sooner(end, turn > now ? turn : now);
}

static uint64_t known_overrun(const struct schedule_seat *t) { return t->longest_overrun + t->longest_overrun / 2; }

/* A tenant pays for its overruns, but not if its container then ends and begins again. So unexpected overruns have a common bound for all
 * tenants of a card. */
uint64_t schedule_grace(const struct schedule *s, uint32_t card, const struct schedule_seat *t)
{
    uint64_t known = known_overrun(t), least = sooner(t->leases > 1 ? SCHEDULE_GRACE : SCHEDULE_FIRST_GRACE, s->patience[card]);
    if (t->incomplete) return (t->asks ? SCHEDULE_SELF_GRACE : SCHEDULE_CARD_GRACE) * processes_of(t);
    if (least < SCHEDULE_SHORT_GRACE) least = SCHEDULE_SHORT_GRACE;
    if (known < least) return least;
    return known < SCHEDULE_LONG_GRACE ? known : SCHEDULE_LONG_GRACE;
}

void schedule_was_patient(struct schedule *s, uint32_t card, const struct schedule_seat *t, uint64_t since, uint64_t now)
{
    uint64_t expected = since + known_overrun(t);
    if (since && now > expected && !t->incomplete) s->patience[card] -= sooner(s->patience[card], now - expected);
}

/* A kernel may take longer than known before. The next tenant need not get the card as long as it is ahead of the holder, which is charged for
 * that time. */
static uint64_t patience_with(const struct schedule *s, uint32_t card, const struct schedule_seat *h, uint64_t now)
{
    uint64_t patience = h->over_at + schedule_grace(s, card, h), most = h->over_at + SCHEDULE_LONG_GRACE;
    int next = s->reserved[card] != NOBODY ? s->reserved[card] : next_of(s, card, now);
    if (h->incomplete || next == NOBODY || s->seats[card][next].terms.priority > h->terms.priority) return patience;
    int64_t ahead = s->seats[card][next].virtual_time - h->virtual_time;
    if (ahead <= 0 || patience >= most) return patience;
    uint64_t even = now + (uint64_t)ahead * h->terms.weight / SCALE + 1;
    return even > patience ? sooner(even, most) : patience;
}

/* True: *out has to be done about the holder. Otherwise sets *again. */
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
    h->lates += !h->incomplete;
    s->holder[card] = NOBODY;
    out->what = SCHEDULE_LATE;
    return true;
}

/* The tenant that is next when this turn is over. The holder's claim is counted half a turn ahead: otherwise one of two tenants with equal
 * claims would often have two turns in a row, while the other waits for both. */
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

/* Passes the turn on if it is almost over. The turns of a gang, and turns before a gang's, end on all cards together, so they are not passed on.
 * If there is no next tenant yet, there may be one when the turn ends. */
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

/* A draining tenant that was not almost done after all is late from now on. */
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
        t->lates += !t->incomplete;
        *out = (struct schedule_decision){SCHEDULE_LATE, card, i, 0, 0, false};
        return true;
    }
    return false;
}

/* The work of a late tenant may be waiting for another of its processes. If that tenant has had too much, its turn does not come. So its
 * other processes are let in for a moment, beside the holder: it is on the card anyway, and is charged by the number of its contexts. */
static bool see_to_late(struct schedule *s, uint32_t card, uint64_t now, struct schedule_decision *out, uint64_t *again)
{
    for EACH_SEAT(s, card, i) {
        struct schedule_seat *t = &s->seats[card][i];
        if (!t->late || t->draining || !t->asks) continue;
        uint64_t when = later(t->over_at, t->joined_at) + later(SCHEDULE_JOIN, t->overrun_ns / 4 * 3); /* long kernels are done meanwhile */
        if (when > now) {
            *again = sooner(*again, when);
            continue;
        }
        t->joined_at = now;
        t->asks = false;
        note_incomplete(s, i);
        *out = (struct schedule_decision){SCHEDULE_GRANT, card, i, 0, now + SCHEDULE_LEAST, false};
        return true;
    }
    return false;
}

/* ---- for the status ---- */

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

/* The tenant whose turn was passed on and is not over yet; of several, the one whose turn is over last. */
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
    uint64_t begins = before == NOBODY ? now : s->seats[card][before].ends_at, until = another_waits(s, card, tenant) ? begins + lease_of(s, card, t) : 0;
    if (!until && schedule_expects(s, card, tenant, now)) until = begins + SCHEDULE_LEAST;
    if (limited(t)) {
        uint64_t end = begins + (uint64_t)t->credit * 100 / (100 - t->terms.limit);
        until = until ? sooner(until, end) : end;
    }
    t->holds = true;
    t->late = t->recalled = t->asks = false;
    note_incomplete(s, tenant);
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
        if (s->holder[i] != NOBODY && s->seats[i][tenant].late) continue;
        s->reserved[i] = (int16_t)tenant;
        if (s->holder[i] != NOBODY) ready = false;
    }
    return ready;
}

/* The tenant that has reserved the card, else the next one that can have its whole gang. */
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
    schedule_settle(s, now); /* all cards: a gang is compared with others on each of its cards */
    for (uint32_t card = 0; card < s->cards; card++) {
        reserve_what_takes_longest(s, card, now);
        if (schedule_together(s, card, now, out, &next) || see_to_draining(s, card, now, out, &next) || see_to_late(s, card, now, out, &next)) return true;
        if (s->holder[card] != NOBODY && begin_early(s, card, now, out)) return true;
        if (s->holder[card] != NOBODY) pass_on(s, card, now, &next);
        if (s->holder[card] != NOBODY && see_to_holder(s, card, now, out, &next)) return true;
        if (s->holder[card] == NOBODY && !s->open[card] && !schedule_drains(s, card) && seat_next(s, card, now, out, &next)) return true;
        next = sooner(next, sooner(next_credit(s, card, now), next_gang(s, card, now)));
    }
    *again = next == NEVER ? 0 : next;
    return false;
}
