/* The ledger: how much of which card each process and container holds. Every memory test is judged by it. It uses no code of the interposer. */
#include "state.h"

#include <fcntl.h>
#include <unistd.h>

const char *const sim_kind_names[SIM_KINDS] = {"linear", "small", "managed", "pool", "vmm",
                                               "array",  "graph", "context", "module", "multicast"};

uint64_t sim_free_bytes(const struct sim_card *card)
{
    uint64_t taken = card->used + card->reserved;
    return taken < card->total ? card->total - taken : 0;
}

static void raise(struct sim_usage *u, const struct sim_charge *c)
{
    u->slack += c->slack;
    u->now += c->bytes;
    if (u->now > u->peak) u->peak = u->now;
}

static uint64_t usage_most(const struct sim_usage *u) { return u->now + u->slack; }

/* After an "out of memory", a test's judge asks how much the container held, or may have been counted to hold, at any moment of the call. */
static void remember(struct sim_state *s, uint32_t container, uint32_t card)
{
    uint64_t n = atomic_load_explicit(&s->changes, memory_order_relaxed);
    s->history[n % SIM_HISTORY] = (struct sim_change){container, card, usage_most(&s->containers[container].usage[card])};
    atomic_store_explicit(&s->changes, n + 1, memory_order_release);
}

static void book(struct sim_state *s, const struct sim_charge *c)
{
    SIM_POINT();
    if (c->process == SIM_NOBODY) s->unclaimed++;
    else raise(&s->processes[c->process].usage[c->card], c);
    SIM_POINT();
    raise(&s->containers[c->container].usage[c->card], c);
    remember(s, c->container, c->card);
    s->cards[c->card].used += c->bytes;
    if (s->cards[c->card].used > s->cards[c->card].peak) s->cards[c->card].peak = s->cards[c->card].used;
}

static void lower(struct sim_usage *u, const struct sim_charge *c)
{
    u->now -= c->bytes;
    u->slack -= c->slack;
}

static void unbook(struct sim_state *s, const struct sim_charge *c)
{
    if (c->process == SIM_NOBODY) s->unclaimed--;
    else lower(&s->processes[c->process].usage[c->card], c);
    SIM_POINT();
    lower(&s->containers[c->container].usage[c->card], c);
    remember(s, c->container, c->card);
    SIM_POINT();
    s->cards[c->card].used -= c->bytes;
}

static uint32_t take_entry(struct sim_state *s)
{
    if (s->charge_free) {
        uint32_t index = s->charge_free - 1;
        s->charge_free = s->charges[index].next_free;
        return index + 1;
    }
    return s->charge_high < SIM_CHARGES ? ++s->charge_high : 0;
}

static uint32_t fill(struct sim_host *host, uint32_t card, enum sim_kind kind, uint64_t bytes, uint64_t asked,
                     uint64_t object)
{
    struct sim_state *s = host->state;
    uint32_t charge = take_entry(s);
    if (!charge) return 0;
    struct sim_charge *c = &s->charges[charge - 1];
    c->card = (uint16_t)card;
    c->process = (uint16_t)host->slot;
    c->container = (uint16_t)s->processes[host->slot].container;
    c->kind = (uint8_t)kind;
    c->exported = 0;
    c->bytes = bytes;
    c->slack = 0;
    SIM_POINT();
    c->asked = asked;
    c->object = object ? object : atomic_fetch_add(&s->next_object, 1);
    SIM_POINT();
    atomic_store(&c->state, SIM_HELD); /* from here on the memory is held */
    SIM_POINT();
    s->charge_count++;
    book(s, c);
    return charge;
}

/* A real driver frees a process's memory when the process dies; here that happens later. That delay must not show in any peak. */
static bool would_be_a_peak(const struct sim_host *host, uint32_t card, uint64_t bytes)
{
    const struct sim_process *p = &host->state->processes[host->slot];
    const struct sim_usage *u = &host->state->containers[p->container].usage[card];
    return u->now + bytes > u->peak;
}

uint32_t sim_charge_memory(struct sim_host *host, uint32_t card, enum sim_kind kind, uint64_t bytes, uint64_t asked)
{
    struct sim_card *c = &host->state->cards[card];
    bool short_of = bytes > sim_free_bytes(c); /* dead processes may hold the missing bytes */
    if (short_of || would_be_a_peak(host, card, bytes)) sim_reap_all(host);
    return bytes > sim_free_bytes(c) ? 0 : fill(host, card, kind, bytes, asked, 0);
}

/* A multicast object has a size but no bytes: every holder remembers the size. */
uint32_t sim_charge_import(struct sim_host *host, uint32_t card, enum sim_kind kind, uint64_t object, uint64_t size)
{
    uint32_t charge = fill(host, card, kind, 0, kind == SIM_MULTICAST ? size : 0, object);
    if (charge) host->state->charges[charge - 1].exported = 1;
    return charge;
}

static struct sim_charge *other_holder(struct sim_state *s, const struct sim_charge *than)
{
    for (uint32_t i = 0; i < s->charge_high; i++) {
        struct sim_charge *c = &s->charges[i];
        if (c != than && atomic_load(&c->state) == SIM_HELD && c->object == than->object) return c;
    }
    return NULL;
}

