/* Processes of three containers send arbitrary messages to the arbiter, in any order and at any time. After each message the accounts must agree:
 * a container holds a card as often as its processes do. And every decision must come to an end. */
#include "../../arbiter/peers.c"

#include "clock.h"

#include <stddef.h>
#include <stdlib.h>

#define SLICES 3
#define PEERS_EACH 2
#define NO_FILE 1000000 /* no descriptor has this number: messages to it are lost */

static uint64_t now;
static struct node n;

uint64_t clock_now(void) { return now; }
ssize_t clock_send(int fd, const void *m, size_t size, int flags) { (void)fd, (void)m, (void)flags; return (ssize_t)size; }
ssize_t clock_receive(int fd, void *m, size_t size, int flags) { (void)fd, (void)m, (void)size, (void)flags; return 0; }
void event_note(struct node *node, const char *path, pid_t pid, enum event_kind kind) { (void)node, (void)path, (void)pid, (void)kind; }
bool node_watch(struct node *node, int fd, enum source what, uint32_t index) { (void)node, (void)fd, (void)what, (void)index; return true; }

static void admit_one(uint32_t slice)
{
    int at = n.free_peer;
    if (at < 0 || n.slices[slice].peer_count >= PEERS_EACH) return;
    n.free_peer = n.peers[at].next;
    n.peers[at] = (struct peer){.fd = NO_FILE, .life = -1, .next = n.slices[slice].peers, .slice = slice, .pid = 1};
    n.slices[slice].peers = at;
    n.slices[slice].peer_count++;
}

static void set_up(void)
{
    static const int16_t cards[SLICES][3] = {{0, 1, 2}, {1, -1, 2}, {2, 0, -1}};
    memset(&n, 0, offsetof(struct node, schedule));
    memset(n.slices, 0, SLICES * sizeof *n.slices);
    now = 1000 * SECOND;
    schedule_init(&n.schedule);
    n.card_count = 3;
    for (int i = 0; i < SLICES * PEERS_EACH; i++) n.peers[i] = (struct peer){.fd = -1, .next = i + 1 < SLICES * PEERS_EACH ? i + 1 : -1};
    for (uint32_t s = 0; s < SLICES; s++) {
        struct slice *slice = &n.slices[s];
        slice->present = true, slice->peers = -1, slice->cards = 3;
        memcpy(slice->card, cards[s], sizeof cards[s]);
        for (uint32_t c = 0; c < 3; c++)
            if (slice->card[c] >= 0) schedule_seat(&n.schedule, (uint32_t)slice->card[c], s, (struct schedule_terms){.weight = 1 + s, .limit = s == 2 ? 30 : 0}, now);
        for (int i = 0; i < PEERS_EACH; i++) admit_one(s);
    }
}

static void decide(void)
{
    struct schedule_decision d;
    uint64_t again;
    for (int i = 0; schedule_decide(&n.schedule, now, &d, &again); i++) {
        if (i == 1000) abort();
        peers_tell(&n, &d, now);
    }
}

static void check(void)
{
    for (uint32_t s = 0; s < SLICES; s++)
        for (uint32_t c = 0; c < 3; c++) {
            uint32_t holding = 0, contexts = 0;
            for (int i = n.slices[s].peers; i >= 0; i = n.peers[i].next) {
                uint32_t holds = n.peers[i].granted >> c & 1;
                holding += holds, contexts += holds * n.peers[i].contexts;
            }
            if (holding != n.slices[s].outstanding[c] || contexts != n.slices[s].contexts[c]) abort();
            if (holding && n.slices[s].card[c] < 0) abort();
        }
}

static void step(const uint8_t *data)
{
    uint32_t at = data[1] % (SLICES * PEERS_EACH);
    struct peer *p = &n.peers[at];
    struct arbiter_message m = {.version = ARBITER_VERSION, .kind = data[2] % 5, .card = data[3] % 5, .more = data[4] & 1, .held_back_ns = (data[4] >> 1 & 7) | (uint64_t)data[9] << ARBITER_CONTEXTS_SHIFT};
    memcpy(&m.gang, data + 8, 8);
    if (p->fd >= 0) m.lease = n.slices[p->slice].lease[m.card % 3] - (data[4] >> 7);
    if (data[5] == 255) memcpy(&m.card, data + 8, 4), memcpy(&m.version, data + 12, 4);
    switch (data[0] % 8) {
    case 0: now += (uint64_t)data[6] * data[7] * 100000; break;
    case 1: if (p->fd >= 0) peer_drop(&n, at); break;
    case 2: admit_one(data[1] % SLICES); break;
    default: if (p->fd >= 0 && !obey(&n, p, &m)) peer_drop(&n, at);
    }
    check();
    decide();
    check();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    set_up();
    for (size_t at = 0; at + 16 <= size && at < 4096; at += 16) step(data + at);
    return 0;
}
