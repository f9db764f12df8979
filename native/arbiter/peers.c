/* The connections of the containers' processes. The kernel identifies the process behind a socket. The messages themselves are requests only,
 * and are not trusted. */
#include "node.h"

#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define ROUND 16 /* most messages of one peer before the other peers' turn */
#define SECOND 1000000000ull

static struct slice *slice_of(struct node *n, const struct peer *p) { return &n->slices[p->slice]; }

/* Without a free descriptor the connection would stay in the queue and wake the arbiter again and again. */
static void refuse_without_descriptor(struct node *n, struct slice *s)
{
    close(n->spare);
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) close(fd);
    n->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    event_note(n, s->path, 0, EVENT_REFUSED);
}

static int life_of(int fd, pid_t pid)
{
    int life = -1;
    socklen_t size = sizeof life;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &life, &size) == 0) return life;
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

static bool has_process(const struct node *n, const struct slice *s, pid_t pid)
{
    for (int i = s->peers; i >= 0; i = n->peers[i].next)
        if (n->peers[i].pid == pid) return true;
    return false;
}

static void admit(struct node *n, uint32_t index, int fd, pid_t pid)
{
    struct slice *s = &n->slices[index];
    int at = n->free_peer;
    s->process_count += !has_process(n, s, pid);
    struct peer *p = &n->peers[at];
    n->free_peer = p->next;
    *p = (struct peer){.fd = fd, .life = life_of(fd, pid), .next = s->peers, .slice = index, .pid = pid, .contexts = 1};
    s->peers = at;
    s->peer_count++;
    node_watch(n, fd, FROM_PEER, (uint32_t)at);
    if (p->life >= 0) node_watch(n, p->life, FROM_DEATH, (uint32_t)at);
}

static uint32_t slice_with_most(const struct node *n)
{
    uint32_t most = 0;
    for (uint32_t i = 1; i < n->schedule.tenants; i++)
        if (n->slices[i].present && n->slices[i].peer_count > n->slices[most].peer_count) most = i;
    return most;
}

/* Each slice is entitled to an equal part of all places. If they are taken, a new connection within that part replaces the newest connection
 * of the slice that has most. */
static bool has_place_for(struct node *n, const struct slice *s)
{
    if (s->peer_count >= PEERS_OF_A_SLICE) return false;
    if (n->free_peer >= 0) return true;
    struct slice *most = &n->slices[slice_with_most(n)];
    if (s->peer_count > 0 && s->peer_count >= (uint32_t)n->places / n->slice_count) return false;
    if (most->peer_count <= s->peer_count + 1) return false;
    event_note(n, most->path, n->peers[most->peers].pid, EVENT_REFUSED);
    peer_drop(n, (uint32_t)most->peers);
    return true;
}

void peer_accept(struct node *n, uint32_t index)
{
    struct slice *s = &n->slices[index];
    struct ucred who = {0};
    socklen_t size = sizeof who;
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) return refuse_without_descriptor(n, s);
    if (fd < 0) return;
    bool known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0;
    if (known && has_place_for(n, s)) return admit(n, index, fd, who.pid);
    event_note(n, s->path, who.pid, EVENT_REFUSED);
    close(fd);
}

static bool any_peer_wants(const struct node *n, const struct slice *s, uint32_t card)
{
    for (int i = s->peers; i >= 0; i = n->peers[i].next)
        if (n->peers[i].wants >> card & 1) return true;
    return false;
}

