/* The parts of gpu-tenant: the kernels (kernel.c), and counting the finished work of a stream (queue.c). */
#ifndef SHARES_GPU_TENANT_H
#define SHARES_GPU_TENANT_H

#include "board.h"
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KERNELS 4
#define STREAMS 8
#define QUEUE 256u

_Noreturn void fail(const char *what);
#define MUST(call)                                               \
    do {                                                         \
        CUresult r_ = (call);                                    \
        if (r_) fprintf(stderr, "%d from ", (int)r_), fail(#call); \
    } while (0)

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline void sleep_until(uint64_t ns)
{
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &(struct timespec){(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)}, NULL);
}

static inline void sleep_ms(unsigned ms) { sleep_until(now_ns() + ms * 1000000ull); }

/* ---- kernel.c ---- */

struct kernel {
    char kind[16];
    uint64_t us, amount;
    unsigned blocks;
    CUfunction function;
};

extern const char *texts; /* the folder with the kernels */
void open_context(void);
void set_context(void); /* makes the context current in another thread */
void load_kernel(struct kernel *);
void launch_kernel(const struct kernel *, CUstream);
int print_amount(char **arguments);

/* ---- queue.c: events in a stream, recorded by one thread and queried by another ---- */

struct queue {
    CUstream stream;
    unsigned depth;
    _Atomic unsigned recorded, done;
    CUevent events[QUEUE];
};

void queue_open(struct queue *, CUstream, uint64_t depth);
void queue_mark(struct queue *);          /* waits while `depth` events are not done */
unsigned queue_take(struct queue *);      /* events done since the last call */

#endif
