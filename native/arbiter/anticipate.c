/* Keeps a card idle for a moment, so that a long kernel, which cannot be interrupted, does not begin just then.
 *
 * A program that waits for its kernels is away between them, for as long as it takes to wake up. Suppose that it is behind its share, and
 * that the only waiting tenant has long kernels and is ahead. Then a whole long kernel would begin in each of these gaps. So the long kernel
 * waits for the tenant that has just been here: at most a fiftieth of its own length, for all gaps since its last turn together. No more of
 * the card's time is lost than that. (Anticipatory scheduling: Iyer and Druschel, SOSP 2001, for disks.) */
#include "schedule_parts.h"

#define LONG SCHEDULE_GRACE
#define PART 50

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Until when to wait for `j`; 0: do not wait for it. */
static uint64_t worth_waiting_until(const struct schedule *s, uint32_t card, const struct schedule_seat *j, const struct schedule_seat *t, uint64_t most, uint64_t now)
{
    if (!j->present || busy(j) || !has_credit(j) || !j->left_at || now >= j->left_at + most) return 0;
    if (j->terms.priority < t->terms.priority) return 0;
    struct schedule_seat back = *j;
    schedule_come_back(s, card, &back, now);
    return schedule_claim(&back) < schedule_claim(t) ? j->left_at + most : 0;
}

bool schedule_anticipates(struct schedule *s, uint32_t card, uint32_t tenant, uint64_t now, uint64_t *again)
{
    struct schedule_seat *t = &s->seats[card][tenant];
    uint64_t most = t->longest_overrun / PART, until = 0;
    if (t->longest_overrun < LONG || t->held_off_ns >= most) return false;
    for EACH_SEAT(s, card, i)
        if (i != tenant) until = later(until, worth_waiting_until(s, card, &s->seats[card][i], t, most, now));
    if (!until) return false;
    t->held_off = true; /* the next charge counts it */
    *again = sooner(*again, sooner(until, now + most - t->held_off_ns));
    return true;
}
