/* Counts one process's frees on one card that have begun and not ended; searches for dead processes are counted in the same
 * way. A process that is out of memory waits for those that had begun when it looked; frees that begin later do not make it
 * wait longer.
 *
 *      epoch (4 bits) | unfinished frees of odd epochs (14) | unfinished frees of even epochs (14)
 *
 * A free belongs to the epoch in which it begins. A process that waits ends the epoch: later frees count in the next epoch, so
 * the count of the old one can only fall. An epoch begins only when the one before the last has no frees left, because these
 * two share a count. */
#include "ledger/frees.h"

#define EPOCHS 16

bool fr_frees_ended(_Atomic uint32_t *frees, uint32_t epoch_then)
{
    uint32_t word = atomic_load_explicit(frees, memory_order_acquire), epoch = word >> FR_EPOCH_SHIFT;
    uint32_t since = (epoch - epoch_then) % EPOCHS;
    if (since > 1 || !fr_frees_any(word)) return true;
    if (since == 1) return !fr_frees_in(word, epoch - 1);
    uint32_t next = (epoch + 1) % EPOCHS;
    if (!fr_frees_in(word, next))
        atomic_compare_exchange_strong_explicit(frees, &word, (word & ((1u << FR_EPOCH_SHIFT) - 1)) | next << FR_EPOCH_SHIFT, memory_order_acq_rel, memory_order_relaxed);
    return false;
}
