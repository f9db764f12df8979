/* The page shared by gpu_host.py and the tenants of a case; gpu_host.py contains the offsets of the fields. Times are by the monotonic clock. */
#ifndef SHARES_GPU_BOARD_H
#define SHARES_GPU_BOARD_H

#include <stdatomic.h>
#include <stdint.h>

#define SEATS 64 /* processes of a case */

struct seat {
    _Atomic uint64_t done;     /* kernels done until the end of the window */
    _Atomic uint64_t ended_ns; /* when they were counted; 0: not yet */
};

struct board {
    _Atomic uint32_t ready, go;
    _Atomic uint64_t start_ns, end_ns; /* valid once `go` is set */
    struct seat seats[SEATS];
};

#endif
