/* The lease client: a thread that holds the connection to the arbiter and gives turns back. There is one for each paced card that this
 * process uses.
 *
 *      gate   IDLE --a launch knocks--> ASKED --GRANT--> OPEN --end, RECALL, nothing to do--> CLOSED --drained, DONE--> IDLE or ASKED
 *             any --the arbiter is gone--> FREE --the arbiter is back--> IDLE
 *             any --an arbiter runs, but cannot be reached--> ASKED --it can be reached--> IDLE
 *
 * Without an arbiter no launch waits: the driver's own time slicing then shares the card. If an arbiter runs and this process cannot
 * reach it, launches wait until it can. Otherwise a program would escape its limit if it used up its descriptors or its container's places
 * at the arbiter, closed the library's sockets, forbade itself to connect, or called chroot. The limits page says whether an arbiter runs.
 * The program cannot write that page (native/arbiter/alive.c), while it can fake the kernel's answers by a filter (seccomp).
 * The thread blocks all signals, does not exist in a forked child, and checks that its sockets are still its own: a program may close
 * descriptors that it did not open.
 *
 * Work may run outside of turns: in streams that the program held back and released (`apart`: the client reports it repeatedly, and the
 * arbiter charges the time), or after the connection was lost. GPU time measured beyond all that is reported with the next DONE, and charged. */
#include "pacing/lease_client.h"

#include "base/compiler.h"
#include "base/message.h"
#include "resolve/real.h"
#include "ledger/shared.h"
#include "memory/api_pool.h"
#include "pacing/blocked_streams.h"
#include "pacing/paced_card.h"
#include "pacing/stream_state.h"
#include "pacing/stream_wait.h"
#include "pacing/stuck.h"

#include "clock.h"
#include "protocol.h"
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define AGAIN_NS 20000000ull /* between attempts to find the arbiter */
#define BLOCKED_LOOK_NS 5000000ull /* between checks whether blocked streams run again */
#define NAP_NS 5000ull
#define LONG_NAP_NS 1000000ull
#define OUTSIDE_NS 1000000ull /* time measured beyond the turns: less is not reported */
#define MUCH_OUTSIDE_NS 10000000ull /* ... and this much is reported at once, since the process may end */
#define SLACK_NS 1000ul /* by which the kernel may let this thread oversleep; its default is 50000 */

struct socket {
    int fd;
    uint64_t inode;
};

struct client {
    _Atomic uint32_t started, present;
    struct socket arbiter, ours, theirs; /* a message into `theirs` wakes this thread */
    uint64_t again; /* when to look for an arbiter next */
    bool none;  /* there was no arbiter at the last attempt */
    bool asked; /* the turn was requested */
    bool idle;  /* this turn ends because there is nothing to do */
    bool may_pass_on; /* the arbiter allows the next turn to begin before this one is done */
    uint64_t noted;     /* this turn is counted as held up to this time */
    uint64_t done_at, held_ns, gpu_ns; /* time of the last DONE; time of turns since; GPU time measured up to it */
    uint32_t contexts;  /* in which it had work in flight at the end of the last turn */
    uint64_t worked_ns, unproven_ns; /* measured between the last two DONEs, without unproven time; unproven time measured up to the last */
    uint64_t apart, said_at; /* ARBITER_HOLDS_BACK, ARBITER_RUNS or neither; when that was reported */
    uint64_t held_back; /* time that the container's own limit delayed this turn, according to the arbiter */
    uint64_t begins, begins_lease; /* when a turn begins, according to the arbiter, and its lease */
    uint64_t waited;    /* waited_ns of the account when it was last looked at */
};
static FR_LARGE struct client clients[FR_MAX_CARDS];

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }

static struct socket own(int fd)
{
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) return (struct socket){-1, 0};
    return (struct socket){fd, st.st_ino};
}

