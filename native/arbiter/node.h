/* The arbiter's data structures: slices (containers), peers (their processes), and the cards that they share. */
#ifndef FRACTILE_ARBITER_NODE_H
#define FRACTILE_ARBITER_NODE_H

#include "protocol.h"
#include "region.h"
#include "schedule.h"

#include <stddef.h>
#include <sys/types.h>

#define PEERS 16384          /* connections of all containers together */
#define PEERS_OF_A_SLICE 1024
#define MESSAGES_A_SECOND 20000 /* of one connection; more is a flood ... */
#define MESSAGES_OF_A_SLICE 40000 /* ... and of all connections of a container: then each that sends more than an equal part floods */
#define EVENTS 1024     /* entries of remembered trouble, one for each kind and container */
#define LOOK_NS 1000000000ull /* between two readings of the time held; SHARE% is measured from the last but one */

#define PEER_LOST (-2)

struct peer {
    int fd; /* -1: free; PEER_LOST: closed, but the process lives */
    int life; /* pidfd of the process: its children may keep its socket open after its death */
    int next; /* next peer of the same slice, or next free one */
    uint32_t slice;
    pid_t pid;                /* from the kernel, in the arbiter's pid namespace */
    uint32_t contexts;        /* in which it has work, from its last message; at least 1 */
    uint64_t wants, granted, ending; /* bit sets of the slice's cards; ending: subset of granted */
    uint64_t second, heard;   /* messages received in this second */
    uint64_t apart;           /* ARBITER_HOLDS_BACK, ARBITER_RUNS or 0, from its last message; see apart.c */
    uint64_t apart_since;     /* RUNS: when it began; HOLDS_BACK: when it was last reported */
    uint32_t apart_card;      /* the slice's number of the card */
};

struct slice {
    bool present;
    int listener, peers; /* first peer, -1: none */
    uint32_t peer_count, process_count; /* a process may have several connections */
    char path[256];
    const struct fr_limits *limits;
    bool writable; /* the page can be written */
    uint32_t seen; /* sequence of the limits that the seats have */
    bool spoilt;   /* the page is not a limits page any more */
    uint64_t bare; /* since when its socket has been gone; 0: it exists */
    uint64_t unreadable; /* since when the page has been in the middle of a change; 0: it is not */
    uint32_t cards;
    int16_t card[FR_MAX_CARDS];          /* the node's number of the card; -1: not arbitrated */
    uint64_t lease[FR_MAX_CARDS];        /* number of the last lease */
    uint64_t begins[FR_MAX_CARDS];       /* when the lease begins; 0: at once */
    uint64_t until[FR_MAX_CARDS];        /* when it ends; 0: open */
    uint64_t ends[FR_MAX_CARDS];         /* latest end announced by the connections that sent ENDING */
    uint32_t outstanding[FR_MAX_CARDS];  /* connections that hold the lease ... */
    uint32_t contexts[FR_MAX_CARDS];     /* ... and the sum of their contexts */
    bool recalled[FR_MAX_CARDS], shared[FR_MAX_CARDS];
    uint64_t throttled[FR_MAX_CARDS];    /* the seat's throttled_ns when this lease began */
    uint64_t held_back[FR_MAX_CARDS];    /* ... and its growth since the lease before, which the GRANT reports */
    uint32_t apart; /* number of peers with work outside of turns */
    uint64_t apart_until[FR_MAX_CARDS];  /* the seat is charged for such work up to this time */
    uint64_t reported_until[FR_MAX_CARDS]; /* time up to here that was reported to have been used outside of turns is charged */
    uint64_t second, heard; /* messages received from all its connections in this second */
    uint64_t held[2][FR_MAX_CARDS];      /* the seat's held_ns at the last look and at the one before */
};

enum event_kind { EVENT_LATE, EVENT_NONSENSE, EVENT_FLOOD, EVENT_REFUSED, EVENT_LIMITS, EVENT_KINDS };

