/* Predicts how long a kernel takes, learned by function and shape of launch, in a table of fixed size. If the table is full, or if two
 * kernels have the same key, predictions get worse, but no accounting gets wrong: the time charged to a container is measured elsewhere.
 *
 * A prediction is the larger of two means. The mean of the last few batches follows a change. The mean of the last hundreds of launches
 * remembers that one in a hundred is long. A kernel that was measured n times may be in flight n times (gate.c): a case rarer than one
 * in n has not been seen yet, and there is no other protection against it. */
#include "pacing/predict.h"

#include "base/compiler.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PREDICTIONS 8192
#define PROBES 16
#define STEADIEST 16u /* a right prediction adds 1, up to this; a wrong one subtracts UNSTEADY: one in ten may be wrong, as on a busy host */
#define UNSTEADY 5u
#define MEMORY 256.0 /* launches that the slow mean remembers */

static FR_LARGE struct fr_prediction predictions[PREDICTIONS];

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

struct fr_prediction *fr_prediction_of(uint64_t a, uint64_t b)
{
    uint64_t key = mix(a ^ b * 0x9e3779b97f4a7c15ull) | 1;
    for (uint64_t i = 0; i < PROBES; i++) {
        struct fr_prediction *g = &predictions[(key + i) % PREDICTIONS];
        uint64_t seen = atomic_load_explicit(&g->key, memory_order_relaxed);
        if (likely(seen == key)) return g;
        if (!seen && (atomic_compare_exchange_strong(&g->key, &seen, key) || seen == key)) return g;
    }
    return &predictions[key % PREDICTIONS];
}

uint64_t fr_prediction_ns(const struct fr_prediction *g)
{
    if (unlikely(!atomic_load_explicit(&g->samples, memory_order_relaxed))) return FR_UNKNOWN_NS;
    uint32_t lately = atomic_load_explicit(&g->ns, memory_order_relaxed), slow = atomic_load_explicit(&g->slow, memory_order_relaxed);
    return lately > slow ? lately : slow;
}

void fr_prediction_check(struct fr_prediction *g, uint64_t thought, uint64_t measured, bool sliced)
{
    uint32_t unsteady = sliced ? 1 : UNSTEADY;
    uint64_t off = thought > measured ? thought - measured : measured - thought;
    uint32_t steady = atomic_load_explicit(&g->steady, memory_order_relaxed);
    if (off < measured / 6 + 50000) steady += steady < STEADIEST;
    else steady -= steady < unsteady ? steady : unsteady;
    atomic_store_explicit(&g->steady, steady, memory_order_relaxed);
}

static double towards(double from, double to, double part)
{
    double next = from + (to - from) * (part < 1 ? part : 1);
    return next < 1 ? 1 : next < 4e9 ? next : 4e9;
}

static void learn(struct fr_prediction *g, uint32_t launches, double each, double part)
{
    uint32_t samples = atomic_load_explicit(&g->samples, memory_order_relaxed), sum = samples + launches;
    double lately = atomic_load_explicit(&g->ns, memory_order_relaxed), slow = atomic_load_explicit(&g->slow, memory_order_relaxed);
    double remembered = sum < MEMORY ? sum : MEMORY;
    if (unlikely(atomic_load_explicit(&g->doubtful, memory_order_relaxed))) samples = 0, remembered = launches;
    atomic_store_explicit(&g->ns, (uint32_t)towards(lately, each, samples ? part : 1), memory_order_relaxed);
    atomic_store_explicit(&g->slow, (uint32_t)towards(slow, each, launches / remembered), memory_order_relaxed);
    atomic_store_explicit(&g->samples, sum >= launches ? sum : UINT32_MAX, memory_order_relaxed);
}

void fr_prediction_learn(struct fr_prediction *g, uint32_t launches, uint64_t each_ns, bool sliced)
{
    learn(g, launches, (double)each_ns, sliced ? 0.05 : 0.3);
    atomic_store_explicit(&g->doubtful, 0, memory_order_relaxed);
}

/* The measured time contains other containers' work, so it is an upper bound for these launches. The driver gives each container a slice
 * at a time, so the bound may be far too high. It is used only if it is below the prediction. */
void fr_prediction_bound(struct fr_prediction *g, uint32_t launches, uint64_t each_ns)
{
    bool known = atomic_load_explicit(&g->samples, memory_order_relaxed);
    uint64_t thought = known ? fr_prediction_ns(g) : UINT64_MAX;
    if (!known || each_ns < thought) learn(g, launches, (double)each_ns, 0.3);
    else atomic_fetch_add_explicit(&g->samples, launches, memory_order_relaxed);
    if (!known) atomic_store_explicit(&g->doubtful, 1, memory_order_relaxed);
}

void fr_prediction_correct(struct fr_prediction *g, uint32_t launches, double ratio, bool beside)
{
    bool known = atomic_load_explicit(&g->samples, memory_order_relaxed);
    uint32_t thought = atomic_load_explicit(&g->ns, memory_order_relaxed);
    learn(g, launches, (known || thought ? thought : FR_UNKNOWN_NS) * ratio, 0.15);
    if (!beside) atomic_store_explicit(&g->doubtful, 0, memory_order_relaxed);
    else if (!known) atomic_store_explicit(&g->doubtful, 1, memory_order_relaxed);
}
