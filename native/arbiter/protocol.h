/* What the library in a container and the arbiter say to each other, over <slice>/arbiter.sock: one struct per message
 * (SOCK_SEQPACKET), both on one machine. Cards are numbered as in the slice's limits page. Times are lengths, not
 * instants, but for BEGINS: what lies in the past, or far in the future, means now.
 *
 *      library                                arbiter
 *        WANT card, gang     -->
 *                            <--   BEGINS card, lease, instant             comes before its GRANT: launch nothing before; again: not so late
 *                            <--   GRANT card, lease, length (0: until recalled), held back
 *        feeds the card, at most until the length is over
 *                            <--   SHARED card, lease                   others have the card too, from now on
 *                            <--   RECALL card, lease
 *        ENDING card, lease, length -->     nothing is added; after that length the next may be let in, a moment before all is done
 *        DONE card, lease, more -->            nothing of this process is left on the card, but for what it says is apart from turns
 *
 * All processes of a container share its lease: each that wants the card gets the GRANT, and the lease is over when each
 * has said DONE or is gone. Nothing that a message claims is believed beyond what it asks for.
 *
 * Work stays behind streams that the program holds back, and runs when it lets them go: apart from turns. A process that has such work
 * says so in each DONE, and says DONE every ARBITER_APART_NS, with a turn or without. While the work runs, or nothing is heard of the
 * process, its container is charged (apart.c). */
#ifndef FRACTILE_ARBITER_PROTOCOL_H
#define FRACTILE_ARBITER_PROTOCOL_H

#include <stdint.h>

#define ARBITER_VERSION 1u
#define ARBITER_SOCKET "arbiter.sock" /* in the slice's directory */

enum arbiter_kind { ARBITER_WANT = 1, ARBITER_DONE = 2, ARBITER_GRANT = 3, ARBITER_RECALL = 4, ARBITER_SHARED = 5, ARBITER_ENDING = 6, ARBITER_BEGINS = 7 };

#define ARBITER_WAITS 1u   /* the library understands BEGINS */
#define ARBITER_HOLDS_BACK 2u /* work stands behind streams that the program holds back ... */
#define ARBITER_RUNS 4u       /* ... or was let go, and runs outside of a turn */
#define ARBITER_APART_NS 50000000ull
#define ARBITER_MAY_END 1u /* the arbiter understands ENDING */
#define ARBITER_BEHIND 2u  /* the turn before was passed on: its last kernels may still be on the card */

struct arbiter_message {
    uint32_t version, kind;
    uint32_t card;
    uint32_t more;      /* of DONE: wants the card again; of GRANT: others may have it too */
    uint64_t lease;     /* number of the lease; of DONE: the one that is given back */
    uint64_t gang;      /* of WANT and DONE: bit set of cards that this process works on together; of GRANT: what follows */
    uint64_t length_ns; /* of BEGINS: the instant, of the machine's monotonic clock; of GRANT and ENDING; of DONE: so long its work was on the card outside of turns, without the time in which it said ARBITER_RUNS */
    uint64_t held_back_ns; /* of WANT and DONE: bit set of the above; of GRANT: so long, since the one before, its turn had come and its own limit held the container back */
};

#endif
