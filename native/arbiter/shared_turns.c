/* Turns that several tenants have at the same time, as long as the card has time to spare.
 *
 * If a card is idle from time to time, every tenant gets all the time that it wants. There is nothing to share out, and exclusive turns
 * would only make tenants wait. So all tenants that want the card have it together, and the driver's time slicing decides from slice to
 * slice. While several containers run, the arbiter cannot tell their use apart. It only knows when the card was idle, and this file relies
 * on that alone.
 *
 *      spare   time in which the card was idle, at most SCHEDULE_SPARE. While two or more tenants are at work, it decreases with the time
 *
 *      one by one --a tenant waits, spare >= SCHEDULE_REOPEN, all may share--> together
 *      together   --spare is used up, a tenant overreaches or may not share--> all are recalled but the one that has had least,
 *                   and it goes on with a turn of its own: from then on every tenant gets its weight
 *
 * A tenant takes all the time that it can get if it works for SCHEDULE_STINT without a break, or if its kernels are that long or not known
 * yet. Then there are exclusive turns, and every tenant gets its share. Of time that tenants had together, each is charged by the number of
 * its contexts, since the driver's slices are equal for contexts. A tenant that is ahead of another by more than SCHEDULE_LAG, by weight,
 * overreaches. That ends the sharing until the card has been idle again. Equal slices are not equal use if one tenant leaves most of its
 * slices early: that is not noticed, but ends with the spare time.
 *
 * Tenants with a hard limit, or of different priority, never share: they need exclusive turns to get what they were promised. Nor do
 * tenants that may use several cards: kernels that wait for their peers on another card need both cards at once, and a tenant that shares
 * one card may be recalled from it before it has the other. */
#include "schedule_parts.h"

#include <stddef.h>

void schedule_count_spare(struct schedule *s, uint32_t card, uint64_t now)
{
    uint32_t users = 0;
    uint64_t since = now - s->spare_at[card];
    if (!s->spare_at[card]) since = 0;
    s->spare_at[card] = now;
    for EACH_SEAT(s, card, i) users += busy(&s->seats[card][i]);
    if (!users) s->spare[card] = sooner(s->spare[card] + since, SCHEDULE_SPARE);
    if (users > 1) s->spare[card] -= sooner(s->spare[card], since);
}

static bool has_another_card(const struct schedule *s, uint32_t card, uint32_t tenant)
{
    for (uint32_t c = 0; c < s->cards; c++)
        if (c != card && s->seats[c][tenant].present) return true;
    return false;
}

/* May all tenants that are at work share the card? *alone: there has been only one for SCHEDULE_ALONE. *new: one has had no turn yet, so the
 * length of its kernels is unknown, and its first turn must be exclusive. */
static bool all_may_share(const struct schedule *s, uint32_t card, uint64_t now, bool *alone, bool *new)
{
    const struct schedule_seat *first = NULL;
    uint32_t lately = 0;
    for EACH_SEAT(s, card, i) *new |= busy(&s->seats[card][i]) && !s->seats[card][i].leases;
    for EACH_SEAT(s, card, i) {
        const struct schedule_seat *t = &s->seats[card][i];
        if (!t->present) continue;
        lately += busy(t) || (t->left_at && now - t->left_at < SCHEDULE_ALONE);
        if (!busy(t)) continue;
        if (t->longest_overrun > SCHEDULE_STINT || now - t->stint_at > SCHEDULE_STINT || limited(t) || has_another_card(s, card, i) || t->late || (first && first->terms.priority != t->terms.priority)) return false;
        first = t;
    }
    *alone = lately < 2;
    return s->reserved[card] == NOBODY && !s->exclusive;
}

/* One of the tenants at work is ahead of another by more than SCHEDULE_LAG, in time of the card. */
static bool one_overreaches(const struct schedule *s, uint32_t card)
{
    int64_t most = INT64_MIN;
    for EACH_SEAT(s, card, i)
        if (s->seats[card][i].holds && s->seats[card][i].virtual_time > most) most = s->seats[card][i].virtual_time;
    for EACH_SEAT(s, card, i) {
        const struct schedule_seat *t = &s->seats[card][i];
        if (t->holds && (most - t->virtual_time) * t->terms.weight / 100 > SCHEDULE_LAG) return true;
    }
    return false;
}

static uint32_t count(const struct schedule *s, uint32_t card, bool holds)
{
    uint32_t n = 0;
    for EACH_SEAT(s, card, i) n += holds ? s->seats[card][i].holds : may_hold(&s->seats[card][i]);
    return n;
}

bool schedule_drains(const struct schedule *s, uint32_t card)
{
    for EACH_SEAT(s, card, i)
        if (s->seats[card][i].holds && s->seats[card][i].recalled && s->holder[card] != (int)i) return true;
    return false;
}

