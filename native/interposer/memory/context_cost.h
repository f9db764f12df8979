/* The cost of a context (see context_cost.c). */
#ifndef FRACTILE_MEMORY_CONTEXT_COST_H
#define FRACTILE_MEMORY_CONTEXT_COST_H

#include "base/compiler.h"
#include "ledger/ledger.h"
#include "ledger/oom_retry.h"
#include "memory/context_audit.h"
#include "memory/own_figure.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Reserves the cost of one or several contexts on the card, and of the libraries that the driver loads into them (eager.c takes
 * over that part). After the call, finds the actual cost; false if it does not fit into the quota. */
struct fr_cost {
    struct fr_op op;
    uint64_t bytes, before; /* bytes: the agent's figure, or 0: to be measured */
    uint64_t libraries;     /* part of what is reserved */
    bool measured;
    struct fr_neighbours neighbours;
};
uint64_t fr_context_size(int card); /* the known size, or else the most that is assumed */
bool fr_device_exists(CUdevice device);
CUresult fr_context_reserve(struct fr_cost *costs, unsigned contexts, CUdevice device, uint64_t libraries, struct fr_retry *patience); /* costs[0] has the libraries */
bool fr_context_measure(struct fr_cost *cost);
CUresult fr_context_refused(CUdevice device, unsigned contexts); /* says on stderr what did not fit; out of memory */

extern _Atomic uint32_t fr_contexts_made; /* made or attempted, ever; counted before the driver is called */

/* True if there is at most one context, and none made without the library: then everything runs in that one, and every stream
 * belongs to it. */
static ALWAYS_INLINE bool fr_one_context(void)
{
    return atomic_load_explicit(&fr_contexts_made, memory_order_relaxed) <= 1 && !(atomic_load_explicit(&fr_unseen_why, memory_order_relaxed) & FR_UNSEEN_TABLES);
}

#endif