static bool still(const struct socket *s)
{
    struct stat st;
    return s->fd >= 0 && fstat(s->fd, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_ino == s->inode;
}

static void drop(struct socket *s)
{
    if (still(s)) close(s->fd);
    s->fd = -1;
}

static int card_of(const struct client *me) { return (int)(me - clients); }
static struct fr_paced_card *paced_card_of(const struct client *me) { return &fr_paced_cards[card_of(me)]; }

static void set_gate(struct fr_paced_card *p, enum fr_gate_state gate)
{
    atomic_store(&p->gate, gate);
    clock_wake(&p->gate);
}

/* ---- accounts, for users and the agent ---- */

/* Turns of several processes of the container overlap. Only the time that no process has counted yet is counted. */
static void note_held(struct client *me)
{
    if (!fr_paced_card_account(paced_card_of(me))) return;
    struct fr_region_card *c = &fr_shared.cards[card_of(me)];
    uint64_t now = clock_now(), until = atomic_load(&c->held_until);
    if (until > now) until = 0; /* overwritten by the program, or from before a restart of the machine */
    uint64_t from = until > me->noted ? until : me->noted;
    if (now <= from) return;
    me->noted = now;
    if (atomic_exchange(&c->held_until, now) < now) atomic_fetch_add_explicit(&c->held_ns, now - from, memory_order_relaxed);
}

/* Of the time that launches waited since the turn before, counts the part that the container's limit caused. */
static void note_waits(struct client *me)
{
    struct fr_account *a = fr_paced_card_account(paced_card_of(me));
    if (!a) return;
    uint64_t waited = atomic_load(&a->waited_ns), more = waited - me->waited;
    me->waited = waited;
    atomic_fetch_add_explicit(&a->throttled_ns, more < me->held_back ? more : me->held_back, memory_order_relaxed);
    me->held_back = 0;
}

/* ---- the arbiter ---- */

/* A socket's name has 108 bytes. A longer directory is named by its descriptor. */
static bool name_of_arbiter(struct sockaddr_un *name, int *directory)
{
    const char *of = fr_shared.directory;
    size_t room = sizeof name->sun_path;
    *directory = -1;
    if ((size_t)snprintf(name->sun_path, room, "%s/" ARBITER_SOCKET, of) < room) return true;
    *directory = open(of, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return *directory >= 0 && (size_t)snprintf(name->sun_path, room, "/proc/self/fd/%d/" ARBITER_SOCKET, *directory) < room;
}

/* After chroot, the name of the socket leads nowhere or to another file. Then a failure says nothing about the arbiter. */
static bool sees_its_directory(void)
{
    char path[sizeof fr_shared.directory + 32];
    struct stat st;
    if (!fr_shared.region) return true;
    snprintf(path, sizeof path, "%s/shared/region", fr_shared.directory);
    return stat(path, &st) == 0 && st.st_dev == fr_shared.device && st.st_ino == fr_shared.inode;
}

/* The node's administrator has removed the directory. No new socket can appear in the one that is still mounted here. */
static bool directory_is_removed(void)
{
    struct stat st;
    return stat(fr_shared.directory, &st) == 0 && st.st_nlink == 0;
}

/* Programs may bring their own connect() (LD_PRELOAD), so these call the kernel directly. */
static int open_socket(void) { return (int)syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }
static bool connects(int fd, const struct sockaddr_un *name) { return syscall(SYS_connect, fd, name, sizeof *name) == 0; }

bool fr_arbiter_lives(void)
{
    const struct fr_limits *page = fr_shared.limits;
    return page && atomic_load_explicit(&page->arbiter, memory_order_relaxed) & FUTEX_TID_MASK;
}

enum found { NO_ARBITER, CANNOT_REACH, FOUND };

static enum found connect_to_arbiter(struct client *me)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int directory = -1, fd = open_socket();
    bool found = fd >= 0 && name_of_arbiter(&name, &directory) && connects(fd, &name);
    int why = errno;
    if (directory >= 0) close(directory);
    if (found) return me->arbiter = own(fd), FOUND;
    if (fd >= 0) close(fd);
    bool none = why == ENOENT || why == ECONNREFUSED || why == ENOTDIR;
    if (none && !fr_arbiter_lives() && (sees_its_directory() || directory_is_removed())) { /* not caused by the program */
        fr_say(FR_SAY_ARBITER, "warning: no arbiter answers at %s/" ARBITER_SOCKET ": the time of the card is not shared out until one does (the node's agent starts it)", fr_shared.directory);
        return NO_ARBITER;
    }
    const char *what = why == EMFILE || why == ENFILE ? "no file descriptor is free" : why == ENOENT ? "the process does not see its directory" : "see errno(3)";
    fr_say(FR_SAY_REACH, "the arbiter at %s/" ARBITER_SOCKET " cannot be reached (error %d: %s): launches wait until it can", fr_shared.directory, why, what);
    return CANNOT_REACH;
}

/* Waits for launches, and ends of contexts, that passed the gate before it closed and have no answer from the driver yet. */
static void wait_for_those_inside(struct fr_paced_card *p)
{
    uint64_t from = clock_now(), nap;
    for (; atomic_load(&p->inside); clock_sleep_until(clock_now() + sooner(nap, LONG_NAP_NS))) {
        nap = NAP_NS + (clock_now() - from) / 16;
        fr_lease_client_is_alive(p);
    }
}

/* Waits until the work in flight is done. Streams that the program holds back stay as they are. */
static void end_turn(struct client *me)
{
    struct fr_paced_card *p = paced_card_of(me);
    do fr_stream_states_drain(p), wait_for_those_inside(p);
    while (fr_stuck_end(p) && (wait_for_those_inside(p), fr_stuck_again(p)));
    note_held(me);
    note_waits(me);
}

/* Of the time measured since the last DONE, the part that proves work. */
static uint64_t less_unproven(struct client *me, uint64_t ran)
{
    uint64_t before = me->unproven_ns, more = (me->unproven_ns = atomic_load(&paced_card_of(me)->unproven_ns)) - before;
    return ran > more ? ran - more : 0;
}

/* GPU time that was used outside of turns since the last DONE. */
static uint64_t take_outside(struct client *me)
{
    uint64_t gpu = atomic_load(&paced_card_of(me)->gpu_ns), now = clock_now(), passed = now - me->done_at;
    uint64_t ran = sooner(gpu - me->gpu_ns, passed), held = me->held_ns;
    me->gpu_ns = gpu;
    me->worked_ns = less_unproven(me, ran);
    me->done_at = now;
    me->held_ns = 0;
    return ran > held + OUTSIDE_NS ? ran - held : 0;
}

/* The gate stays closed until it is known whether an arbiter runs (connected()). For the arbiter the turn ended when it lost this process.
 * That moment is unknown here, so all work of the turn counts as outside. */
static void lose_arbiter(struct client *me)
{
    struct fr_paced_card *p = paced_card_of(me);
    drop(&me->arbiter);
    me->asked = false;
    fr_lease_close(p);
    if (atomic_load(&p->gate) == FR_GATE_CLOSED) {
        wait_for_those_inside(p);
        end_turn(me);
    }
    set_gate(p, FR_GATE_ASKED);
}

static uint64_t state_of(const struct client *me) { return ARBITER_WAITS | me->apart | (uint64_t)me->contexts << ARBITER_CONTEXTS_SHIFT; }

static void say_of(struct client *me, uint64_t lease, enum arbiter_kind kind, uint64_t what)
{
    struct arbiter_message m = {.version = ARBITER_VERSION, .kind = kind, .card = (uint32_t)card_of(me)};
    if (kind == ARBITER_ENDING) m.length_ns = what;
    else m.more = what != 0;
    if (kind == ARBITER_DONE) m.length_ns = take_outside(me), me->said_at = clock_now();
    if (kind != ARBITER_ENDING) m.held_back_ns = state_of(me);
    if (kind == ARBITER_DONE) m.held_back_ns |= me->worked_ns / 1000 << ARBITER_WORKED_SHIFT;
    m.lease = lease;
    m.gang = fr_paced_cards_gang(clock_now()) | 1ull << card_of(me);
    if (still(&me->arbiter) && clock_send(me->arbiter.fd, &m, sizeof m, MSG_NOSIGNAL) == sizeof m) return;
    if (kind == ARBITER_DONE) me->gpu_ns -= m.length_ns, me->unproven_ns -= m.length_ns, me->said_at = 0; /* kept for the next DONE */
    lose_arbiter(me);
}

static void say(struct client *me, enum arbiter_kind kind, uint64_t what) { say_of(me, atomic_load(&paced_card_of(me)->lease), kind, what); }

/* The work may take longer than it should, and the arbiter then needs this number. Lease 0: the turn is not over. */
static void say_contexts(struct client *me)
{
    uint32_t count = fr_stream_states_contexts(paced_card_of(me)), before = me->contexts;
    me->contexts = count ? count : 1;
    if (likely(me->contexts == before)) return;
    struct arbiter_message m = {.version = ARBITER_VERSION, .kind = ARBITER_DONE, .card = (uint32_t)card_of(me), .held_back_ns = state_of(me)};
    if (still(&me->arbiter)) clock_send(me->arbiter.fd, &m, sizeof m, MSG_NOSIGNAL);
}

/* The arbiter and this process read the same clock, unless the container has its own time namespace: then the arbiter's times mean
 * nothing here. */
static uint64_t beginning(const struct client *me, uint64_t lease, uint64_t now)
{
    bool said = me->begins_lease == lease && me->begins > now && me->begins < now + FR_WINDOW_NS;
    return said ? me->begins : now;
}

static void take_grant(struct client *me, const struct arbiter_message *m)
{
    struct fr_paced_card *p = paced_card_of(me);
    uint64_t now = clock_now(), from = beginning(me, m->lease, now);
    atomic_store(&p->lease, m->lease);
    me->asked = false;
    if (atomic_load(&p->gate) != FR_GATE_ASKED) return say(me, ARBITER_DONE, false);
    me->noted = from;
    me->held_back = m->held_back_ns;
    atomic_store(&p->begins, from);
    atomic_store(&p->granted, from);
    atomic_store(&p->end, m->length_ns ? now + m->length_ns : 0);
    atomic_store(&p->launched_now, 0);
    atomic_store(&p->shared, m->more);
    atomic_store(&p->full, 0);
    atomic_store(&p->guessed, 0);
    atomic_store(&p->passes_at, 0);
    atomic_store(&p->alone_at, m->gang & ARBITER_BEHIND ? from + FR_HANDOVER_NS : 0);
    me->may_pass_on = m->gang & ARBITER_MAY_END;
    set_gate(p, FR_GATE_OPEN);
}

/* Arrives before the grant, and once more if the turn before is over sooner than predicted. */
static void take_beginning(struct client *me, const struct arbiter_message *m)
{
    struct fr_paced_card *p = paced_card_of(me);
    uint64_t now = clock_now(), from = later(m->length_ns, now);
    me->begins = m->length_ns;
    me->begins_lease = m->lease;
    if (atomic_load(&p->gate) != FR_GATE_OPEN || m->lease != atomic_load(&p->lease) || atomic_load(&p->begins) <= from) return;
    me->noted = from;
    atomic_store(&p->granted, from);
    atomic_store(&p->begins, from);
    atomic_store(&p->alone_at, 0);
    clock_wake(&p->gate);
}

void fr_lease_wake(int card)
{
    char byte = 1;
    struct client *me = &clients[card];
    if (still(&me->theirs)) clock_send(me->theirs.fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void fr_lease_close(struct fr_paced_card *p)
{
    uint32_t open = FR_GATE_OPEN;
    if (atomic_load(&p->gate) == open) fr_stuck_begin(p);
    if (atomic_compare_exchange_strong(&p->gate, &open, FR_GATE_CLOSED)) fr_lease_wake((int)(p - fr_paced_cards));
}

static void hear(struct client *me)
{
    struct arbiter_message m;
    while (still(&me->arbiter)) {
        ssize_t n = clock_receive(me->arbiter.fd, &m, sizeof m, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n != sizeof m || m.version != ARBITER_VERSION) return lose_arbiter(me);
        if (m.kind == ARBITER_BEGINS) take_beginning(me, &m);
        if (m.kind == ARBITER_GRANT) take_grant(me, &m);
        if (m.kind == ARBITER_SHARED && m.lease == atomic_load(&paced_card_of(me)->lease)) atomic_store(&paced_card_of(me)->shared, 1);
        if (m.kind == ARBITER_RECALL && m.lease == atomic_load(&paced_card_of(me)->lease)) fr_lease_close(paced_card_of(me));
    }
    lose_arbiter(me);
}

/* ---- the turn ---- */

/* When the turn has been idle for long enough: nothing in flight here and on the cards that are used together with this one. A thread
 * that waits for one of those will come back to this card. */
static uint64_t turn_is_idle(const struct fr_paced_card *p)
{
    uint64_t end = atomic_load(&p->end), quiet = later(atomic_load(&p->granted), atomic_load(&p->worked_at));
    uint64_t gang = fr_paced_cards_gang(clock_now()) | 1ull << (p - fr_paced_cards);
    for (int i = 0; i < (int)FR_MAX_CARDS && gang >> i; i++)
        if (gang >> i & 1) quiet = later(quiet, later(atomic_load(&fr_paced_cards[i].queue_end), atomic_load(&fr_paced_cards[i].last_launch)));
    quiet += end || atomic_load(&p->shared) ? FR_IDLE_NS : FR_ALONE_NS;
    uint64_t now = clock_now(), tardy = atomic_load(&p->granted) + FR_TARDY_NS;
    bool on_its_way = atomic_load(&p->at_gate) || atomic_load(&p->inside); /* on a busy machine a thread is woken late */
    return on_its_way && quiet < now + FR_IDLE_NS ? later(quiet, sooner(now + FR_IDLE_NS, tardy)) : quiet;
}

/* While no other container waits for the card, a turn in which a kernel takes longer than predicted goes on. */
static void see_to_long_work(struct fr_paced_card *p, uint64_t now)
{
    bool alone = atomic_load(&p->gate) == FR_GATE_OPEN && !atomic_load(&p->end) && !atomic_load(&p->shared);
    if (alone && now >= turn_is_idle(p) && fr_blocked_runs(p)) atomic_store(&p->worked_at, now);
}

/* When the turn ends if nothing changes. */
static uint64_t turn_ends(const struct fr_paced_card *p)
{
    uint64_t end = atomic_load(&p->end), quiet = turn_is_idle(p);
    if (atomic_load(&p->passes_at) && atomic_load(&p->passes_at) < end) end = atomic_load(&p->passes_at);
    return end && end < quiet ? end : quiet;
}

/* Turns of cards that are used together are requested together: a kernel on one card may wait for a kernel on another. */
static void rally(const struct client *me)
{
    uint64_t gang = fr_paced_cards_gang(clock_now());
    for (int i = 0; i < (int)FR_MAX_CARDS && gang >> i; i++) {
        uint32_t idle = FR_GATE_IDLE;
        if (i == card_of(me) || !(gang >> i & 1) || atomic_load(&clients[i].started) != 2) continue;
        if (atomic_compare_exchange_strong(&fr_paced_cards[i].gate, &idle, FR_GATE_ASKED)) fr_lease_wake(i);
    }
}

/* Another card of the gang waits for its turn, which it does not get without this card. */
static bool is_rallied(const struct client *me)
{
    uint64_t gang = fr_paced_cards_gang(clock_now());
    if (!(gang >> card_of(me) & 1)) return false;
    for (int i = 0; i < (int)FR_MAX_CARDS && gang >> i; i++)
        if (i != card_of(me) && (gang >> i & 1) && atomic_load(&fr_paced_cards[i].gate) == FR_GATE_ASKED) return true;
    return false;
}

/* Tells the arbiter when the next container may begin: just before the last kernel of this turn is done, so that the card is not idle
 * while one thread after the other wakes up. The arbiter waits for that time, because it wakes up sooner. Only if all lengths are known. */
static void pass_on(struct client *me, uint64_t now)
{
    struct fr_paced_card *p = paced_card_of(me);
    uint64_t queue = atomic_load(&p->queue_end), when = queue > now + FR_HANDOVER_NS ? queue - FR_HANDOVER_NS : now;
    bool known = !atomic_load(&p->guessed) && !atomic_load(&p->shared) && !fr_blocked_any(p);
    if (!me->may_pass_on || !known || queue <= now || atomic_load(&p->passes_at)) return;
    atomic_store(&p->passes_at, when);
    say(me, ARBITER_ENDING, when - now);
}

static void give_back(struct client *me)
{
    struct fr_paced_card *p = paced_card_of(me);
    uint64_t from = clock_now();
    wait_for_those_inside(p);
    pass_on(me, clock_now());
    say_contexts(me);
    end_turn(me);
    uint64_t now = clock_now(), granted = atomic_load(&p->granted);
    if (now > granted) me->held_ns += now - granted;
    /* A program that worked until the turn was over needs another one: it may only not have returned yet from waiting for its last kernel. */
    bool idle = me->idle && clock_now() < from + FR_IDLE_NS; /* else kernels were longer than predicted */
    bool at_work = atomic_load(&p->launched_now) && !idle;
    bool more = at_work || atomic_load(&p->waiting) > 0 || is_rallied(me);
    if (more) rally(me);
    atomic_store(&p->gate, more ? FR_GATE_ASKED : FR_GATE_IDLE);
    me->asked = more; /* DONE requests it */
    me->apart = fr_blocked_any(p) ? ARBITER_HOLDS_BACK : 0;
    say(me, ARBITER_DONE, more);
    clock_wake(&p->gate);
}

/* Work of a blocked stream runs from the moment when the stream is released. It needs a turn then. */
static uint64_t see_to_blocked(const struct client *me, bool turn)
{
    struct fr_paced_card *p = paced_card_of(me);
    uint32_t idle = FR_GATE_IDLE;
    bool any = fr_blocked_any(p);
    if ((any || me->apart) && fr_blocked_resumed(p, turn)) return atomic_compare_exchange_strong(&p->gate, &idle, FR_GATE_ASKED), ARBITER_RUNS;
    return any ? ARBITER_HOLDS_BACK : 0;
}

/* Reports work outside of turns by a DONE with lease 0, so that the arbiter does not take it for the end of a turn whose GRANT is on its way. */
static void see_to_outside(struct client *me)
{
    struct fr_paced_card *p = paced_card_of(me);
    uint32_t gate = atomic_load(&p->gate);
    bool turn = gate == FR_GATE_OPEN || gate == FR_GATE_CLOSED;
    uint64_t before = me->apart, apart = see_to_blocked(me, turn);
    if (turn) return;
    me->apart = apart;
    bool due = (apart || !me->said_at) && clock_now() >= me->said_at + ARBITER_APART_NS; /* at least once per connection */
    bool much = atomic_load(&p->gpu_ns) > me->gpu_ns + me->held_ns + MUCH_OUTSIDE_NS;
    if (apart != before || due || much) say_of(me, 0, ARBITER_DONE, me->asked);
}

static uint64_t see_to_gate(struct client *me)
{
    struct fr_paced_card *p = paced_card_of(me);
    uint64_t now = clock_now();
    see_to_outside(me);
    see_to_long_work(p, now);
    me->idle = now >= turn_is_idle(p) && !atomic_load(&p->waiting);
    if (atomic_load(&p->gate) == FR_GATE_OPEN) note_held(me);
    if (atomic_load(&p->gate) == FR_GATE_OPEN && atomic_load(&p->full)) pass_on(me, now);
    if (atomic_load(&p->gate) == FR_GATE_OPEN && now >= turn_ends(p)) fr_lease_close(p);
    if (atomic_load(&p->gate) == FR_GATE_CLOSED) give_back(me);
    if (atomic_load(&p->gate) == FR_GATE_ASKED && !me->asked) {
        me->asked = true;
        rally(me);
        say(me, ARBITER_WANT, true);
    }
    uint64_t until = atomic_load(&p->gate) == FR_GATE_OPEN ? sooner(turn_ends(p), now + FR_LOOK_NS) : 0;
    bool sooner = (fr_blocked_any(p) || me->apart) && (!until || until > now + BLOCKED_LOOK_NS);
    return sooner ? now + BLOCKED_LOOK_NS : until;
}

/* The socket pair by which launches wake this thread. Without one it looks every AGAIN_NS. */
static void own_pair(struct client *me)
{
    int ends[2];
    bool made = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0;
    drop(&me->theirs);
    me->ours = own(made ? ends[0] : -1);
    me->theirs = own(made ? ends[1] : -1);
}

static bool connected(struct client *me)
{
    if (still(&me->arbiter)) return true;
    if (me->arbiter.fd >= 0) lose_arbiter(me);
    if (clock_now() < me->again) return false;
    me->again = clock_now() + AGAIN_NS;
    if (!still(&me->ours)) own_pair(me);
    enum found found = connect_to_arbiter(me);
    if (found == FOUND && me->none) take_outside(me); /* GPU time used without an arbiter is not charged */
    me->said_at = 0;
    me->none = found == NO_ARBITER;
    set_gate(paced_card_of(me), found == FOUND ? FR_GATE_IDLE : found == NO_ARBITER ? FR_GATE_FREE : FR_GATE_ASKED);
    return found == FOUND;
}

/* Without an arbiter and without launches there is nothing to do: the next launch wakes this thread (gate.c). */
static bool quiet(const struct client *me)
{
    bool free = atomic_load(&paced_card_of(me)->gate) == FR_GATE_FREE; /* else launches wait for this thread */
    return free && still(&me->ours) && atomic_load(&fr_paced_cards[card_of(me)].last_launch) + FR_QUIET_NS < clock_now();
}

static void *work(void *of)
{
    struct client *me = of;
    char byte[8];
    clock_now();
    atomic_store(&me->present, 1);
    prctl(PR_SET_TIMERSLACK, SLACK_NS);
    prctl(PR_SET_NAME, "fractile"); /* for users that list the program's threads */
    clock_wake_soon();
    int mode = 2; /* relaxed: this thread's calls to the driver disturb no capture */
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    for (;;) {
        uint64_t until = connected(me) ? see_to_gate(me) : me->again;
        if (me->arbiter.fd < 0) until = quiet(me) ? 0 : me->again;
        struct pollfd fds[2] = {{.fd = still(&me->ours) ? me->ours.fd : -1, .events = POLLIN},
                                {.fd = still(&me->arbiter) ? me->arbiter.fd : -1, .events = POLLIN}};
        if (fds[0].fd < 0 && (!until || until > clock_now() + AGAIN_NS)) until = clock_now() + AGAIN_NS; /* no thread can wake this one */
        clock_poll(fds, 2, until);
        fr_lease_client_is_alive(paced_card_of(me));
        if (fds[0].fd >= 0 && fds[0].revents) clock_receive(me->ours.fd, byte, sizeof byte, MSG_DONTWAIT);
        if (me->arbiter.fd >= 0 && fds[1].revents) hear(me);
    }
    return NULL;
}

/* ---- beginning and end ---- */

static void begin(struct client *me)
{
    pthread_t thread;
    sigset_t all, before;
    me->arbiter.fd = me->ours.fd = me->theirs.fd = -1;
    me->again = 0;
    me->held_ns = 0;
    me->done_at = clock_now();
    me->gpu_ns = atomic_load(&paced_card_of(me)->gpu_ns);
    me->unproven_ns = atomic_load(&paced_card_of(me)->unproven_ns);
    me->none = true;
    me->asked = false;
    me->apart = me->said_at = 0;
    me->contexts = 1;
    me->held_back = 0;
    me->waited = fr_paced_card_account(paced_card_of(me)) ? atomic_load(&fr_paced_card_account(paced_card_of(me))->waited_ns) : 0;
    atomic_store(&me->present, 0);
    fr_lease_client_is_alive(paced_card_of(me));
    if (connected(me)) {} /* so that the first launch finds the right state of the gate */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    for (int why; (why = pthread_create(&thread, NULL, work, me)); clock_sleep_until(clock_now() + AGAIN_NS))
        fr_say(FR_SAY_REACH, "no thread can be started for the arbiter (error %d): launches wait until one can", why);
    pthread_detach(thread);
    while (clock_is_virtual() && !atomic_load(&me->present)) sched_yield(); /* else the virtual clock runs ahead of the thread */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void fr_lease_start(int card)
{
    struct client *me = &clients[card];
    uint32_t no = 0;
    if (likely(atomic_load_explicit(&me->started, memory_order_acquire) == 2)) return;
    if (atomic_compare_exchange_strong(&me->started, &no, 1)) {
        begin(me);
        atomic_store_explicit(&me->started, 2, memory_order_release);
    }
    while (atomic_load(&me->started) == 1) clock_sleep_until(clock_now() + 10000);
}

void fr_lease_after_fork(void)
{
    clock_after_fork();
    for (uint32_t i = 0; i < FR_MAX_CARDS; i++) {
        if (!atomic_load(&clients[i].started)) continue;
        drop(&clients[i].arbiter);
        drop(&clients[i].ours);
        drop(&clients[i].theirs);
        atomic_store(&clients[i].started, 0);
    }
}
