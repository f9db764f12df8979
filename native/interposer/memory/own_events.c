/* Events that belong to the library, which watches work in flight with them (pacing/timing_events.c). The driver knows no
 * owner: the handle of an event that the program has destroyed may come back as one of the library's, and the program could
 * record it elsewhere, or destroy it. So a call of the program that names a library event gets the answer that the driver gives
 * for a handle that does not exist.
 *
 * A call of the program may have checked the handle before the event was the library's, and record it afterwards; so may a
 * graph that names the handle. So calls under way are counted by a hash of the handle, and handles that graphs name are
 * remembered; the library does not use an event with such a handle.
 *
 * Calls of the program look up handles without a lock. */
#include "memory/own_events.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

CUresult cuEventCreate(CUevent *, unsigned);
CUresult cuEventDestroy_v2(CUevent);

#define LEAST 512u
#define MOST (1u << 18)          /* of the library's events; half of the places are used */
#define MOST_IN_GRAPHS (1u << 16)
#define CALLS 1024
#define TRIES 8
#define GONE ((uintptr_t)1)
#define WAIT_WITHOUT_SPINNING 1u /* flag of an event */

/* Open addressing. A table of size n lies at places[n ... 2n]; a full table is continued in one of twice the size. */
struct handles {
    struct fr_lock lock;
    _Atomic uintptr_t *places;
    uint32_t most, used; /* used: places that are not empty */
    _Atomic uint32_t size;
};

static FR_LARGE _Atomic uintptr_t own_places[2 * MOST], graph_places[2 * MOST_IN_GRAPHS];
static struct handles own = {.places = own_places, .most = MOST}, in_graphs = {.places = graph_places, .most = MOST_IN_GRAPHS};
static FR_LARGE _Atomic uint32_t calls[CALLS];

static uint32_t hash(uintptr_t handle) { return (uint32_t)(handle * 0x9E3779B97F4A7C15ull >> 32); }

/* The place of the handle, or the empty place that shows it is missing. */
static _Atomic uintptr_t *place_of(const struct handles *h, uint32_t size, uintptr_t handle)
{
    for (uint32_t i = hash(handle);; i++) {
        _Atomic uintptr_t *place = &h->places[size + (i & (size - 1))];
        uintptr_t seen = atomic_load(place);
        if (seen == handle || !seen) return place;
    }
}

static bool has(const struct handles *h, CUevent e)
{
    uint32_t size = atomic_load(&h->size);
    return size && e && atomic_load(place_of(h, size, (uintptr_t)e));
}

static void grow(struct handles *h)
{
    uint32_t size = atomic_load(&h->size), next = size ? 2 * size : LEAST;
    h->used = 0;
    for (uint32_t i = size; i < 2 * size; i++) {
        uintptr_t handle = atomic_load(&h->places[i]);
        if (handle <= GONE) continue;
        atomic_store(place_of(h, next, handle), handle);
        h->used++;
    }
    atomic_store(&h->size, next);
}

static bool add(struct handles *h, CUevent e)
{
    fr_lock(&h->lock);
    bool full = 2 * (h->used + 1) > atomic_load(&h->size), room = !full || atomic_load(&h->size) < h->most;
    if (full && room) grow(h);
    _Atomic uintptr_t *place = room ? place_of(h, atomic_load(&h->size), (uintptr_t)e) : NULL;
    if (room && !atomic_exchange(place, (uintptr_t)e)) h->used++;
    fr_unlock(&h->lock);
    return room;
}

/* A removed handle's place becomes empty if no later place was filled by probing past it. */
static void remove_one(struct handles *h, CUevent e)
{
    fr_lock(&h->lock);
    uint32_t size = atomic_load(&h->size);
    uint32_t at = (uint32_t)(place_of(h, size, (uintptr_t)e) - h->places) - size;
    if (atomic_load(&h->places[size + at])) atomic_store(&h->places[size + at], GONE);
    for (; atomic_load(&h->places[size + at]) == GONE && !atomic_load(&h->places[size + ((at + 1) & (size - 1))]); at = (at - 1) & (size - 1)) {
        atomic_store(&h->places[size + at], 0);
        h->used--;
    }
    fr_unlock(&h->lock);
}

/* ---- the program's calls ---- */

static _Atomic uint32_t *calls_of(CUevent e) { return &calls[hash((uintptr_t)e) % CALLS]; }

bool fr_event_is_own(CUevent e) { return has(&own, e); }

bool fr_event_enter(CUevent e)
{
    atomic_fetch_add(calls_of(e), 1);
    if (likely(!has(&own, e))) return true;
    fr_event_leave(e);
    return false;
}

void fr_event_leave(CUevent e) { atomic_fetch_sub(calls_of(e), 1); }

CUresult fr_event_into_graph(CUevent e) { return !e || add(&in_graphs, e) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY; }

void fr_event_is_the_programs(CUevent e)
{
    if (unlikely(has(&own, e))) remove_one(&own, e); /* its context, and the event with it, ended without the library */
}

/* An attribute of a launch: its number, and from byte 8 on its value, which begins with the event. */
#define ATTRIBUTE_BYTES 72
#define PROGRAMMATIC_EVENT 7
#define LAUNCH_COMPLETION_EVENT 12

bool fr_attribute_is_event(int id) { return id == PROGRAMMATIC_EVENT || id == LAUNCH_COMPLETION_EVENT; }

bool fr_attributes_name_own(const CUlaunchConfig *c)
{
    for (unsigned i = 0; c->attrs && i < c->numAttrs; i++) {
        const char *attribute = (const char *)c->attrs + (size_t)i * ATTRIBUTE_BYTES;
        if (fr_attribute_is_event(*(const int *)attribute) && fr_event_is_own(*(const CUevent *)(attribute + 8))) return true;
    }
    return false;
}

/* ---- the library's events ---- */

static bool is_named(CUevent e) { return atomic_load(calls_of(e)) || has(&in_graphs, e); }

/* An event that the program may still record is kept and not used, so that the driver does not return it again. */
bool fr_own_event_make(CUevent *e)
{
    for (int i = 0; i < TRIES; i++) {
        if (REAL(cuEventCreate)(e, WAIT_WITHOUT_SPINNING)) break;
        if (!add(&own, *e)) {
            REAL(cuEventDestroy_v2)(*e);
            break;
        }
        if (likely(!is_named(*e))) return true;
    }
    *e = NULL;
    return false;
}

void fr_own_event_gone(CUevent e)
{
    if (has(&own, e)) remove_one(&own, e);
}

void fr_own_events_forget(void)
{
    uint32_t size = atomic_load(&own.size);
    for (uint32_t i = size; i < 2 * size; i++) atomic_store(&own.places[i], 0);
    own.used = 0;
}
