/* The judge: decides whether a refusal was right. See judge.c. */
#ifndef STRESS_JUDGE_H
#define STRESS_JUDGE_H

#include "../simgpu/state/state.h"
#include "board.h"

/* The state before a call. */
struct window {
    uint64_t changes, most, opened_ns;
};

struct judge {
    struct board *board;
    const struct sim_state *sim;
    int container_number; /* of the stress run */
    char container[32];
    uint32_t index;       /* in the driver's ledger; SIM_CONTAINERS: not known there yet */
};

void judge_open(struct judge *j, const char *directory, struct board *board, int container);
void judge_window(struct judge *j, int card, struct window *w);
uint64_t judge_bound(struct judge *j, const struct window *w, int card, int lane, bool *known);
uint64_t judge_ending(struct judge *j, const struct window *w, int card);
uint64_t judge_now(void);
bool judge_index(struct judge *j);
uint64_t judge_held(struct judge *j, int card);
uint64_t judge_most(struct judge *j, int card); /* bytes held, and bytes that may be counted beyond that */
uint64_t judge_peak(struct judge *j, int card);

#endif
