/* Imports of memory that no process of the container pays for (see foreign.c). */
#ifndef FRACTILE_MEMORY_FOREIGN_H
#define FRACTILE_MEMORY_FOREIGN_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct fr_op;

/* How the memory is imported, let go of and measured; measuring may rely only on what the driver reports. */
struct fr_foreign {
    CUresult (*import)(struct fr_foreign *f);
    void (*drop)(struct fr_foreign *f);
    bool (*measure)(struct fr_foreign *f); /* sets the fields below; false: the driver does not report them */
    bool may_be_ours; /* another process of the container may have exported it, with no mark of that left */
    bool is_free;     /* it is on no card */
    int card;         /* FR_NO_CARD: on a card that is not the container's */
    uint64_t bytes;
};
CUresult fr_foreign_import(struct fr_foreign *f, struct fr_op *op); /* on success `op` has reserved f->bytes on f->card, and the caller ends it */

#endif
