/* Keeps a card idle for a moment for a tenant that will be back. (Anticipatory scheduling: Iyer and Druschel, SOSP 2001, for disks.)
 *
 * A program that waits for its kernels is away between them. Suppose that it is behind its share, and the only waiting tenant is ahead. Then a
 * whole turn of that tenant, with all that it has queued, would begin in each of these gaps. There are two reasons to wait:
 *
 *   - The tenant's pauses are short: it works for a third of the time or more. If it is behind by some milliseconds, the card waits for it, for
 *     one and a half times its usual absence. The idle time is charged to that tenant, so the others still get their shares.
 *   - The other has long kernels, which cannot be interrupted. They wait for any tenant that has just been here: at most a fiftieth of their own
 *     length, for all gaps since their last turn together. No more of the card's time is lost than that. */
#include "schedule_parts.h"

#define LONG SCHEDULE_GRACE
#define PART 50

#define MOST_AWAY 2500000ull /* a longer pause is not worth an idle card */
#define KEPT 200000ull       /* the library gives an idle card back after this (FR_IDLE_NS) */
#define WAKING 100000ull     /* how much later than usual a program may wake up */
#define BEHIND 12000000ull   /* a tenant that is behind by 10 ms cuts short the turns of others (end_of_lease), and need not be waited for */

static uint64_t mean(uint64_t before, uint64_t value) { return before ? before - before / 4 + value / 4 : value; }

/* The tenant wants the card again. */
void schedule_note_pause(struct schedule_seat *t, uint64_t now)
{
    if (!t->left_at) return;
    t->pause_ns = mean(t->pause_ns, sooner(now - t->left_at, 4 * MOST_AWAY));
    t->visit_ns = mean(t->visit_ns, t->held_ns - t->held_before);
    t->held_before = t->held_ns;
}

static bool pauses_shortly(const struct schedule_seat *t) { return t->pause_ns && t->pause_ns < MOST_AWAY; }

/* Without the time for which the library keeps an idle card. */
static bool works_a_third(const struct schedule_seat *t) { return t->visit_ns > KEPT && t->pause_ns + KEPT <= 2 * (t->visit_ns - KEPT); }

/* How long after it left the tenant is waited for. */
static uint64_t usual(const struct schedule_seat *t) { return t->pause_ns + t->pause_ns / 2 + WAKING; }

/* Until when to wait for `j`, which must be behind `t` by `least` of its own time or more; 0: do not wait for it. */
static uint64_t worth_waiting_until(const struct schedule *s, uint32_t card, const struct schedule_seat *j, const struct schedule_seat *t, uint64_t most, uint64_t least, uint64_t now)
{
    if (!j->present || busy(j) || !has_credit(j) || !j->left_at || now >= j->left_at + most) return 0;
    if (j->terms.priority < t->terms.priority) return 0;
    struct schedule_seat back = *j;
    schedule_come_back(s, card, &back, now);
    return schedule_claim(&back) + (int64_t)(least * 100 / j->terms.weight) < schedule_claim(t) ? j->left_at + most : 0;
}

/* A tenant with longer pauses, which is behind and will be back soon, is not waited for, but the others' turns are short meanwhile. */
bool schedule_expects(const struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now)
{
    const struct schedule_seat *t = &s->seats[card][tenant];
    for EACH_SEAT(s, card, i) {
        const struct schedule_seat *j = &s->seats[card][i];
        if (i != tenant && pauses_shortly(j) && worth_waiting_until(s, card, j, t, MOST_AWAY, BEHIND, now)) return true;
    }
    return false;
}

/* True: the card waits for a tenant whose pauses are short. */
static bool waits_for_one(struct schedule *s, uint32_t card, const struct schedule_seat *t, uint64_t now, uint64_t *again)
{
    for EACH_SEAT(s, card, i) {
        struct schedule_seat *j = &s->seats[card][i];
        uint64_t until = j == t || !pauses_shortly(j) || !works_a_third(j) ? 0 : worth_waiting_until(s, card, j, t, usual(j), BEHIND, now);
        if (!until) continue;
        s->awaited[card] = (int16_t)i; /* until the next charge, which it pays */
        *again = sooner(*again, until);
        return true;
    }
    return false;
}

bool schedule_anticipates(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now, uint64_t *again)
{
    struct schedule_seat *t = &s->seats[card][tenant];
    uint64_t most = t->longest_overrun / PART, until = 0;
    if (waits_for_one(s, card, t, now, again)) return true;
    if (t->longest_overrun < LONG || t->held_off_ns >= most) return false;
    for EACH_SEAT(s, card, i)
        if (i != tenant) until = later(until, worth_waiting_until(s, card, &s->seats[card][i], t, most, 0, now));
    if (!until) return false;
    t->held_off = true; /* the next charge counts it */
    *again = sooner(*again, sooner(until, now + most - t->held_off_ns));
    return true;
}
