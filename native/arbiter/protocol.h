/* The protocol between the library in a container and the arbiter, over <slice>/arbiter.sock: one struct per message (SOCK_SEQPACKET), both
 * ends on one machine. Cards are numbered as in the slice's limits page. Times are lengths, except in BEGINS, which has an instant: one in
 * the past, or far in the future, means now.
 *
 *      library                                arbiter
 *        WANT card, gang     -->
 *                            <--   BEGINS card, lease, instant             before the GRANT: launch nothing earlier; once more: begin sooner
 *                            <--   GRANT card, lease, length (0: until recalled), held back
 *        feeds the card, at most until the length is over
 *                            <--   SHARED card, lease                   other containers have the card too, from now on
 *                            <--   RECALL card, lease
 *        ENDING card, lease, length -->     nothing is added; after that length the next container may begin, just before all is done
 *        DONE card, lease, more -->            no work of this process is left on the card, except work reported as outside of turns
 *
 * All processes of a container share its lease: each process that wants the card gets the GRANT, and the lease is over when each has sent
 * DONE or is gone. The arbiter believes nothing in a message that would give the process more than it may request anyway.
 *
 * Work may be waiting behind streams that the program holds back, and runs when the program releases them: that work is apart from turns. A
 * process with such work reports it in each DONE, and sends a DONE every ARBITER_APART_NS, with a turn or without one. While the work runs,
 * or while the process is silent, its container is charged (apart.c).
 *
 * The driver gives equal slices to contexts. So each WANT and DONE says in how many contexts the process had work in flight when its last turn
 * ended, and a DONE with lease 0 says so when that is found out. */
#ifndef FRACTILE_ARBITER_PROTOCOL_H
#define FRACTILE_ARBITER_PROTOCOL_H

#include <stdint.h>

#define ARBITER_VERSION 1u
#define ARBITER_SOCKET "arbiter.sock" /* in the slice's directory */

enum arbiter_kind { ARBITER_WANT = 1, ARBITER_DONE = 2, ARBITER_GRANT = 3, ARBITER_RECALL = 4, ARBITER_SHARED = 5, ARBITER_ENDING = 6, ARBITER_BEGINS = 7 };

#define ARBITER_WAITS 1u   /* the library understands BEGINS */
#define ARBITER_HOLDS_BACK 2u /* work is waiting behind streams that the program holds back ... */
#define ARBITER_RUNS 4u       /* ... or was released, and runs outside of a turn */
#define ARBITER_CONTEXTS_SHIFT 8 /* bits 8 to 15: number of contexts; 0 counts as 1 (a library of an older version) ... */
#define ARBITER_MOST_CONTEXTS 64u /* ... and more than this as this */
#define ARBITER_WORKED_SHIFT 16 /* DONE, from bit 16 on: measured time of the process's work since its last DONE, in us */
#define ARBITER_APART_NS 50000000ull
#define ARBITER_MAY_END 1u /* the arbiter understands ENDING */
#define ARBITER_BEHIND 2u  /* the turn before was passed on: its last kernels may still be on the card */

struct arbiter_message {
    uint32_t version, kind;
    uint32_t card;
    uint32_t more;      /* DONE: the process wants the card again; GRANT: other containers may have it too */
    uint64_t lease;     /* number of the lease; DONE: the lease that is given back */
    uint64_t gang;      /* WANT, DONE: bit set of cards that the process uses together; GRANT: ARBITER_MAY_END, ARBITER_BEHIND */
    /* GRANT, ENDING: the length. BEGINS: the instant, by the machine's monotonic clock. DONE: time for which the process's work was on the
     * card outside of turns, without the time in which it reported ARBITER_RUNS. */
    uint64_t length_ns;
    /* WANT, DONE: bit set of ARBITER_WAITS, ARBITER_HOLDS_BACK, ARBITER_RUNS, the number of contexts, and (DONE) how long its work took. GRANT: time since the GRANT before
     * in which the container was next in line and only its own limit held it back. */
    uint64_t held_back_ns;
};

#endif
