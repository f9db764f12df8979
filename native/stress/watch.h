/* The supervisor's checks during a run: hangs, peaks, and quiet points. See watch.c. */
#ifndef STRESS_WATCH_H
#define STRESS_WATCH_H

#include "herd.h"
#include "judge.h"

/* The results of the run so far. */
struct findings {
    uint64_t overcommit, false_oom, leaked, hangs, quiet_points, exams;
    uint64_t let_through; /* allocations granted at quiet points beyond what was left */
};

struct watch {
    struct herd *herd;
    struct sim_host *sim;
    struct judge judges[CONTAINERS_MOST];
    bool audits; /* also act as the node's audit */
    struct findings found;
    uint32_t seen[WORKERS];     /* sum of a worker's sequences ... */
    uint64_t since_ns[WORKERS]; /* ... unchanged since */
};

void watch_open(struct watch *w, struct herd *h, struct sim_host *sim);
void watch_peaks(struct watch *w);
void watch_audit(struct watch *w);
void watch_hangs(struct watch *w);
void watch_quiet_point(struct watch *w); /* pauses all workers, compares the ledgers, then holds the exam */
void watch_last(struct watch *w);        /* when all workers are gone */

#endif
