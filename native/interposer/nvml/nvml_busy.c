/* Recent GPU time. The region counts the time that each process has held the card since it started. A percentage is the growth between two
 * looks. The library measures nothing of a process that is not paced, so the driver's own figure is used for it.
 *
 * Two looks are kept per card, at least half a second apart. A percentage covers the time since the older one, so it covers at least that
 * half second once a process has asked before. The first call waits until a twentieth of a second has passed since the card's handle was
 * returned. */
#include "nvml/nvml_busy.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "ledger/ledger.h"
#include "nvml/nvml_processes.h"

#include "clock.h"
#include "region.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#define KEEP_NS 500000000ull
#define SHORTEST_NS 50000000ull

struct seen {
    uint64_t ns;
    uint32_t generation, here;
};

struct look {
    uint64_t at_ns;
    struct seen *slots;
};

static FR_LARGE struct {
    struct fr_lock lock; /* held for one walk over the slots */
    struct look older, newer;
    uint64_t window_ns;
} cards[FR_MAX_CARDS];

static uint64_t now_ns(void)
{
    return clock_now();
}

unsigned long long fr_wall_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (unsigned long long)t.tv_sec * 1000000ull + (unsigned long long)t.tv_nsec / 1000;
}

static bool room(int card)
{
    size_t size = FR_MAX_SLOTS * sizeof(struct seen);
    if (cards[card].older.slots) return true;
    char *both = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (both == MAP_FAILED) return false;
    cards[card].older.slots = (void *)both;
    cards[card].newer.slots = (void *)(both + size);
    return true;
}

static bool note(const struct fr_nvml_process *tenant, void *data)
{
    struct look *look = data;
    if (tenant->slot < FR_MAX_SLOTS) look->slots[tenant->slot] = (struct seen){tenant->gpu_ns, tenant->generation, 1};
    return true;
}

static void take(int card, struct look *look, uint64_t now)
{
    look->at_ns = now;
    for (unsigned i = 0; i < FR_MAX_SLOTS; i++)
        if (look->slots[i].here) look->slots[i].here = 0;
    fr_nvml_processes(card, note, look);
}

void fr_busy_look(int card)
{
    fr_lock(&cards[card].lock);
    if (!cards[card].older.at_ns && room(card)) {
        take(card, &cards[card].older, now_ns());
        take(card, &cards[card].newer, now_ns());
    }
    fr_unlock(&cards[card].lock);
}

static uint64_t grown(const struct look *since, const struct fr_nvml_process *tenant)
{
    if (tenant->slot >= FR_MAX_SLOTS) return 0;
    const struct seen *then = &since->slots[tenant->slot];
    if (!then->here || then->generation != tenant->generation) return tenant->gpu_ns; /* started after the look */
    return tenant->gpu_ns > then->ns ? tenant->gpu_ns - then->ns : 0;
}

static unsigned driver_percent(const struct fr_nvml_process *tenant, const struct fr_driver_utilization *driver)
{
    for (unsigned i = 0; i < driver->count; i++)
        if (driver->of[i].pid == tenant->pid) return driver->of[i].busy;
    return 0;
}

struct sum {
    const struct look *since;
    const struct fr_driver_utilization *driver;
    uint64_t ns;
    unsigned percent; /* of the processes without a measured time */
};

static bool add(const struct fr_nvml_process *tenant, void *data)
{
    struct sum *sum = data;
    uint64_t ns = grown(sum->since, tenant);
    sum->ns += ns;
    if (!ns) sum->percent += driver_percent(tenant, sum->driver);
    return true;
}

static unsigned percent(uint64_t ns, uint64_t window_ns)
{
    uint64_t n = window_ns ? (ns * 100 + window_ns / 2) / window_ns : 0;
    return n > 100 ? 100 : (unsigned)n;
}

static void wait_for_a_window(int card)
{
    uint64_t age = now_ns() - __atomic_load_n(&cards[card].older.at_ns, __ATOMIC_RELAXED);
    if (age < SHORTEST_NS) clock_sleep_until(now_ns() + SHORTEST_NS - age);
}

/* The newer look becomes the older one when it is old enough to measure from. */
static void step(int card, uint64_t now)
{
    struct look *older = &cards[card].older, *newer = &cards[card].newer, spare = *older;
    if (now - newer->at_ns < KEEP_NS) return;
    *older = *newer;
    *newer = spare;
    take(card, newer, now);
}

unsigned fr_busy_percent(int card, const struct fr_driver_utilization *driver)
{
    fr_busy_look(card);
    wait_for_a_window(card);
    fr_used(card); /* reaps the dead */
    fr_lock(&cards[card].lock);
    unsigned result = 0;
    if (cards[card].older.at_ns) {
        uint64_t now = now_ns();
        step(card, now);
        struct sum sum = {&cards[card].older, driver, 0, 0};
        fr_nvml_processes(card, add, &sum);
        cards[card].window_ns = now - cards[card].older.at_ns;
        result = percent(sum.ns, cards[card].window_ns) + sum.percent;
    }
    fr_unlock(&cards[card].lock);
    return result < 100 ? result : 100;
}

unsigned fr_busy_percent_of(int card, const struct fr_nvml_process *tenant, const struct fr_driver_utilization *driver)
{
    fr_lock(&cards[card].lock);
    uint64_t ns = cards[card].older.at_ns ? grown(&cards[card].older, tenant) : 0;
    unsigned result = percent(ns, cards[card].window_ns);
    fr_unlock(&cards[card].lock);
    return ns ? result : driver_percent(tenant, driver);
}