struct event { /* counts one kind of trouble of one container */
    uint64_t number; /* grows with every event of any kind; 0: unused */
    uint64_t count, first_ns, last_ns, said_ns;
    pid_t pid; /* the last process; 0: no particular process */
    enum event_kind kind;
    char slice[64];
};

struct node {
    int epoll, inotify, control; /* inotify: -1 if there is none */
    bool blind, said_blind; /* blind: without inotify, the directories are scanned from time to time ... */
    uint64_t look_at;       /* ... and next at this time */
    uint64_t mend_at;       /* when to scan next because a socket is gone; 0: none is */
    int spare; /* a descriptor to close when no other is left, so that a connection can be accepted and refused */
    char root[256]; /* directory of slices; "" if the slices were named one by one */
    char uuids[SCHEDULE_CARDS][96];
    uint32_t card_count;
    uint64_t next_lease, events_seen, began_ns, looked_ns[2];
    uint64_t apart_looked; /* when work outside of turns was charged last */
    int free_peer, places; /* places: how many entries of `peers` may be used */
    uint32_t slice_count;
    uint64_t terms_at; /* when all pages were read last */
    uint32_t hashes[SCHEDULE_TENANTS]; /* of the slices' paths */
    struct schedule schedule;
    struct slice slices[SCHEDULE_TENANTS];
    struct peer peers[PEERS];
    struct event events[EVENTS];
};

/* slices.c */
bool slice_add(struct node *n, const char *path);
bool slice_is_served(const char *directory); /* by another arbiter */
void slice_remove(struct node *n, uint32_t slice);
void slices_scan(struct node *n);           /* adds new slices in n->root, and removes or mends the known ones */
bool slices_mend(const struct node *n, void *address); /* a mapped limits page was truncated: puts an empty page in its place */
void slices_terms(struct node *n, uint64_t now); /* reads changed weights and limits from the pages */

/* look.c: notices changes in n->root */
void look_begin(struct node *n);
void look_in(struct node *n, const char *directory); /* watches a slice's directory */
void look_heard(struct node *n); /* inotify has reported a change */
void look_if_due(struct node *n, uint64_t now);

/* alive.c: states in the limits pages that this arbiter runs */
void alive_begin(void);
const struct fr_limits *alive_map(int fd, bool writable); /* maps a limits page; NULL on failure, with errno */
void alive_unmap(const struct fr_limits *limits);
void alive_say(const struct fr_limits *limits); /* in a writable page; until this process dies */
void alive_unsay(const struct fr_limits *limits);

/* peers.c */
void peer_accept(struct node *n, uint32_t slice);
void peer_hear(struct node *n, uint32_t peer);
void peer_died(struct node *n, uint32_t peer);
void peer_drop(struct node *n, uint32_t peer);
void peers_tell(struct node *n, const struct schedule_decision *d, uint64_t now);

/* apart.c: charges work that runs outside of turns */
void apart_reported(struct node *n, uint32_t slice, uint32_t card, uint64_t ns, uint64_t now); /* a DONE reports time outside of turns */
bool apart_hear(struct node *n, struct peer *p, const struct arbiter_message *m); /* a DONE arrived; false: it is nonsense */
void apart_lose(struct node *n, struct peer *p, uint64_t in_turns); /* a living process lost its connection while it held turns of these cards */
void apart_end(struct node *n, struct peer *p);                   /* the process has ended */
uint64_t apart_charge(struct node *n, uint64_t now);              /* charges up to now; returns when to call again, 0: not needed */

/* status.c */
void event_note(struct node *n, const char *path, pid_t pid, enum event_kind kind);
void status_look(struct node *n, uint64_t now); /* call from time to time */
int status_write(struct node *n, int fd, uint64_t now);

/* table.c: prints that JSON as tables */
void table_print(const char *json);

/* arbiter.c: the source of an epoll event */
enum source { FROM_INOTIFY, FROM_CONTROL, FROM_SLICE, FROM_PEER, FROM_DEATH };
bool node_watch(struct node *n, int fd, enum source what, uint32_t index);

#endif
