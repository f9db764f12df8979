/* What linear memory is charged with, and what goes back when it is freed. */
#ifndef FRACTILE_MEMORY_LINEAR_RECORDS_H
#define FRACTILE_MEMORY_LINEAR_RECORDS_H

#include "ledger/ledger.h"
#include "ledger/records.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

enum { FR_LINEAR_WHOLE = 0, FR_LINEAR_PIECE = 1 }; /* b of its record */

struct fr_linear { /* a free on its way */
    struct fr_op op;
    struct fr_record record;
    bool known;
};
bool fr_linear_free_begin(struct fr_linear *f, CUdeviceptr p);      /* before any driver call that frees p; false: not linear memory, nothing to end */
void fr_linear_free_end(struct fr_linear *f, CUresult result);      /* what that call answered */
bool fr_linear_shared(CUdeviceptr p, int *card, uint64_t *bytes, int *object); /* what an IPC export of p shares: the allocation, or the whole granule
                                                                       of a small one; false: p is not ours */
bool fr_linear_set_object(CUdeviceptr p, int object);               /* from now on its last free leaves this object */

/* For late_free.c: the free has begun and stays charged under this number, until it is released. */
bool fr_linear_keep(const struct fr_linear *f, uint64_t number);
void fr_linear_release(uint64_t number);

#endif
