/* The inside of the arbiter: slices (containers), peers (their processes), and the cards they share. */
#ifndef FRACTILE_ARBITER_NODE_H
#define FRACTILE_ARBITER_NODE_H

#include "protocol.h"
#include "region.h"
#include "schedule.h"

#include <stddef.h>
#include <sys/types.h>

#define PEERS 16384          /* connections of all containers together */
#define PEERS_OF_A_SLICE 1024
#define MESSAGES_A_SECOND 20000 /* of one process; more is a flood */
#define EVENTS 1024     /* kinds of trouble times containers that are remembered */
#define LOOK_NS 1000000000ull /* between looks at what has been held, of which the last but one is measured from */

#define PEER_LOST (-2)

struct peer {
    int fd; /* -1: free; PEER_LOST: closed, but the process lives */
    int life; /* pidfd of the process: its children may keep its socket open after its death */
    int next; /* of the same slice; of the free ones */
    uint32_t slice;
    pid_t pid;                /* as the kernel says, in our namespace */
    uint64_t wants, granted, ending; /* bit sets of the slice's cards; ending: of those granted */
    uint64_t second, heard;   /* messages heard in this second */
    uint64_t apart;           /* ARBITER_HOLDS_BACK, ARBITER_RUNS or 0, as it said last; see apart.c */
    uint64_t apart_since;     /* RUNS: since then; HOLDS_BACK: heard of then */
    uint32_t apart_card;      /* of the slice's */
};

struct slice {
    bool present;
    int listener, peers; /* first peer, -1: none */
    uint32_t peer_count, process_count; /* a process may have several connections */
    char path[256];
    const struct fr_limits *limits;
    bool writable; /* the page */
    uint32_t seen; /* sequence of the limits that the seats have */
    bool spoilt;   /* the page is no limits page any more */
    uint64_t bare; /* since when its socket has been gone; 0: it is there */
    uint64_t unreadable; /* since when the page has been in the middle of a change; 0: it is not */
    uint32_t cards;
    int16_t card[FR_MAX_CARDS];          /* number at the node; -1: not arbitrated */
    uint64_t lease[FR_MAX_CARDS];        /* number of the last lease */
    uint64_t begins[FR_MAX_CARDS];       /* not before; 0: at once */
    uint64_t until[FR_MAX_CARDS];        /* its end, 0: open */
    uint64_t ends[FR_MAX_CARDS];         /* the last of what those who say that they are ending have said */
    uint32_t outstanding[FR_MAX_CARDS];  /* connections whose processes hold it */
    bool recalled[FR_MAX_CARDS], shared[FR_MAX_CARDS];
    uint64_t throttled[FR_MAX_CARDS];    /* of its seat, as far as it was told; and what it is told with this lease */
    uint64_t held_back[FR_MAX_CARDS];
    uint32_t apart; /* peers with work apart from turns */
    uint64_t apart_until[FR_MAX_CARDS];  /* for that the seat is charged up to then */
    uint64_t held[2][FR_MAX_CARDS];      /* of its seat, at the last look and at the one before */
};

enum event_kind { EVENT_LATE, EVENT_NONSENSE, EVENT_FLOOD, EVENT_REFUSED, EVENT_LIMITS, EVENT_KINDS };

struct event { /* the same trouble of the same container, counted */
    uint64_t number; /* grows with every event of any kind; 0: unused */
    uint64_t count, first_ns, last_ns, said_ns;
    pid_t pid; /* of the last time; 0: no process in particular */
    enum event_kind kind;
    char slice[64];
};

struct node {
    int epoll, inotify, control; /* inotify: -1 where there is none */
    bool blind, said_blind; /* the directories are looked through from time to time: ... */
    uint64_t look_at;       /* ... next at */
    uint64_t mend_at;       /* the same where a socket is gone; 0: none is */
    int spare; /* a descriptor to give up when there is no other, so that a connection can be refused */
    char root[256]; /* directory of slices, "" when they were named */
    char uuids[SCHEDULE_CARDS][96];
    uint32_t card_count;
    uint64_t next_lease, events_seen, began_ns, looked_ns[2];
    uint64_t apart_looked; /* when the work apart from turns was charged last */
    int free_peer, places; /* places: so many of the peers are used */
    uint32_t slice_count;
    uint64_t terms_at; /* when all pages were looked at */
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
void slices_scan(struct node *n);           /* what is in n->root now */
bool slices_mend(const struct node *n, void *address); /* a page of limits was cut short under us: an empty one in its place */
void slices_terms(struct node *n, uint64_t now); /* weights and limits as the pages say now */

/* look.c: what is new in n->root */
void look_begin(struct node *n);
void look_in(struct node *n, const char *directory); /* of a slice: what appears and goes there */
void look_heard(struct node *n); /* inotify has something to say */
void look_if_due(struct node *n, uint64_t now);

/* alive.c: what the pages say of us */
void alive_begin(void);
const struct fr_limits *alive_map(int fd, bool writable); /* a page of limits; NULL, and errno */
void alive_unmap(const struct fr_limits *limits);
void alive_say(const struct fr_limits *limits); /* from now on, and until we die; of a writable one */
void alive_unsay(const struct fr_limits *limits);

/* peers.c */
void peer_accept(struct node *n, uint32_t slice);
void peer_hear(struct node *n, uint32_t peer);
void peer_died(struct node *n, uint32_t peer);
void peer_drop(struct node *n, uint32_t peer);
void peers_tell(struct node *n, const struct schedule_decision *d, uint64_t now);

/* apart.c: work that runs outside of turns */
bool apart_hear(struct node *n, struct peer *p, const struct arbiter_message *m); /* a DONE; false: nonsense */
void apart_lose(struct node *n, struct peer *p, uint64_t in_turns); /* its connection, in the turns of these cards; the process lives */
void apart_end(struct node *n, struct peer *p);                   /* the process has ended */
uint64_t apart_charge(struct node *n, uint64_t now);              /* what has run up to now; when to look again, 0: no need */

/* status.c */
void event_note(struct node *n, const char *path, pid_t pid, enum event_kind kind);
void status_look(struct node *n, uint64_t now); /* from time to time */
int status_write(struct node *n, int fd, uint64_t now);

/* table.c: JSON of the above, for people */
void table_print(const char *json);

/* arbiter.c: what an epoll event belongs to */
enum source { FROM_INOTIFY, FROM_CONTROL, FROM_SLICE, FROM_PEER, FROM_DEATH };
bool node_watch(struct node *n, int fd, enum source what, uint32_t index);

#endif
