/* A player is one process of a container in a scene of the tests (scene.py). Its role says what it does from its arrival to its departure.
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
    int cards[8], card_count;        /* cards=0, cards=0:1: used in this order */
    unsigned us, n, rate, sync, die; /* kernel time; how many; per second; wait for each; killed at (ms) */
    unsigned cores, limit, weight, priority, card, back;
    unsigned before, peers, room, ring; /* of rings: a kernel of this length (us) before the one that waits; peers, if not one for each card;
                                           percent of the card that a kernel takes; number common to the processes of the ring */
    uint64_t start, begin, end; /* of the scene; of this player */
    struct seat *seat;
};
extern struct part part;

/* player.c: roles that use cards */
void play_work(void);    /* a kernel on each card in turn; sync=1 waits for it */
void play_fresh(void);   /* kernels of shapes that were never launched before, in n streams */
void play_contexts(void); /* kernels in n contexts, each of which always has one */
void play_stops(void);   /* work, and the process stops itself (SIGSTOP) before its first turn ends */
void play_multi(void);   /* cooperative launches over all its cards at once */
void play_ring(void);    /* a kernel on each of its cards, each of which spins until all have begun; records the time of each round */
void play_persistent(void); /* a kernel waits all the time for the last of all, beside short ones, and records the time of each of those */
void play_service(void); /* requests at random times; records the time of each */
void play_nvml(void);    /* work, while another thread records the values of NVML */

void play_full(void);    /* work, when no descriptor is free any more */
void play_rooted(void);  /* work, with another root directory */
void play_boxed(void);   /* work, with a filter of system calls under which connect() fails with error n */
void play_liar(void);    /* work, with a connect() of its own that reports that no arbiter exists */
void play_closer(void);  /* work, while another thread closes all sockets of the process, every n us */
void play_held(void);    /* n streams are filled while they wait for a word of the program, and released one after the other */

/* dodge.c: roles that hide long kernels */
CUfunction player_kernel(void); /* on the first card; its parameter is its length in us */
void play_old_events(void);        /* records events that it has destroyed */
void play_many_streams(void);      /* n streams are held back */
void play_capture_beside(void);    /* captures another stream */
void play_capture_ends(void); /* captures the stream, and destroys it */
void play_thread_stream(void);        /* the thread's, with a callback in another */
void play_host_nodes(void);    /* graphs with a host node before their kernel, in n streams */
void play_graph_waits(void);   /* a host node waits until n kernels are launched behind its graph, or with sync=1 elsewhere */
void play_graph_never(void);   /* a host node that never ends, and kernels in another stream */
void play_graph_sleeps(void);  /* a host node that sleeps `before` ms, again and again */

/* enemy.c: roles that do harm, and roles that change the scene */
void play_late(void);     /* takes the lease and never gives it back */
void play_flood(void);    /* n messages per ms */
void play_nonsense(void); /* n broken messages per ms, each over a new connection */
void play_connect(void);  /* n connections in total, as many as possible kept open */
void play_fork(void);     /* n processes in total that request the card and die */
void play_garbage(void);  /* overwrites the region of its container again and again */
void play_truncate(void); /* ... or truncates it to nothing */
void play_set(void);      /* acts as the agent: changes the terms of `slice` */
void play_kill(void);     /* kills the arbiter, and starts another `back` ms later */
void play_status(void);   /* writes the arbiter's status and its memory to `out` */

#endif
