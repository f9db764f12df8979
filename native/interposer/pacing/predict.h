/* How long a kernel takes, learned by function and shape: see predict.c. */
#ifndef FRACTILE_PACING_PREDICT_H
#define FRACTILE_PACING_PREDICT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FR_UNKNOWN_NS 2000000ull /* taken for a kernel that was never seen */

struct fr_prediction {
    _Atomic uint64_t key;
    _Atomic uint32_t ns, slow;         /* means: of late, and over many launches */
    _Atomic uint32_t samples, pending; /* launches measured; in flight */
    _Atomic uint32_t steady;           /* how reliably batches take what was thought */
    _Atomic uint32_t doubtful;         /* measured beside others' work only: the first time without them replaces it */
};
struct fr_prediction *fr_prediction_of(uint64_t a, uint64_t b);
uint64_t fr_prediction_ns(const struct fr_prediction *g);
void fr_prediction_learn(struct fr_prediction *g, uint32_t launches, uint64_t each_ns, bool sliced); /* a batch of only g; sliced: a slice of another container's work may be in it */
void fr_prediction_check(struct fr_prediction *g, uint64_t thought_ns, uint64_t measured_ns, bool sliced); /* of a batch with it */
void fr_prediction_bound(struct fr_prediction *g, uint32_t launches, uint64_t each_ns);   /* a batch of only g, beside others' work */
void fr_prediction_correct(struct fr_prediction *g, uint32_t launches, double ratio, bool beside); /* among others: ratio x what was thought of all; beside others' work */

#endif
