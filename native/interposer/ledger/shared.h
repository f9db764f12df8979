/* This process's view of the two files of its container, for the parts of the ledger among themselves. */
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

/* The counts are copies, checked once: what stands in the file later, anybody in the container may have scribbled. */
struct fr_shared {
    struct fr_limits *limits; /* NULL: none */
    struct fr_region *region; /* NULL: none; set last */
    struct fr_region_card *cards;
    struct fr_object *objects;
    char *slots;
    size_t slot_size;
    uint32_t card_count, slot_count, object_count;
    uint32_t slot; /* ours, once fr_process_join has said so */
    _Atomic uint32_t *_Atomic joined; /* not 0 there: it is ours. In a page that is empty again in a forked child */
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

static inline bool fr_process_is_joined(void) /* a slot is ours; takes none */
{
    _Atomic uint32_t *joined = atomic_load(&fr_shared.joined);
    return joined && atomic_load(joined);
}

static inline uint32_t fr_slots_in_use(void) /* none from here on was ever taken */
{
    uint32_t high = atomic_load_explicit(&fr_shared.region->slot_high, memory_order_acquire);
    return high < fr_shared.slot_count ? high : fr_shared.slot_count;
}

#endif
