/* What a case's conductor and its tenants share: a page by which all begin at one instant, and where services note how long
 * each request took. */
#ifndef SHARES_BOARD_H
#define SHARES_BOARD_H

#include <stdatomic.h>
#include <stdint.h>

#define SEATS 64        /* processes of a case */
#define REQUESTS 32768u /* remembered latencies of one */

struct seat {
    _Atomic uint32_t requests;
    _Atomic uint32_t longest_us; /* of its iterations: a batch and the wait for it, or a launch */
    uint32_t latency_us[REQUESTS];
};

struct board {
    _Atomic uint32_t ready, go; /* go: a futex of the clock */
    _Atomic uint64_t start_ns;
    struct seat seats[SEATS];
};

#endif
