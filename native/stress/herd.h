/* The herd: the workers' processes, as the supervisor starts, kills and reaps them. */
#ifndef STRESS_HERD_H
#define STRESS_HERD_H

#include "place.h"

#include <sys/types.h>

struct herd {
    struct place *place;
    const char *program;
    pid_t pids[WORKERS];
    unsigned starts[WORKERS];
    bool expected[WORKERS]; /* the supervisor caused its end */
    uint64_t kills, crashes, seed;
};

void herd_start_all(struct herd *h);
void herd_tend(struct herd *h, bool restart);        /* reaps dead workers, and starts others in their place */
void herd_kill_some(struct herd *h);
void herd_end(struct herd *h);                       /* asks all to end, then kills them; all are gone when it returns */
pid_t herd_auditor(struct herd *h, int container);
uint64_t herd_ops(const struct herd *h);

#endif