/* A tenant that shared the card and does not give it back in time is late, like the holder of an exclusive turn. */
static bool see_to_recalled(struct schedule *s, uint32_t card, uint64_t now, struct schedule_decision *out, uint64_t *again)
{
    for EACH_SEAT(s, card, i) {
        struct schedule_seat *t = &s->seats[card][i];
        if (!t->holds || !t->recalled || s->holder[card] == (int)i) continue;
        uint64_t patience = t->over_at + schedule_grace(s, card, t);
        if (patience > now) {
            *again = sooner(*again, patience);
            continue;
        }
        schedule_was_patient(s, card, t, t->over_at, now);
        t->holds = false;
        t->late = true;
        t->lates += !t->incomplete;
        *out = (struct schedule_decision){SCHEDULE_LATE, card, i, 0, 0, false};
        return true;
    }
    return false;
}

/* ---- from one by one to together, and back ---- */

static void open_card(struct schedule *s, uint32_t card)
{
    s->open[card] = true;
    s->holder[card] = NOBODY;
}

/* The tenant that keeps the card when the others are recalled. */
static int least_of_holders(const struct schedule *s, uint32_t card)
{
    int least = NOBODY;
    for EACH_SEAT(s, card, i) {
        const struct schedule_seat *t = &s->seats[card][i];
        if (t->holds && !t->recalled && (least == NOBODY || t->virtual_time < s->seats[card][least].virtual_time)) least = (int)i;
    }
    return least;
}

static void close_card(struct schedule *s, uint32_t card, uint64_t now)
{
    int keeper = least_of_holders(s, card);
    s->open[card] = false;
    s->holder[card] = (int16_t)keeper;
    if (keeper != NOBODY) s->seats[card][keeper].granted_at = now;
    for EACH_SEAT(s, card, i) s->seats[card][i].told = false;
}

/* One at a time, until only the keeper is left. */
static bool recall_one(struct schedule *s, uint32_t card, uint64_t now, struct schedule_decision *out)
{
    for EACH_SEAT(s, card, i) {
        struct schedule_seat *t = &s->seats[card][i];
        if (!t->holds || t->recalled || (int)i == s->holder[card]) continue;
        t->recalled = true;
        t->over_at = now;
        *out = (struct schedule_decision){SCHEDULE_RECALL, card, i, 0, 0, false};
        return true;
    }
    return false;
}

/* ---- while it is shared ---- */

static bool let_in(struct schedule *s, uint32_t card, uint64_t now, struct schedule_decision *out)
{
    for EACH_SEAT(s, card, i) {
        struct schedule_seat *t = &s->seats[card][i];
        if (!may_hold(t)) continue;
        t->holds = t->told = true;
        t->recalled = t->asks = false;
        t->granted_at = now;
        t->over_at = 0;
        t->leases++;
        *out = (struct schedule_decision){SCHEDULE_GRANT, card, i, 0, 0, true};
        return true;
    }
    return false;
}

static bool tell_one(struct schedule *s, uint32_t card, struct schedule_decision *out)
{
    for EACH_SEAT(s, card, i) {
        struct schedule_seat *t = &s->seats[card][i];
        if (!t->holds || t->told) continue;
        t->told = true;
        *out = (struct schedule_decision){SCHEDULE_JOINED, card, i, 0, 0, true};
        return true;
    }
    return false;
}

bool schedule_together(struct schedule *s, uint32_t card, uint64_t now, struct schedule_decision *out, uint64_t *again)
{
    bool alone = false, new = false, fine = all_may_share(s, card, now, &alone, &new);
    int holder = s->holder[card];
    if (!s->open[card]) {
        if (recall_one(s, card, now, out)) return true;
        uint32_t waiting = count(s, card, false);
        bool several = holder == NOBODY ? waiting > 1 : waiting && !s->seats[card][holder].recalled;
        if (fine && !new && several && s->spare[card] >= SCHEDULE_REOPEN && !schedule_drains(s, card)) open_card(s, card);
    } else {
        bool over = !fine || !s->spare[card] || one_overreaches(s, card);
        if (over && !alone) s->spare[card] = 0;
        if (over || alone || new) close_card(s, card, now);
        if (!s->open[card] && recall_one(s, card, now, out)) return true;
    }
    if (s->open[card]) {
        if (let_in(s, card, now, out) || tell_one(s, card, out)) return true;
        if (count(s, card, true) > 1) *again = sooner(*again, now + sooner(s->spare[card] + 1, SCHEDULE_LOOK));
    }
    return see_to_recalled(s, card, now, out, again);
}
