/* Draws irregularities from the seed: see noise.h. */
#include "noise.h"

#include "clock.h"

#include <stdlib.h>

static uint64_t seed(void)
{
    static _Atomic uint64_t value = UINT64_MAX;
    uint64_t known = atomic_load_explicit(&value, memory_order_relaxed);
    if (known != UINT64_MAX) return known;
    const char *set = getenv("SIMGPU_NOISE");
    known = set ? strtoull(set, NULL, 10) : 0;
    atomic_store(&value, known);
    return known;
}

bool sim_noisy(void) { return seed() != 0; }

/* Between 0 and 1; the same seed, a and b give the same number. */
static double uniform(uint64_t a, uint64_t b)
{
    uint64_t x = seed() * 0x9e3779b97f4a7c15ull ^ a * 0xc2b2ae3d27d4eb4full ^ b * 0x165667b19e3779f9ull;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 32) * 0x94d049bb133111ebull;
    return (double)((x ^ x >> 31) >> 11) / 9007199254740992.0;
}

uint64_t sim_noise_kernel(uint64_t ns, uint64_t a, uint64_t b)
{
    return sim_noisy() ? (uint64_t)((double)ns * (0.9 + 0.2 * uniform(a, b))) : ns;
}

uint64_t sim_noise_stamp(uint64_t t, uint64_t a, uint64_t b)
{
    return sim_noisy() ? t + (uint64_t)(1000 * uniform(a, b + 0x5bd1e995)) - 500 : t;
}

void sim_noise_cost(uint64_t ns)
{
    if (!sim_noisy()) return;
    uint64_t until = clock_now() + ns;
    if (clock_is_virtual()) clock_sleep_until(until);
    else while (clock_now() < until) {}
}
