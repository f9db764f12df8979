/* This process's view of the two files of its container, for the parts of the ledger among themselves. */
#ifndef FRACTILE_SHARED_H
#define FRACTILE_SHARED_H

#include "fractile.h"
#include "region.h"

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
    uint32_t slot; /* ours, once fr_process_state has said so */
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

static inline uint32_t fr_slots_in_use(void) /* none from here on was ever taken */
{
    uint32_t high = atomic_load_explicit(&fr_shared.region->slot_high, memory_order_acquire);
    return high < fr_shared.slot_count ? high : fr_shared.slot_count;
}

/* limits.c and attach.c: false, and said, when there is none to be used. The caller holds the process's set-up lock. */
bool fr_limits_map(void);
bool fr_region_map(void);
int fr_region_open(void);     /* -1, and said */
bool fr_region_use(int fd);   /* the file is the one that is mapped; maps it when none is */
bool fr_isolation_is_off(void);     /* the administrator's switch, as it stands now */

/* process.c, slot.c */
bool fr_process_join(void);    /* a slot is ours; takes one */
bool fr_process_is_joined(void); /* does not */
bool fr_slot_take(void);
void fr_slot_before_fork(void);
void fr_slot_after_fork(void); /* in the parent */
void fr_slot_in_child(void);

/* reap.c */
void fr_reap(void);                     /* gives back what the dead held */
bool fr_slot_over(const struct fr_slot *s); /* its byte is free: has its process really ended? */
bool fr_reap_slot(uint32_t slot);       /* whose byte the caller has locked; false: not now, somebody holds on to the objects */
void fr_reap_if_dead(uint32_t slot);

/* objects.c: what becomes of the objects of a dead slot. The caller has locked its byte. */
bool fr_objects_lock_as(uint32_t slot);
void fr_objects_unlock(void);
void fr_objects_free_from(uint32_t slot); /* no longer in use: takes the lock from it if it stands there still */
void fr_objects_drop(uint32_t slot);
void fr_objects_settle(void); /* frees what only descriptors kept, when they are closed; of a process with a slot */

#endif
