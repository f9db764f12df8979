#ifndef STRESS_HERD_H
#define STRESS_HERD_H

#include "place.h"

#include <sys/types.h>

/* The workers' processes, as the supervisor sees them: it starts, kills and reaps them. */
struct herd {
    struct place *place;
    const char *program;
    pid_t pids[WORKERS];
    unsigned starts[WORKERS];
    bool expected[WORKERS]; /* its end is our doing */
    uint64_t kills, crashes, seed;
};

void herd_start_all(struct herd *h);
void herd_tend(struct herd *h, bool restart);        /* reaps the dead, and starts others in their place */
void herd_kill_some(struct herd *h);
void herd_end(struct herd *h);                       /* asks all to end, then insists; all are gone when it returns */
pid_t herd_auditor(struct herd *h, int container);
uint64_t herd_ops(const struct herd *h);

#endif
