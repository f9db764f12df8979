/* Unfinished frees, and searches for dead processes, counted by epochs (see frees.c). */
#ifndef FRACTILE_LEDGER_FREES_H
#define FRACTILE_LEDGER_FREES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FR_FREES_BITS 14
#define FR_FREES_MASK ((1u << FR_FREES_BITS) - 1)
#define FR_EPOCH_SHIFT (2 * FR_FREES_BITS)

static inline uint32_t fr_frees_in(uint32_t word, uint32_t epoch) { return word >> (epoch & 1) * FR_FREES_BITS & FR_FREES_MASK; }
static inline bool fr_frees_any(uint32_t word) { return word << (32 - FR_EPOCH_SHIFT) != 0; }

/* Returns the epoch in which the free began, for fr_frees_end. */
static inline uint32_t fr_frees_begin(_Atomic uint32_t *frees)
{
    uint32_t word = atomic_load_explicit(frees, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(frees, &word, word + (1u << (word >> FR_EPOCH_SHIFT & 1) * FR_FREES_BITS), memory_order_acq_rel, memory_order_relaxed)) {}
    return word >> FR_EPOCH_SHIFT;
}

static inline void fr_frees_end(_Atomic uint32_t *frees, uint32_t epoch)
{
    atomic_fetch_sub_explicit(frees, 1u << (epoch & 1) * FR_FREES_BITS, memory_order_release);
}

/* Have all frees ended that had begun in this epoch of the word, or before? Repeated calls eventually return true. */
bool fr_frees_ended(_Atomic uint32_t *frees, uint32_t epoch_then);

#endif