/* A container's turn is ending when all processes that hold it have announced that. */
static void end_if_all(struct node *n, uint32_t slice, uint32_t card)
{
    struct slice *s = &n->slices[slice];
    for (int i = s->peers; i >= 0; i = n->peers[i].next)
        if ((n->peers[i].granted & ~n->peers[i].ending) >> card & 1) return;
    schedule_ending(&n->schedule, (uint32_t)s->card[card], slice, s->ends[card], clock_now());
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* One process may have a thousand connections, so the counts are limited by the number of processes. */
static void count_users(struct node *n, uint32_t slice, uint32_t card, uint64_t now)
{
    struct slice *s = &n->slices[slice];
    uint32_t processes = least(s->outstanding[card], s->process_count);
    uint32_t more = least(s->contexts[card] - s->outstanding[card], processes * (ARBITER_MOST_CONTEXTS - 1)); /* than one for each */
    schedule_processes(&n->schedule, (uint32_t)s->card[card], slice, processes, processes + more, now);
}

static void contexts_are(struct node *n, struct peer *p, uint64_t said)
{
    struct slice *s = slice_of(n, p);
    uint32_t before = p->contexts, count = (uint32_t)(said >> ARBITER_CONTEXTS_SHIFT & 0xff);
    p->contexts = count ? least(count, ARBITER_MOST_CONTEXTS) : 1;
    if (p->contexts == before) return;
    for (uint32_t c = 0; c < s->cards; c++) {
        if (!(p->granted >> c & 1)) continue;
        s->contexts[c] += p->contexts - before;
        count_users(n, p->slice, c, clock_now());
    }
}

/* One process has no more work on the card. */
static void give_back(struct node *n, struct peer *p, uint32_t card)
{
    struct slice *s = slice_of(n, p);
    if (!(p->granted >> card & 1)) return;
    p->granted &= ~(1ull << card);
    p->ending &= ~(1ull << card);
    s->outstanding[card]--;
    s->contexts[card] -= p->contexts;
    count_users(n, p->slice, card, clock_now());
    if (s->outstanding[card]) return end_if_all(n, p->slice, card);
    s->recalled[card] = false;
    schedule_done(&n->schedule, (uint32_t)s->card[card], p->slice, any_peer_wants(n, s, card), clock_now());
}

static void give_all_back(struct node *n, struct peer *p)
{
    struct slice *s = slice_of(n, p);
    uint64_t wanted = p->wants;
    p->wants = 0;
    for (uint32_t c = 0; c < s->cards; c++) {
        bool held = p->granted >> c & 1;
        give_back(n, p, c);
        bool waits = s->card[c] >= 0 && (wanted >> c & 1) && !held && !s->outstanding[c];
        if (waits && !any_peer_wants(n, s, c)) schedule_done(&n->schedule, (uint32_t)s->card[c], p->slice, false, clock_now());
    }
}

void peer_drop(struct node *n, uint32_t index)
{
    struct peer *p = &n->peers[index];
    struct slice *s = slice_of(n, p);
    pid_t pid = p->pid;
    give_all_back(n, p);
    apart_end(n, p);
    if (p->fd >= 0) close(p->fd);
    if (p->life >= 0) close(p->life);
    for (int *at = &s->peers; *at >= 0; at = &n->peers[*at].next)
        if (*at == (int)index) {
            *at = p->next;
            break;
        }
    s->peer_count--;
    s->process_count -= !has_process(n, s, pid);
    *p = (struct peer){.fd = -1, .next = n->free_peer};
    n->free_peer = (int)index;
}

static bool has_died(const struct peer *p)
{
    struct pollfd life = {.fd = p->life, .events = POLLIN};
    return p->life < 0 || poll(&life, 1, 0) == 1;
}

/* The entry may have been given to another peer since the event. */
void peer_died(struct node *n, uint32_t index)
{
    if (n->peers[index].fd != -1 && n->peers[index].life >= 0 && has_died(&n->peers[index])) peer_drop(n, index);
}

/* Closing a connection does not take work off the card: if the process lives and had a turn or work outside of turns, it is charged on. */
static void lose(struct node *n, uint32_t index)
{
    struct peer *p = &n->peers[index];
    uint64_t in_turns = p->granted;
    if (has_died(p) || !(in_turns || p->apart)) return peer_drop(n, index);
    give_all_back(n, p);
    apart_lose(n, p, in_turns);
    close(p->fd);
    p->fd = PEER_LOST;
}

static void tell(struct node *n, struct peer *p, enum arbiter_kind kind, uint32_t card, uint64_t length)
{
    struct slice *s = slice_of(n, p);
    struct arbiter_message m = {.version = ARBITER_VERSION, .kind = kind, .card = card, .lease = s->lease[card], .length_ns = length};
    bool behind = s->card[card] >= 0 && schedule_is_behind_another(&n->schedule, (uint32_t)s->card[card], p->slice);
    if (kind == ARBITER_GRANT) m.held_back_ns = s->held_back[card], m.more = s->shared[card], m.gang = ARBITER_MAY_END | (behind ? ARBITER_BEHIND : 0);
    clock_send(p->fd, &m, sizeof m, MSG_NOSIGNAL | MSG_DONTWAIT); /* a peer that does not read loses its own grant */
}

static void grant(struct node *n, struct peer *p, uint32_t card, uint64_t now)
{
    struct slice *s = slice_of(n, p);
    p->granted |= 1ull << card;
    s->outstanding[card]++;
    s->contexts[card] += p->contexts;
    count_users(n, p->slice, card, now);
    schedule_ending(&n->schedule, (uint32_t)s->card[card], p->slice, 0, now);
    if (s->begins[card] > now) tell(n, p, ARBITER_BEGINS, card, s->begins[card]);
    tell(n, p, ARBITER_GRANT, card, s->until[card] ? s->until[card] - now : 0);
}

/* The slice's bit set of cards as a bit set by the node's numbers. */
static uint64_t gang_of(const struct slice *s, uint64_t cards)
{
    uint64_t gang = 0;
    for (uint32_t c = 0; c < s->cards; c++)
        if ((cards >> c & 1) && s->card[c] >= 0) gang |= 1ull << s->card[c];
    return gang;
}

/* Processes of a container that work on several cards are one gang: a kernel of one may wait for a kernel of another. */
static uint64_t cards_of_all(const struct node *n, const struct slice *s)
{
    uint64_t cards = 0;
    for (int i = s->peers; i >= 0; i = n->peers[i].next) cards |= n->peers[i].wants | n->peers[i].granted;
    return cards;
}

static void want_together(struct node *n, const struct peer *p, uint32_t card, uint64_t gang)
{
    struct slice *s = slice_of(n, p);
    uint64_t now = clock_now(), all = cards_of_all(n, s), cards = gang_of(s, gang | all);
    for (uint32_t c = 0; c < s->cards; c++)
        if (c == card || ((all >> c & 1) && s->card[c] >= 0 && !s->outstanding[c])) schedule_want(&n->schedule, (uint32_t)s->card[c], p->slice, cards, now);
}

static void want(struct node *n, struct peer *p, uint32_t card, uint64_t gang)
{
    struct slice *s = slice_of(n, p);
    uint64_t now = clock_now();
    p->wants |= 1ull << card;
    if (p->granted >> card & 1) return;
    bool draining = n->schedule.seats[s->card[card]][p->slice].draining;
    bool open = s->outstanding[card] && !s->recalled[card] && !draining && (!s->until[card] || s->until[card] > now);
    if (open) grant(n, p, card, now); /* the container already has the lease */
    else want_together(n, p, card, gang);
}

static void ending(struct node *n, struct peer *p, const struct arbiter_message *m)
{
    if (!(p->granted >> m->card & 1) || m->lease != slice_of(n, p)->lease[m->card]) return;
    p->ending |= 1ull << m->card;
    uint64_t when = clock_now() + (m->length_ns < SCHEDULE_LONG_GRACE ? m->length_ns : SCHEDULE_LONG_GRACE);
    if (when > slice_of(n, p)->ends[m->card]) slice_of(n, p)->ends[m->card] = when;
    end_if_all(n, p->slice, m->card);
}

/* False: the message is nonsense. */
static bool obey(struct node *n, struct peer *p, const struct arbiter_message *m)
{
    struct slice *s = slice_of(n, p);
    if (m->version != ARBITER_VERSION || m->card >= s->cards || s->card[m->card] < 0) return false;
    if (m->kind == ARBITER_WANT || m->kind == ARBITER_DONE) {
        schedule_waits(&n->schedule, (uint32_t)s->card[m->card], p->slice, m->held_back_ns & ARBITER_WAITS);
        contexts_are(n, p, m->held_back_ns);
    }
    if (m->kind == ARBITER_WANT) return want(n, p, m->card, m->gang), true;
    if (m->kind == ARBITER_ENDING) return ending(n, p, m), true;
    if (m->kind != ARBITER_DONE || !apart_hear(n, p, m)) return false;
    apart_reported(n, p->slice, m->card, m->length_ns, clock_now());
    if ((p->granted >> m->card & 1) && m->lease != s->lease[m->card]) return true; /* for an earlier lease: it crossed the GRANT on the way */
    if (m->more) p->wants |= 1ull << m->card;
    else p->wants &= ~(1ull << m->card);
    schedule_worked(&n->schedule, (uint32_t)s->card[m->card], p->slice, (m->held_back_ns >> ARBITER_WORKED_SHIFT) * 1000);
    give_back(n, p, m->card);
    if (m->more) want(n, p, m->card, m->gang); /* other processes of the container may still hold the lease, and this one joins them */
    return true;
}

static uint64_t heard_in_second(uint64_t *second, uint64_t *heard, uint64_t now)
{
    if (now / SECOND != *second) *second = now / SECOND, *heard = 0;
    return ++*heard;
}

/* While the arbiter handles messages of one container, no other container is served. */
static bool flood(struct slice *s, struct peer *p, uint64_t now)
{
    uint64_t of_peer = heard_in_second(&p->second, &p->heard, now), of_slice = heard_in_second(&s->second, &s->heard, now);
    return of_peer > MESSAGES_A_SECOND || (of_slice > MESSAGES_OF_A_SLICE && of_peer > MESSAGES_OF_A_SLICE / s->peer_count);
}

void peer_hear(struct node *n, uint32_t index)
{
    struct peer *p = &n->peers[index];
    for (int i = 0; i < ROUND && p->fd >= 0; i++) {
        struct arbiter_message m;
        ssize_t size = clock_receive(p->fd, &m, sizeof m, MSG_DONTWAIT | MSG_TRUNC);
        if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (size <= 0) return lose(n, index);
        bool flooded = flood(slice_of(n, p), p, clock_now());
        if (!flooded && size == sizeof m && obey(n, p, &m)) continue;
        event_note(n, slice_of(n, p)->path, p->pid, flooded ? EVENT_FLOOD : EVENT_NONSENSE);
        return lose(n, index);
    }
}

/* ---- decisions ---- */

static int card_of_slice(const struct slice *s, uint32_t card)
{
    for (uint32_t c = 0; c < s->cards; c++)
        if (s->card[c] == (int)card) return (int)c;
    return -1;
}

static void tell_all(struct node *n, struct slice *s, enum arbiter_kind kind, uint32_t card, uint64_t length)
{
    for (int i = s->peers; i >= 0; i = n->peers[i].next)
        if (n->peers[i].granted >> card & 1) tell(n, &n->peers[i], kind, card, length);
}

static void begin_lease(struct node *n, struct slice *s, uint32_t card, const struct schedule_decision *d, uint64_t now)
{
    bool goes_on = s->outstanding[card]; /* processes that are late have the lease, too */
    if (!goes_on) s->lease[card] = ++n->next_lease;
    s->begins[card] = d->begins;
    s->until[card] = d->until;
    s->recalled[card] = false;
    s->shared[card] = d->shared;
    s->ends[card] = 0;
    uint64_t throttled = n->schedule.seats[d->card][d->tenant].throttled_ns;
    s->held_back[card] = throttled - s->throttled[card];
    s->throttled[card] = throttled;
    for (int i = s->peers; i >= 0; i = n->peers[i].next)
        if ((n->peers[i].wants & ~n->peers[i].granted) >> card & 1) grant(n, &n->peers[i], card, now);
    if (!s->outstanding[card]) schedule_done(&n->schedule, d->card, d->tenant, false, now);
}

void peers_tell(struct node *n, const struct schedule_decision *d, uint64_t now)
{
    struct slice *s = &n->slices[d->tenant];
    int card = card_of_slice(s, d->card);
    if (card < 0) return;
    if (d->what == SCHEDULE_GRANT) return begin_lease(n, s, (uint32_t)card, d, now);
    if (d->what == SCHEDULE_BEGIN) {
        s->begins[card] = now;
        return tell_all(n, s, ARBITER_BEGINS, (uint32_t)card, now);
    }
    if (d->what == SCHEDULE_JOINED) {
        s->shared[card] = true;
        return tell_all(n, s, ARBITER_SHARED, (uint32_t)card, 0);
    }
    if (d->what == SCHEDULE_LATE && n->schedule.seats[d->card][d->tenant].incomplete) return; /* not to blame */
    if (d->what == SCHEDULE_LATE) return event_note(n, s->path, 0, EVENT_LATE);
    s->recalled[card] = true;
    tell_all(n, s, ARBITER_RECALL, (uint32_t)card, 0);
}
