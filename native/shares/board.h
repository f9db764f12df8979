/* A page shared by a case's conductor and its tenants. With it all tenants begin at the same instant, and services record in it how long each
 * request took. */
#ifndef SHARES_BOARD_H
#define SHARES_BOARD_H

#include <stdatomic.h>
#include <stdint.h>

#define SEATS 64        /* processes of a case */
#define REQUESTS 32768u /* latencies recorded per process */

struct seat {
    _Atomic uint32_t requests;
    _Atomic uint32_t longest_us; /* longest of its iterations: a batch and the wait for it, or a launch */
    uint32_t latency_us[REQUESTS];
};

struct board {
    _Atomic uint32_t ready, go; /* go: a futex of the clock */
    _Atomic uint64_t start_ns;
    struct seat seats[SEATS];
};

#endif
