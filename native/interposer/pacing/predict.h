/* How long a kernel takes, learned by function and shape: see predict.c. */
#ifndef FRACTILE_PACING_PREDICT_H
#define FRACTILE_PACING_PREDICT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FR_UNKNOWN_NS 2000000ull /* assumed for a kernel that was never seen */

struct fr_prediction {
    _Atomic uint64_t key;
    _Atomic uint32_t ns, slow;         /* means: of the last few batches, and of many launches */
    _Atomic uint32_t samples, pending; /* launches measured; launches in flight */
    _Atomic uint32_t steady;           /* how reliably batches take the predicted time */
    _Atomic uint32_t doubtful;         /* measured only beside other containers' work: the first measurement without it replaces this one */
};
struct fr_prediction *fr_prediction_of(uint64_t a, uint64_t b);
uint64_t fr_prediction_ns(const struct fr_prediction *g);
/* A batch of only g. sliced: it may contain a slice of another container's work. */
void fr_prediction_learn(struct fr_prediction *g, uint32_t launches, uint64_t each_ns, bool sliced);
void fr_prediction_check(struct fr_prediction *g, uint64_t thought_ns, uint64_t measured_ns, bool sliced); /* of a batch that contains g */
void fr_prediction_bound(struct fr_prediction *g, uint32_t launches, uint64_t each_ns);   /* a batch of only g, beside other containers' work */
/* A batch with other kernels took `ratio` times its predicted length. beside: other containers' work ran, too. */
void fr_prediction_correct(struct fr_prediction *g, uint32_t launches, double ratio, bool beside);

#endif
