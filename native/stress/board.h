/* The board: one file that the supervisor, the judge and all workers of a stress run map.
 *
 * A lane is one thread of control that calls the driver: a worker has its main thread, up to eight more threads, and a child.
 * Before each operation a lane announces the most that it may add to a card, then makes its sequence odd; after it, even:
 *
 *      sequence:  2n (idle) --announce the most, begin--> 2n + 1 (in the driver) --end--> 2n + 2
 *
 * So when a lane is refused memory, the judge knows how much the other lanes may be taking at that moment: see judge.c. */
#ifndef STRESS_BOARD_H
#define STRESS_BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define WORKERS 256
#define THREADS_MOST 8
#define LANES_EACH (THREADS_MOST + 2)
#define LANES (WORKERS * LANES_EACH)
#define REMEMBERED 4 /* last announcements of a lane that are kept */
#define GONE 1024
#define CARDS 2
#define CONTAINERS_MOST 16
#define MIB 1048576ull
#define GRANULE (2 * MIB)
#define CHUNK (32 * MIB)        /* by which a pool grows */
#define LARGEST (224 * MIB)     /* no operation adds more */

enum lane_place { LANE_MAIN = 0, LANE_THREAD = 1, LANE_CHILD = LANE_THREAD + THREADS_MOST };
enum lane_state { LANE_OFF, LANE_RUNS, LANE_PAUSED, LANE_WAITS };
enum exam_step { EXAM_NONE, EXAM_TIDY, EXAM_TIDIED, EXAM_DECLINED, EXAM_ASK, EXAM_DONE };

struct announcement {
    _Atomic uint32_t card;
    _Atomic uint64_t most;
};

struct lane {
    _Atomic uint32_t state, pid;
    _Atomic uint64_t ops;
    struct announcement said[REMEMBERED]; /* of operation n at n % REMEMBERED */
};

/* The exam: while all others are paused, one worker allocates exactly what is left, and then a granule more. */
struct exam {
    _Atomic uint32_t step, lane;
    _Atomic uint32_t card;       /* answer: the card of the examined worker */
    _Atomic uint64_t held, most; /* question: bytes that the container holds there by the driver's ledger, and that may be counted */
    _Atomic uint32_t info_wrong, info_high, refused, passed_over;
    _Atomic uint64_t free_shown;
};

/* The last GONE processes that were seen to be gone for good. */
struct gone {
    _Atomic uint32_t pid;
    _Atomic uint64_t ns;
};

struct board {
    uint64_t seed, quota[CARDS], context_bytes, ops_wanted;
    uint32_t workers, containers, threads; /* threads: of a worker at a time; 0: sometimes two */
    bool wild; /* the driver takes more than the table of bounds allows */
    _Atomic uint32_t pause, stop;
    _Atomic uint64_t refusals, false_oom, judged_late, ending, unexpected;
    struct exam exam;
    _Atomic uint32_t gone_count;
    struct gone gone[GONE];
    _Atomic uint32_t sequence[LANES];
    struct lane lanes[LANES];
};

static inline uint32_t dice(uint64_t *seed, uint32_t sides)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*seed >> 33) % sides;
}

static inline void say_gone(struct board *b, uint32_t pid, uint64_t now_ns)
{
    struct gone *g = &b->gone[atomic_fetch_add(&b->gone_count, 1) % GONE];
    atomic_store(&g->pid, pid);
    atomic_store(&g->ns, now_ns);
}

static inline int container_of(const struct board *b, int worker) { return worker % (int)b->containers; }

#endif
