/* The memory that code takes in a context (see code_room.c). */
#ifndef FRACTILE_MEMORY_CODE_ROOM_H
#define FRACTILE_MEMORY_CODE_ROOM_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct fr_image;
struct fr_place;
struct fr_record;

/* Pieces below 2 MiB share blocks with others: their weight and their number. Larger pieces have granules of their own. */
struct fr_code {
    uint64_t own, weight, pieces;
};

/* How much of an image's code is loaded: this many functions, one by one, or all of it in one piece. */
struct fr_count {
    uint32_t functions;
    bool whole;
};

struct fr_code fr_code_of(const struct fr_image *image, struct fr_count loaded);
struct fr_code fr_code_more(struct fr_code than, struct fr_code now); /* in each field */
struct fr_code fr_code_most(struct fr_code a, struct fr_code b);

/* The blocks of a context, all under one lock that the caller holds. Bytes are those of the ledger. */
uint64_t fr_room_missing(CUcontext context, struct fr_code more);                       /* to be reserved before `more` is loaded */
bool fr_room_promise(const struct fr_place *at, struct fr_code more, uint64_t granted); /* `granted` is reserved, and the call is under way */
struct fr_room_change {
    int64_t bytes; /* that the ledger must keep besides what was granted; below 0: that go back */
    int64_t spare; /* for fr_slack_add: above 0 before the bytes go back or a reservation ends, below 0 after it */
};
struct fr_room_change fr_room_keep(CUcontext context, struct fr_code promised, struct fr_code came, uint64_t granted); /* the call is over */
struct fr_room_change fr_room_leave(CUcontext context, uint64_t pieces); /* this many pieces were unloaded */
uint64_t fr_room_less(CUcontext context, uint64_t pieces);               /* bytes that fr_room_leave would give back at present */
uint64_t fr_room_spare(const struct fr_record *record);                  /* of a record that is removed: how much of its bytes is slack */
bool fr_room_moves(const struct fr_record *record, CUcontext to); /* false: not a record of blocks */
bool fr_room_follows(const struct fr_record *record, CUcontext to); /* the same, once the calls that are under way under the old name are over */

#endif
