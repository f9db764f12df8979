/* Charges containers for work that runs outside of turns: for the time that passes while it runs.
 *
 *      holds back   The work is waiting behind streams that the program holds back; the library reports that every ARBITER_APART_NS. If
 *                   no report comes for SILENT_NS, the work may be running: the program can stop the library's thread and release its
 *                   streams.
 *      runs         The library reports that the work was released, or the program has closed the connection during its turn, and lives.
 *
 * If several processes of a container have such work, the time counts once. Time for which the container's own turn is charged does not
 * count again. */
#include "node.h"

#include "clock.h"

#define SILENT_NS 2000000000ull  /* a machine may be busy; a library that reports again says how long work ran meanwhile */
#define LOST_NS 10000000000ull   /* a process that closed its connection and never came back may have become another program (exec) */
#define LOOK_APART_NS 100000000ull
#define LONGEST_REPORT 60000000000ull /* most time outside of turns that may still be reported */

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }
/* If not, the silence may be due to the arbiter, which did not run. */
static bool was_awake(const struct node *n, uint64_t now) { return now < n->apart_looked + 2 * LOOK_APART_NS; }

static bool pays(const struct node *n, const struct peer *p, uint64_t now)
{
    return p->apart == ARBITER_RUNS || (p->apart && was_awake(n, now) && now > p->apart_since + SILENT_NS);
}

static void charge_since(struct node *n, uint32_t slice, uint32_t card, uint64_t since, uint64_t now)
{
    struct slice *s = &n->slices[slice];
    const struct schedule_seat *seat = &n->schedule.seats[s->card[card]][slice];
    uint64_t from = later(since, s->apart_until[card]);
    s->apart_until[card] = later(now, s->apart_until[card]);
    if (from < now && !seat->holds && !seat->late) schedule_used(&n->schedule, (uint32_t)s->card[card], slice, now - from, now);
}

/* One message reports at most the time that has passed and is not charged yet: all processes of a container together cannot have used more of a
 * card. Otherwise a program could lift its own virtual time, and with it that of the card, as far as it likes. */
void apart_reported(struct node *n, uint32_t slice, uint32_t card, uint64_t ns, uint64_t now)
{
    struct slice *s = &n->slices[slice];
    uint64_t from = later(s->reported_until[card], now > LONGEST_REPORT ? now - LONGEST_REPORT : 0);
    s->reported_until[card] = ns < now - from ? from + ns : now;
    schedule_used(&n->schedule, (uint32_t)s->card[card], slice, s->reported_until[card] - from, now);
}

static void forget(struct node *n, struct peer *p)
{
    if (p->apart) n->slices[p->slice].apart--;
    p->apart = 0;
}

static void remember(struct node *n, struct peer *p, uint64_t apart, uint32_t card, uint64_t now)
{
    bool goes_on = p->apart == ARBITER_RUNS && apart == ARBITER_RUNS;
    if (!p->apart) n->slices[p->slice].apart++;
    p->apart = apart;
    p->apart_card = card;
    if (!goes_on) p->apart_since = now;
}

static void settle(struct node *n, const struct peer *p, uint64_t now)
{
    if (p->apart && n->slices[p->slice].card[p->apart_card] >= 0) charge_since(n, p->slice, p->apart_card, p->apart_since, now);
}

/* The process is connected again, and reports its own work on that card. */
static void drop_lost(struct node *n, const struct peer *p, uint32_t card)
{
    for (int i = n->slices[p->slice].peers, next; i >= 0; i = next) {
        const struct peer *other = &n->peers[i];
        next = other->next;
        if (other->fd == PEER_LOST && other->pid == p->pid && other->apart_card == card) peer_drop(n, (uint32_t)i);
    }
}

bool apart_hear(struct node *n, struct peer *p, const struct arbiter_message *m)
{
    uint64_t now = clock_now(), said = m->held_back_ns & ARBITER_RUNS ? ARBITER_RUNS : m->held_back_ns & ARBITER_HOLDS_BACK;
    if (p->apart && p->apart_card != m->card) return false; /* each card has a connection of its own */
    if (pays(n, p, now)) settle(n, p, now);
    if (n->slices[p->slice].apart) drop_lost(n, p, m->card);
    if (said) remember(n, p, said, m->card, now);
    else forget(n, p);
    return true;
}

void apart_lose(struct node *n, struct peer *p, uint64_t in_turns)
{
    uint32_t card = p->apart_card;
    uint64_t now = clock_now();
    settle(n, p, now);
    for (uint32_t c = 0; c < FR_MAX_CARDS && !p->apart; c++)
        if (in_turns >> c & 1) card = c;
    remember(n, p, ARBITER_RUNS, card, now);
    p->apart_since = now;
}

void apart_end(struct node *n, struct peer *p)
{
    settle(n, p, clock_now());
    forget(n, p);
}

static void charge_slice(struct node *n, uint32_t slice, uint64_t now)
{
    for (int i = n->slices[slice].peers, next; i >= 0; i = next) {
        struct peer *p = &n->peers[i];
        next = p->next;
        if (pays(n, p, now)) settle(n, p, now);
        if (p->fd == PEER_LOST && now > p->apart_since + LOST_NS) peer_drop(n, (uint32_t)i);
    }
}

uint64_t apart_charge(struct node *n, uint64_t now)
{
    bool any = false;
    for (uint32_t i = 0; i < n->schedule.tenants; i++) {
        if (!n->slices[i].apart) continue;
        charge_slice(n, i, now);
        any = true;
    }
    n->apart_looked = now;
    return any ? now + LOOK_APART_NS : 0;
}
