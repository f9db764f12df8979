/* A lane, one thread of control of a worker: its random numbers, its context, the things that it holds, and how it calls the driver. */
#ifndef STRESS_LANE_H
#define STRESS_LANE_H

#include "cuda_abi.h"
#include "driver.h"
#include "judge.h"

#include <sys/types.h>

#define SLOTS 24
#define STREAMS 3

struct thing {
    const struct kind *kind; /* NULL: the slot is empty */
    uint64_t at, size, extra;
};

struct self {
    int number, worker;     /* of the lane, of the worker */
    uint64_t seed;
    CUcontext context;
    CUdevice device;
    int card;               /* in the driver's ledger */
    CUstream streams[STREAMS];
    CUmemoryPool pool;
    struct thing things[SLOTS];
    struct window window;   /* of the current operation */
    int window_card;
};

extern struct judge judge;
extern struct board *board;
extern int containers_card[CARDS]; /* device number of each card in this process; -1: not visible */
extern __thread struct self self;

/* lane.c */
void lane_attach(int worker, int place, uint64_t seed);
void lane_detach(void);
void lane_set(enum lane_state state);
bool lane_goes_on(void);                    /* waits while the run pauses; false: the run is over */
void lane_settle(void);                     /* before a pause: completes frees in streams */
void begin(int card, uint64_t most);
CUresult end(const char *call, CUresult r, uint64_t request, CUresult also_expected);
uint32_t roll(uint32_t sides);
uint64_t roundup(uint64_t bytes, uint64_t to);

/* things.c */
void one_operation(void);
void drop_all(void);
void drop_those_of_context(void);

/* context.c */
bool context_open(void);
void context_close(void);
void context_reset(void);
void context_churn(void);

/* exchange.c */
void exchange_open(void);
void exchange_something(void);
void exchange_receive(void);
void exchange_discard(void);

/* family.c: threads and children */
void family_threads(void);
void family_child(void);
void family_work(int operations);
void family_die_with_parent(pid_t parent);
bool family_twin(void); /* true in the child */

/* exam.c */
void exam_take_part(void);

/* A kind of thing that a slot can hold. */
struct kind {
    const char *name;
    unsigned weight;
    bool outlives_context;
    bool (*make)(struct thing *);
    void (*drop)(struct thing *);
};
extern const struct kind linear_kinds[], stream_kinds[], shared_kinds[]; /* each list ends with a name of NULL */

#endif
