/* Irregularities that a real card has and the plain simulation has not, drawn from a seed: SIMGPU_NOISE=SEED; 0 or unset means off. All
 * processes of a host should have the same seed. */
#ifndef SIM_NOISE_H
#define SIM_NOISE_H

#include "state.h"

bool sim_noisy(void);
uint64_t sim_noise_kernel(uint64_t ns, uint64_t a, uint64_t b); /* up to 10 % longer or shorter; a, b identify the kernel */
uint64_t sim_noise_stamp(uint64_t t, uint64_t a, uint64_t b);   /* an event's time, off by at most half a microsecond */
void sim_noise_cost(uint64_t ns);                               /* waits for the time that a call takes on the host; call it without a lock */

#define SIM_COST_RECORD_NS 600 /* of cuEventRecord */
#define SIM_COST_QUERY_NS 400  /* of cuEventQuery, cuStreamQuery */
#define SIM_MARK_NS 1000       /* time that an event takes on the card before the kernel that follows it */
#define SIM_BUS_PERCENT 125    /* length of a copy over the bus while the other direction is busy */

#endif
