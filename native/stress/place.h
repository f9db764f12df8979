/* The directory of a run: a simulated host, the board, and each container's two files, as the node agent writes them. */
#ifndef STRESS_PLACE_H
#define STRESS_PLACE_H

#include "board.h"

struct place {
    char directory[200];
    struct board *board;
    const char *library; /* NULL: no library, the plain driver */
    char policy[32];     /* the driver's, SIMGPU_POLICY */
    struct fr_region *regions[CONTAINERS_MOST];
    struct fr_limits *limits[CONTAINERS_MOST];
};

void place_make(struct place *p, uint64_t card_mib, uint64_t context_mib);
void place_environment(const struct place *p, int container);
uint64_t place_used(const struct place *p, int container, int card); /* by the library's count */
uint64_t place_unaccounted(const struct place *p, int container, int card); /* from the limits page */
void place_set_unaccounted(const struct place *p, int container, int card, uint64_t bytes);
uint64_t place_account(const struct place *p, int container, int card, int slot, uint32_t *pid); /* bytes; pid 0: no process */
void place_show_waits(const struct place *p, int container); /* prints what a refused process waits for */
uint64_t place_escapes(const struct place *p, int container);

#endif
