/* This process's state of a paced card: the gate, the turn, and what is in flight. */
#ifndef FRACTILE_PACING_PACED_CARD_H
#define FRACTILE_PACING_PACED_CARD_H

#include "cuda_abi.h"
#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fr_account;

#define FR_CARD_PACED 1u /* flag of a card in the limits: other containers on it have shares, so this container is paced too */

enum fr_gate_state {
    FR_GATE_FREE = 0, /* not paced: no shares on this card, or no arbiter */
    FR_GATE_IDLE,     /* no turn was requested */
    FR_GATE_ASKED,
    FR_GATE_OPEN,     /* launches may go until `end` */
    FR_GATE_CLOSED,   /* the turn is over: work in flight runs out, nothing is added */
};

struct fr_paced_card {
    _Atomic uint32_t gate;   /* a futex */
    _Atomic uint32_t inside; /* launches between the gate and the driver's answer; threads that end a context with work in flight */
    _Atomic uint32_t waiting;
    _Atomic uint32_t awake;   /* a thread watches the clock until the turn begins */
    _Atomic uint32_t at_gate; /* threads between the closed gate and their launch */
    _Atomic uint32_t shared;                      /* other containers have the card too: measured times contain their work */
    _Atomic uint32_t full;    /* a launch was refused, or the next would be, because it would not be done before the turn ends */
    _Atomic uint32_t guessed; /* work was launched in this turn whose length is not known well */
    _Atomic uint64_t alone_at, passes_at; /* before alone_at and after passes_at (0: never) another container's work may be on the card, too */
    _Atomic uint64_t begins;  /* when the turn begins; the grant may come earlier */
    _Atomic uint64_t end, granted, lease; /* of the turn; end 0: until recalled */
    _Atomic uint64_t stuck_since;                 /* since then the gate is closed and nothing was done; 0: not so, or no launch may go */
    _Atomic uint32_t stuck_let, stuck_gone, stuck_doubled; /* launches since then; in this turn, or since the last look; doublings (stuck.c) */
    _Atomic uint64_t stuck_ns;                    /* predicted length of launches that went soon, in this turn */
    _Atomic uint64_t stuck_from;                  /* when the gate was closed */
    _Atomic uint32_t stuck_unknown;               /* of them, launches of unknown length */
    _Atomic uint32_t may_wait;                    /* batches in flight with a graph that may wait for the program */
    _Atomic uint64_t worked_at;                   /* when the lease client last found work running although the turn seemed idle */
    _Atomic uint64_t queue_end;                   /* when the last of the streams should be done */
    _Atomic uint32_t last_event_busy;             /* a thread works with the two fields below */
    CUevent last_event;                           /* the event that was reached last ... */
    CUcontext last_event_of;                      /* ... and its context */
    _Atomic uint64_t open_done;                   /* when a batch without an event behind it was last found done */
    _Atomic uint64_t gpu_ns;                      /* measured time of this process's work, ever; without work reported as running outside of turns */
    _Atomic uint64_t unproven_ns;                 /* of that, time in which the work may have waited for the program */
    _Atomic uint64_t last_launch;                 /* when */
    _Atomic uint64_t alive_at;                    /* when the lease client ran last; see fr_lease_client_lives() */
    _Atomic(CUevent) waits_for;                   /* ... and the event, or FR_WAITS_FOR_ALL, for which it has waited in the driver since */
    _Atomic uint32_t launched_now;                /* there was a launch in this turn */
};
extern struct fr_paced_card fr_paced_cards[FR_MAX_CARDS];

#define FR_WAITS_FOR_ALL ((CUevent)1) /* all work of a context: another thread cannot tell whether it is done */
/* The program can stop the thread that ends turns, by ptrace or by a signal that the C library does not let a thread block. Then nothing
 * may be launched. While a turn is open, that thread runs every FR_LOOK_NS. */
bool fr_lease_client_lives(struct fr_paced_card *card, uint64_t now);
void fr_lease_client_is_alive(struct fr_paced_card *card); /* called by the lease client wherever it may have to wait */

struct fr_account *fr_paced_card_account(const struct fr_paced_card *card); /* NULL: none */
uint64_t fr_paced_cards_gang(uint64_t now); /* bit set of the cards that this process has used lately */

#define FR_WINDOW_NS 10000000ull   /* most work in flight in a stream: the longest that a newcomer waits */
#define FR_BESIDE_WINDOW_NS 3000000ull /* ... while other containers have the card too: work takes several times longer, the card is not idle */
#define FR_HANDOVER_NS 400000ull   /* a turn is passed on this long before its last kernel should be done, so that the next begins at once */
#define FR_IDLE_NS 200000ull       /* no launch for this long after the last work is done: the turn is given back to a waiting container */
#define FR_TARDY_NS 3000000ull     /* ... at the latest this long after its beginning if threads that waited for it have not launched yet */
#define FR_ALONE_NS 20000000ull    /* ... if no container was waiting */
#define FR_QUIET_NS 1000000000ull  /* after this long without a launch, a missing arbiter is no longer looked for */
#define FR_LOOK_NS 25000000ull     /* the lease client looks at an open gate this often ... */
#define FR_SILENT_NS 100000000ull  /* ... and after this long without a look the turn is over: the machine may be busy */
#define FR_IN_DRIVER_NS 600000000000ull /* ... or after this long where it waits for all work of a context */
#define FR_DRY_NS 50000ull         /* a stream has run dry this long after all its work should be done */

#endif
