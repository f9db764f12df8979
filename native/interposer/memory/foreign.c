/* Imports of memory that no living process of the container is charged for: another container made it, or the mark of its
 * origin was lost. A moment later the importer may be the only process that keeps it alive, so the importer is charged for all
 * of it, on the memory's own card.
 *
 * The driver reports the size and the card only of imported memory. So the library imports it once to measure it, and lets go
 * of it; then it reserves room, and imports it again. During that look the memory is not counted for this process. If another
 * process of the container made it, that process's charge stays until the look has ended (fr_look_begin). */
#include "memory/foreign.h"

#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/oom_retry.h"
#include "ledger/process.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

static CUresult look(struct fr_foreign *f)
{
    CUresult r = f->import(f);
    if (r || f->measure(f) || fr_process_state() == FR_OFF) return r;
    f->drop(f);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult fr_foreign_import(struct fr_foreign *f, struct fr_op *op)
{
    struct fr_retry patience = {0};
    *op = (struct fr_op){.card = FR_NO_CARD};
    for (bool reserved = false;; reserved = true) {
        int card = f->card, watch = fr_look_begin();
        uint64_t bytes = f->bytes;
        bool unseen = f->may_be_ours && watch == FR_NO_OBJECT && fr_process_state() == FR_ENFORCE;
        CUresult r = unseen ? CUDA_ERROR_OUT_OF_MEMORY : look(f);
        /* By now the application may have put other memory behind the handle. */
        bool covered = !r && !f->is_free && reserved && f->card == card && f->bytes <= bytes;
        if (!r && !f->is_free && !covered) f->drop(f);
        fr_look_end(watch);
        if (covered) return r;
        fr_op_end(op, 0);
        if (r || f->is_free) return r;
        r = fr_op_begin_within(op, f->card, f->bytes, &patience);
        if (r) return r;
    }
}
