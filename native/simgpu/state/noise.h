/* What a real card does and the quiet simulation does not, by seed: SIMGPU_NOISE=SEED, 0 or unset is off. All processes of a host
 * should have the same seed. */
#ifndef SIM_NOISE_H
#define SIM_NOISE_H

#include "state.h"

bool sim_noisy(void);
uint64_t sim_noise_kernel(uint64_t ns, uint64_t a, uint64_t b); /* 10 % more or less; a, b: which kernel */
uint64_t sim_noise_stamp(uint64_t t, uint64_t a, uint64_t b);   /* an event's time: half a microsecond off at most */
void sim_noise_cost(uint64_t ns);                               /* of a call, on the host; without a lock */

#define SIM_COST_RECORD_NS 600 /* of cuEventRecord */
#define SIM_COST_QUERY_NS 400  /* of cuEventQuery, cuStreamQuery */
#define SIM_MARK_NS 1000       /* of an event on the card, before the kernel that follows it */
#define SIM_BUS_PERCENT 125    /* a copy over the bus while the other direction is busy */

#endif
