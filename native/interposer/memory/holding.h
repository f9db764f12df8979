/* What keeps the driver's physical allocations alive in this process (see holding.c). */
#ifndef FRACTILE_MEMORY_HOLDING_H
#define FRACTILE_MEMORY_HOLDING_H

#include "ledger/descriptor.h"
#include "ledger/ledger.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FR_RELEASE_CARDS 64

struct fr_memory {
    int card;
    _Atomic int object;
    uint64_t bytes;      /* its charge; if it has an object, the object determines what counts */
    struct fr_key key;   /* a is 0 until it is exported or imported */
    uint32_t holds;      /* references, mappings, binds, tiles */
    CUmemGenericAllocationHandle number; /* under which it was made or imported */
    uint32_t calls;      /* calls under way that may add or drop a hold */
    struct fr_memory *next;
};

/* A part of an array: a region of one level and layer, or (kind) a piece of the tail of small levels. A kind
 * that does not exist covers only its like. */
struct fr_box {
    uint32_t kind, level, layer;
    uint64_t from[3], size[3];
};

/* A mapping, a bind or a tile. All are sorted by owner, device, place. */
struct fr_mapping {
    uint64_t owner; /* 0: the address space; else a multicast object or an array */
    uint64_t place, size;
    int device;
    uint32_t ticket; /* of the call that is about to end it */
    struct fr_memory *memory;
    struct fr_box box; /* of a tile */
};

/* What a call gives back at its end. It is announced before the call, so that other processes wait for it. */
struct fr_release {
    struct fr_memory *dead;
    uint32_t ticket;
    int count;
    struct { struct fr_op op; int card; uint64_t bytes; } part[FR_RELEASE_CARDS];
};
void fr_release_begin(struct fr_release *g);
void fr_release_end(struct fr_release *g);

/* Around each driver call that makes, retains or drops a number, from the look into the table until the table says what the
 * driver did (see holding.c). No thread waits for room in between. */
void fr_numbers_enter(void);
void fr_numbers_leave(void);

/* These count a call under way: the allocation cannot end until it is unpinned. NULL: no memory for the table; or not known
 * here. */
struct fr_memory *fr_memory_new(int card, uint64_t bytes, int object);
struct fr_memory *fr_memory_pin(CUmemGenericAllocationHandle number);
struct fr_memory *fr_memory_pin_at(CUdeviceptr address);
void fr_memory_unpin(struct fr_memory *m);

/* Adds one reference by this number. *m may become the allocation that the number already stands for. */
bool fr_handle_add(CUmemGenericAllocationHandle number, struct fr_memory **m);
struct fr_memory *fr_handle_remove(struct fr_release *g, CUmemGenericAllocationHandle number); /* before the driver drops it */
void fr_handle_removed(struct fr_release *g, CUmemGenericAllocationHandle number, struct fr_memory *m, bool done);

bool fr_mapping_add(struct fr_mapping bond);
/* Finds the next mapping in this range, at `from` or behind it, that no call is ending. Its memory is pinned: the caller unpins it.
 * fr_mapping_drop removes one that the driver no longer has. */
bool fr_mapping_next(uint64_t place, uint64_t size, uint64_t from, struct fr_mapping *out);
void fr_mapping_drop(struct fr_release *g, const struct fr_mapping *bond);
/* Removes the other mappings at this place: the driver has this one there, and therefore no other. */
void fr_mappings_keep_one(struct fr_release *g, uint64_t place, CUmemGenericAllocationHandle number);
void fr_mappings_remove(struct fr_release *g, uint64_t owner, int device, uint64_t place, uint64_t size); /* those that lie in it entirely */
void fr_mappings_removed(struct fr_release *g, uint64_t owner, int device, uint64_t place, uint64_t size, bool done);

/* Tiles of an array. A new one is added before the call that maps it: `undo` ends it if the call fails. Those that lie in a box
 * entirely are removed as above. */
bool fr_box_covers(const struct fr_box *outer, const struct fr_box *inner);
bool fr_box_add(struct fr_release *undo, uint64_t array, const struct fr_box *box, struct fr_memory *m);
void fr_box_remove(struct fr_release *g, uint64_t array, const struct fr_box *box);
void fr_box_removed(struct fr_release *g, uint64_t array, const struct fr_box *box, bool done);

/* Guards an allocation's key, object and payment; held for a few instructions. */
void fr_memory_lock(void);
void fr_memory_unlock(void);

#endif
