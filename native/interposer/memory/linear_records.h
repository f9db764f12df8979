/* The charges of linear memory, and what goes back when it is freed (see linear_records.c). */
#ifndef FRACTILE_MEMORY_LINEAR_RECORDS_H
#define FRACTILE_MEMORY_LINEAR_RECORDS_H

#include "ledger/ledger.h"
#include "ledger/records.h"
#include "memory/context_users.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

enum { FR_LINEAR_WHOLE = 0, FR_LINEAR_PIECE = 1, FR_LINEAR_IMPORTED = 2 /* of a pool of another process */ }; /* b of its record */

struct fr_linear { /* a free under way */
    struct fr_op op;
    struct fr_record record;
    struct fr_user user;
    bool known;
};
struct fr_piece;
uint64_t fr_linear_granules(const struct fr_piece *piece); /* for `bytes` of a piece's record, which are not charged */
bool fr_linear_is_piece(const struct fr_record *r);
bool fr_linear_put(const struct fr_record *record);                 /* of memory that the driver returned; false: no memory for it */
bool fr_linear_free_begin(struct fr_linear *f, CUdeviceptr p);      /* before any driver call that frees p; false: not linear memory, nothing to end */
void fr_linear_free_end(struct fr_linear *f, CUresult result);      /* with that call's result */
bool fr_linear_shared(CUdeviceptr p, int *card, uint64_t *bytes, int *object, struct fr_record *r); /* what an IPC export of p shares: the allocation, or the whole granule
                                                                       of a small one; false: p is not known */
bool fr_linear_covers(CUdeviceptr p, size_t size);                  /* does the range lie in one allocation of cuMemAlloc or the like? */
bool fr_linear_set_object(const struct fr_record *r, int object);   /* from now on its last free leaves this object; false: it was freed meanwhile */

/* A pointer into another process's pool, until it is freed: it holds the piece and the pool. */
bool fr_linear_imported(CUdeviceptr p, int piece, int pool);
void fr_linear_leave_pool(const struct fr_record *r); /* of any record that is given back: what it holds beside its object */

/* For late_free.c: the free has begun and stays charged under this number, until it is released. */
bool fr_linear_keep(const struct fr_linear *f, uint64_t number, CUcontext context);
void fr_linear_release(uint64_t number);

#endif
