/* What gpu_host.py and the tenants of a case share; gpu_host.py knows the offsets. Times are of the monotonic clock. */
#ifndef SHARES_GPU_BOARD_H
#define SHARES_GPU_BOARD_H

#include <stdatomic.h>
#include <stdint.h>

#define SEATS 64 /* processes of a case */

struct seat {
    _Atomic uint64_t done;     /* kernels, until the end of the window */
    _Atomic uint64_t ended_ns; /* when that was counted; 0: not yet */
};

struct board {
    _Atomic uint32_t ready, go;
    _Atomic uint64_t start_ns, end_ns; /* valid with go */
    struct seat seats[SEATS];
};

#endif
