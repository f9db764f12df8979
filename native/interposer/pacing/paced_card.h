/* A card whose time is shared out, as this process sees it. */
#ifndef FRACTILE_PACING_PACED_CARD_H
#define FRACTILE_PACING_PACED_CARD_H

#include "cuda_abi.h"
#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fr_account;

#define FR_CARD_PACED 1u /* flag of a card in the limits: its neighbours have shares, so this container is paced too */

enum fr_gate_state {
    FR_GATE_FREE = 0, /* not paced: no shares on this card, or no arbiter */
    FR_GATE_IDLE,     /* the container's turn was not asked for */
    FR_GATE_ASKED,
    FR_GATE_OPEN,     /* launches may go until `end` */
    FR_GATE_CLOSED,   /* the turn is over: what is in flight runs out, nothing is added */
};

struct fr_paced_card {
    _Atomic uint32_t gate;   /* a futex */
    _Atomic uint32_t inside; /* launches between the gate and the driver's answer; threads that end a context with work in flight */
    _Atomic uint32_t waiting;
    _Atomic uint32_t awake;   /* a thread looks at the clock until the turn begins */
    _Atomic uint32_t at_gate; /* threads between the closed gate and their launch */
    _Atomic uint32_t shared;                      /* others have the card too: what is measured contains their work */
    _Atomic uint32_t full;    /* a launch was refused, or another would be, because it would not be done before the turn ends */
    _Atomic uint32_t guessed; /* something was launched in this turn whose length is not known well */
    _Atomic uint64_t alone_at, passes_at; /* before and after that (0: never) another container's work may be on the card, too */
    _Atomic uint64_t begins;  /* when the turn begins; the grant may come earlier */
    _Atomic uint64_t end, granted, lease; /* of the turn; end 0: until recalled */
    _Atomic uint64_t stuck_since;                 /* the gate is closed since then, and nothing was done; 0: it is not, or nobody may go. See stuck.c */
    _Atomic uint32_t stuck_let, stuck_gone, stuck_doubled; /* launches that went since; in this turn, or since that was seen; so often its time was doubled */
    _Atomic uint64_t queue_end;                   /* when the last of the streams should be done */
    _Atomic uint32_t last_event_busy;             /* a thread works with the two below */
    CUevent last_event;                           /* the event that was reached last ... */
    CUcontext last_event_of;                      /* ... and its context */
    _Atomic uint64_t open_done;                   /* when a batch without an event behind it was last found done */
    _Atomic uint64_t gpu_ns;                      /* measured, as far as it is ours, ever; without what was said to run outside of turns */
    _Atomic uint64_t last_launch;                 /* when */
    _Atomic uint64_t alive_at;                    /* when the lease client ran last; see fr_lease_client_lives() */
    _Atomic(CUevent) waits_for;                   /* ... since then it waits for this one, in the driver, or for FR_WAITS_FOR_ALL */
    _Atomic uint32_t launched_now;                /* any in this turn? */
};
extern struct fr_paced_card fr_paced_cards[FR_MAX_CARDS];

#define FR_WAITS_FOR_ALL ((CUevent)1) /* that is in a context: nobody else can tell whether it is done */
/* The program can stop the thread that ends turns, for which nothing may be launched then: by ptrace, or by a signal that the C library
 * lets nobody block. It runs each FR_LOOK_NS while a turn is open. */
bool fr_lease_client_lives(struct fr_paced_card *card, uint64_t now);
void fr_lease_client_is_alive(struct fr_paced_card *card); /* said by it, wherever it may have to wait */

struct fr_account *fr_paced_card_account(const struct fr_paced_card *card); /* NULL: none */
uint64_t fr_paced_cards_gang(uint64_t now); /* cards that this process has used lately, bit set */

#define FR_WINDOW_NS 10000000ull   /* of work in flight in a stream: what a newcomer waits at most */
#define FR_BESIDE_WINDOW_NS 3000000ull /* ... while others have the card too: it takes as many times longer, and the card is not idle */
#define FR_HANDOVER_NS 400000ull   /* so long before its last kernel should be done, a turn is passed on: the next begins at once */
#define FR_IDLE_NS 200000ull       /* nothing new for so long after the last is done: the turn is given back to who waits */
#define FR_TARDY_NS 3000000ull     /* ... so long after its beginning while threads that waited for it have not launched yet */
#define FR_ALONE_NS 20000000ull    /* ... when nobody was waiting */
#define FR_QUIET_NS 1000000000ull  /* no launch for so long: an arbiter that is not there is not looked for */
#define FR_LOOK_NS 25000000ull     /* the lease client looks so often at an open gate ... */
#define FR_SILENT_NS 100000000ull  /* ... and after so long without a look the turn is over: the machine may be busy */
#define FR_IN_DRIVER_NS 600000000000ull /* ... where it waits for all, after so long */
#define FR_DRY_NS 50000ull         /* so long after all of a stream should be done, it has run dry */

#endif
