/* What a dead process held comes back. Any live process does it: when memory is short, when one starts, every few
 * milliseconds of activity, and when somebody reads the ledger. */
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

static void note_end(struct sim_process *p)
{
    for (uint32_t card = 0; card < SIM_CARDS; card++)
        if (p->usage[card].now > p->left[card]) p->left[card] = p->usage[card].now;
    p->left_ns = sim_now();
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
    atomic_store(&p->state, SIM_DEAD); /* last: killed before, the next one reaps the rest */
    host->state->reaped++;
}

void sim_reap(struct sim_host *host)
{
    struct sim_state *s = host->state;
    for (uint32_t slot = 0; slot < SIM_PROCESSES; slot++)
        if (atomic_load(&s->processes[slot].state) == SIM_LIVE && !sim_slot_alive(host, slot)) sim_reap_slot(host, slot);
    if (s->unclaimed) sim_release_unclaimed(host);
    s->reap_checked_ns = sim_now();
}

void sim_reap_all(struct sim_host *host)
{
    sim_reap(host);
    for (uint32_t slot = 0; slot < SIM_PROCESSES; slot++) {
        const struct sim_process *p = &host->state->processes[slot];
        if (slot != host->slot && atomic_load(&p->state) == SIM_LIVE && sim_process_gone(p)) sim_reap_slot(host, slot);
    }
}

void sim_reap_sometimes(struct sim_host *host, uint64_t now)
{
    if (now - host->state->reap_checked_ns >= REAP_EVERY_NS) sim_reap(host);
}

/* The lock was taken from a dead holder. */
void sim_recover(struct sim_host *host)
{
    host->state->recoveries++;
    sim_ledger_rebuild(host);
    sim_engine_rebuild(host);
    sim_reap(host);
}
