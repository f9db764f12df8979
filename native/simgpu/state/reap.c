/* Frees what dead processes held. Any living process does this: when memory is short, when it starts, every few milliseconds of activity, and
 * when the ledger is read. */
#include "state.h"

#include <stdio.h>

#define REAP_EVERY_NS 20000000ull

void sim_object_path(const struct sim_host *host, uint64_t object, char *out, size_t size)
{
    snprintf(out, size, "%s/object-%llu", host->directory, (unsigned long long)object);
}

static void drop_charges(struct sim_host *host, uint32_t slot)
{
    struct sim_state *s = host->state;
    for (uint32_t i = 0; i < s->charge_high; i++)
        if (atomic_load(&s->charges[i].state) == SIM_HELD && s->charges[i].process == slot) sim_release(host, i + 1);
}

static void drop_contexts(struct sim_host *host, uint32_t slot)
{
    struct sim_state *s = host->state;
    for (uint32_t i = 0; i < s->context_high; i++)
        if (atomic_load(&s->contexts[i].state) == SIM_HELD && s->contexts[i].process == slot) sim_context_drop(host, i);
}

static void drop_events(struct sim_host *host, uint32_t slot)
{
    struct sim_state *s = host->state;
    for (uint32_t i = 0; i < s->event_high; i++)
        if (atomic_load(&s->events[i].state) == SIM_HELD && s->events[i].process == slot)
            atomic_store(&s->events[i].state, SIM_FREE);
}

static uint64_t usage_most(const struct sim_usage *u) { return u->now + u->slack; }

static void note_end(struct sim_process *p)
{
    for (uint32_t card = 0; card < SIM_CARDS; card++)
        if (usage_most(&p->usage[card]) > p->left[card]) p->left[card] = usage_most(&p->usage[card]);
    p->left_ns = sim_now();
}

uint32_t sim_live_from(const struct sim_state *s, uint32_t slot)
{
    for (; slot < SIM_PROCESSES; slot = (slot / 64 + 1) * 64) {
        uint64_t rest = atomic_load(&s->live[slot / 64]) >> slot % 64;
        if (rest) return slot + (uint32_t)__builtin_ctzll(rest);
    }
    return SIM_PROCESSES;
}

void sim_live_set(struct sim_state *s, uint32_t slot)
{
    if (slot >= s->process_high) s->process_high = slot + 1;
    SIM_POINT();
    atomic_fetch_or(&s->live[slot / 64], UINT64_C(1) << slot % 64);
    SIM_POINT();
}

static void live_clear(struct sim_state *s, uint32_t slot)
{
    atomic_fetch_and(&s->live[slot / 64], ~(UINT64_C(1) << slot % 64));
}

void sim_reap_slot(struct sim_host *host, uint32_t slot)
{
    struct sim_process *p = &host->state->processes[slot];
    if (atomic_load(&p->state) != SIM_LIVE) return;
    note_end(p);
    if (!p->is_nvml) {
        drop_contexts(host, slot);
        drop_charges(host, slot);
        drop_events(host, slot);
    }
    SIM_POINT();
    atomic_store(&p->state, SIM_DEAD); /* last: if this process is killed before, the next one reaps the rest */
    SIM_POINT();
    live_clear(host->state, slot);
    host->state->reaped++;
}

void sim_reap(struct sim_host *host)
{
    struct sim_state *s = host->state;
    SIM_EACH_LIVE(s, slot) {
        if (atomic_load(&s->processes[slot].state) != SIM_LIVE) live_clear(s, slot); /* stale after a death between the two stores */
        else if (!sim_slot_alive(host, slot)) sim_reap_slot(host, slot);
    }
    if (s->unclaimed) sim_release_unclaimed(host);
    s->reap_checked_ns = sim_now();
}

void sim_reap_all(struct sim_host *host)
{
    sim_reap(host);
    SIM_EACH_LIVE(host->state, slot) {
        const struct sim_process *p = &host->state->processes[slot];
        if (slot != host->slot && atomic_load(&p->state) == SIM_LIVE && sim_process_gone(p)) sim_reap_slot(host, slot);
    }
}

void sim_reap_sometimes(struct sim_host *host, uint64_t now)
{
    if (now - host->state->reap_checked_ns >= REAP_EVERY_NS) sim_reap(host);
}

/* After the lock was taken over from a dead holder: rebuilds the derived fields. */
void sim_recover(struct sim_host *host)
{
    host->state->recoveries++;
    sim_ledger_rebuild(host);
    sim_engine_rebuild(host);
    sim_reap(host);
}
