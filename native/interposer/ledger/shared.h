/* This process's view of its container's two files, for use within the ledger only. */
#ifndef FRACTILE_LEDGER_SHARED_H
#define FRACTILE_LEDGER_SHARED_H

#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fr_limits;
struct fr_object;
struct fr_region;
struct fr_region_card;

enum fr_slot_state { FR_SLOT_FREE = 0, FR_SLOT_TAKEN = 1, FR_SLOT_LIVE = 2, FR_SLOT_REAPED = 3 };
enum fr_object_state { FR_OBJECT_FREE = 0, FR_OBJECT_MADE = 1, FR_OBJECT_COVERED = 2, FR_OBJECT_OWN = 3, FR_OBJECT_NAME = 4 };

/* The counts are copies, checked once: any process of the container may overwrite those in the file later. */
struct fr_shared {
    struct fr_limits *limits; /* NULL: none */
    struct fr_region *region; /* NULL: none; set last */
    struct fr_region_card *cards;
    struct fr_object *objects;
    char *slots;
    size_t slot_size;
    uint32_t card_count, slot_count, object_count;
    uint32_t slot; /* this process's slot, once fr_process_join has returned true */
    _Atomic uint32_t *_Atomic joined; /* nonzero there: the slot is this process's. Points into a page that is empty again in a forked child */
    uint64_t device, inode;
    char directory[256];
};
extern struct fr_shared fr_shared;

static inline struct fr_slot *fr_slot(uint32_t slot)
{
    return (struct fr_slot *)(fr_shared.slots + slot * fr_shared.slot_size);
}

static inline struct fr_account *fr_slot_account(uint32_t slot, uint32_t card)
{
    return (struct fr_account *)(fr_slot(slot) + 1) + card;
}

static inline bool fr_process_is_joined(void) /* does this process have a slot? Takes none */
{
    _Atomic uint32_t *joined = atomic_load(&fr_shared.joined);
    return joined && atomic_load(joined);
}

static inline uint32_t fr_slots_in_use(void) /* no slot from here on was ever taken */
{
    uint32_t high = atomic_load_explicit(&fr_shared.region->slot_high, memory_order_acquire);
    return high < fr_shared.slot_count ? high : fr_shared.slot_count;
}

#endif
