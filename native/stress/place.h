#ifndef STRESS_PLACE_H
#define STRESS_PLACE_H

#include "board.h"

/* The directory of a run: a simulated host, the board, and the two files of each container, as the node agent writes them. */
struct place {
    char directory[200];
    struct board *board;
    const char *library; /* NULL: none, the plain driver */
    char policy[32];     /* of the driver, SIMGPU_POLICY */
    struct fr_region *regions[CONTAINERS_MOST];
    struct fr_limits *limits[CONTAINERS_MOST];
};

void place_make(struct place *p, uint64_t card_mib, uint64_t context_mib);
void place_environment(const struct place *p, int container);
uint64_t place_used(const struct place *p, int container, int card); /* as the library counts */
uint64_t place_unaccounted(const struct place *p, int container, int card); /* as the page of limits says */
void place_set_unaccounted(const struct place *p, int container, int card, uint64_t bytes);
uint64_t place_account(const struct place *p, int container, int card, int slot, uint32_t *pid); /* bytes; pid 0: no process */
void place_show_waits(const struct place *p, int container); /* what a process waits for that is refused */
uint64_t place_escapes(const struct place *p, int container);

#endif
