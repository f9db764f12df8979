/* A part in a scene of the tests (scene.py): what one process of a container does, from its arrival to its departure.
 *
 *     player BOARD SEAT ARRIVE_MS DEPART_MS role=... key=value ...      started by shares/conductor.c
 */
#ifndef PLAYER_H
#define PLAYER_H

#include "board.h"
#include "clock.h"
#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

#define MS 1000000ull

struct part {
    char role[16], slice[256], out[256], program[256], slices[256];
    int cards[8], card_count;        /* cards=0, cards=0:1: in this order */
    unsigned us, n, rate, sync, die; /* kernel time; how many; per second; wait for each; killed at (ms) */
    unsigned cores, limit, weight, priority, card, back;
    uint64_t start, begin, end; /* of the scene; of this part */
    struct seat *seat;
};
extern struct part part;

/* player.c: who uses cards */
void play_work(void);    /* a kernel on each card in turn; sync=1 waits for it */
void play_fresh(void);   /* kernels of shapes that were never launched before, in n streams */
void play_multi(void);   /* cooperative launches over all its cards at once */
void play_ring(void);    /* a kernel on each of its cards, each of which spins until all are there; how long a round took is noted */
void play_service(void); /* requests at random times; how long each took is noted */
void play_nvml(void);    /* work, while another thread writes down what NVML says */

void play_full(void);    /* work, once no descriptor is free any more */
void play_rooted(void);  /* work, with another root directory */
void play_boxed(void);   /* work, with a filter of system calls under which connect() gives error n */
void play_liar(void);    /* work, with a connect() of its own that says that nothing is there */
void play_closer(void);  /* work, while another thread closes all sockets of the process, every n us */
void play_held(void);    /* n streams are filled while they wait for a word of the program, and let go one after the other */

/* dodge.c: who hides long kernels */
CUfunction player_kernel(void); /* of the first card: it takes so many us as its parameter says */
void play_old_events(void);        /* records events that it has destroyed */
void play_many_streams(void);      /* n streams are held back */
void play_capture_beside(void);    /* captures another stream */
void play_capture_ends(void); /* captures the stream, and destroys it */
void play_thread_stream(void);        /* the thread's, with a callback in another */

/* enemy.c: who does harm, and who steers */
void play_late(void);     /* takes the lease and never gives it back */
void play_flood(void);    /* n messages per ms */
void play_nonsense(void); /* n broken messages per ms, each over a new connection */
void play_connect(void);  /* n connections in all, kept open as far as it gets */
void play_fork(void);     /* n processes in all that ask for the card and die */
void play_garbage(void);  /* the region of its container is overwritten, again and again */
void play_truncate(void); /* ... cut to nothing */
void play_set(void);      /* the agent: other terms for `slice` */
void play_kill(void);     /* the arbiter is killed, and `back` ms later there is another */
void play_status(void);   /* the arbiter's status and its memory go to `out` */

#endif