/* Kind, card and size of a shared object, from its payer's charge. */
bool sim_object_find(struct sim_host *host, uint64_t object, enum sim_kind *kind, uint32_t *card, uint64_t *size)
{
    for (uint32_t i = 0; i < host->state->charge_high; i++) {
        const struct sim_charge *c = &host->state->charges[i];
        if (atomic_load(&c->state) != SIM_HELD || c->object != object || !c->exported) continue;
        if (!c->bytes && c->kind != SIM_MULTICAST) continue;
        *kind = c->kind;
        *card = c->card;
        *size = c->asked ? c->asked : c->bytes;
        return true;
    }
    return false;
}

/* Moves the bytes to another process that holds the object. */
static void hand_over(struct sim_state *s, struct sim_charge *from, struct sim_charge *to)
{
    unbook(s, to);
    unbook(s, from);
    to->bytes = from->bytes;
    to->slack = from->slack;
    SIM_POINT();
    to->asked = from->asked;
    SIM_POINT();
    from->bytes = from->slack = 0;
    SIM_POINT();
    book(s, from);
    book(s, to);
}

/* Keeps the bytes charged while only an open descriptor holds them. */
static void leave_unclaimed(struct sim_state *s, struct sim_charge *c)
{
    unbook(s, c);
    SIM_POINT();
    c->process = SIM_NOBODY;
    SIM_POINT();
    book(s, c);
}

/* True: the charge stays. */
static bool leave_object(struct sim_host *host, struct sim_charge *c)
{
    struct sim_charge *heir = other_holder(host->state, c);
    char path[256];
    if (heir && c->bytes) hand_over(host->state, c, heir);
    if (heir) return false;
    if (sim_descriptor_open(host, c->object)) {
        if (c->process != SIM_NOBODY) leave_unclaimed(host->state, c);
        return true;
    }
    sim_object_path(host, c->object, path, sizeof path);
    unlink(path);
    return false;
}

void sim_release(struct sim_host *host, uint32_t charge)
{
    struct sim_state *s = host->state;
    if (!charge) return;
    struct sim_charge *c = &s->charges[charge - 1];
    if (c->exported && leave_object(host, c)) return;
    unbook(s, c);
    SIM_POINT();
    atomic_store(&c->state, SIM_FREE);
    SIM_POINT();
    c->next_free = s->charge_free;
    SIM_POINT();
    s->charge_free = charge;
    SIM_POINT();
    s->charge_count--;
}

/* Releases memory that only descriptors held, if no descriptor is open any more. */
void sim_release_unclaimed(struct sim_host *host)
{
    struct sim_state *s = host->state;
    for (uint32_t i = 0, left = s->unclaimed; left && i < s->charge_high; i++) {
        struct sim_charge *c = &s->charges[i];
        if (atomic_load(&c->state) != SIM_HELD || c->process != SIM_NOBODY) continue;
        left--;
        if (!sim_descriptor_open(host, c->object)) sim_release(host, i + 1);
    }
}

void sim_allow(struct sim_host *host, uint32_t charge, uint64_t slack)
{
    struct sim_charge *c = &host->state->charges[charge - 1];
    unbook(host->state, c);
    SIM_POINT();
    c->slack = slack;
    SIM_POINT();
    book(host->state, c);
}

void sim_share(struct sim_host *host, uint32_t charge)
{
    host->state->charges[charge - 1].exported = 1;
}

/* A process was killed while it held the lock: sums and the free list may be wrong, the state words are right. An interrupted hand-over may
 * have left the bytes in two charges; they must count once. */
static void drop_doubles(struct sim_state *s)
{
    for (uint32_t i = 0; i < s->charge_high; i++) {
        struct sim_charge *c = &s->charges[i];
        if (atomic_load(&c->state) != SIM_HELD || !c->exported || !c->bytes) continue;
        for (uint32_t k = i + 1; k < s->charge_high; k++) {
            struct sim_charge *d = &s->charges[k];
            if (atomic_load(&d->state) == SIM_HELD && d->exported && d->object == c->object) d->bytes = d->slack = 0;
        }
    }
}

static void clear_sums(struct sim_state *s)
{
    for (uint32_t card = 0; card < SIM_CARDS; card++) {
        s->cards[card].used = 0;
        for (uint32_t i = 0; i < s->process_high; i++) s->processes[i].usage[card].now = s->processes[i].usage[card].slack = 0;
        for (uint32_t i = 0; i < SIM_CONTAINERS; i++) s->containers[i].usage[card].now = s->containers[i].usage[card].slack = 0;
    }
    s->charge_free = 0;
    s->charge_count = 0;
    s->unclaimed = 0;
}

void sim_ledger_rebuild(struct sim_host *host)
{
    struct sim_state *s = host->state;
    drop_doubles(s);
    clear_sums(s);
    for (uint32_t i = 0; i < s->charge_high; i++) {
        struct sim_charge *c = &s->charges[i];
        if (atomic_load(&c->state) == SIM_HELD) {
            book(s, c);
            s->charge_count++;
        } else {
            c->next_free = s->charge_free;
            s->charge_free = i + 1;
        }
    }
}
