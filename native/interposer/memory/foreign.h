/* Imports that nobody in the container pays for: see foreign.c. */
#ifndef FRACTILE_MEMORY_FOREIGN_H
#define FRACTILE_MEMORY_FOREIGN_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct fr_op;

/* How it is imported, let go of and measured; measuring may use nothing but the driver's word. */
struct fr_foreign {
    CUresult (*import)(struct fr_foreign *f);
    void (*drop)(struct fr_foreign *f);
    bool (*measure)(struct fr_foreign *f); /* sets what follows; false: the driver does not say */
    bool may_be_ours; /* another process of the container may have exported it, and nothing says so any more */
    bool is_free;     /* it lies on no card */
    int card;         /* FR_NO_CARD: on one that is not the container's */
    uint64_t bytes;
};
CUresult fr_foreign_import(struct fr_foreign *f, struct fr_op *op); /* on success `op` has reserved f->bytes on f->card: the caller ends it */

#endif
