/* The inside of the arbiter: slices (containers), peers (their processes), and the cards they share. */
#ifndef FRACTILE_ARBITER_NODE_H
#define FRACTILE_ARBITER_NODE_H

#include "protocol.h"
#include "region.h"
#include "share.h"

#include <stddef.h>
#include <sys/types.h>

#define PEERS 16384          /* connections of all containers together */
#define PEERS_OF_A_SLICE 1024
#define MESSAGES_A_SECOND 20000 /* of one process; more is a flood */
#define EVENTS 256

struct peer {
    int fd; /* -1: free */
    int life; /* pidfd of the process: its children may keep its socket open after its death */
    int next; /* of the same slice; of the free ones */
    uint32_t slice;
    pid_t pid;                /* as the kernel says, in our namespace */
    uint64_t wants, granted;  /* bit sets of the slice's cards */
    uint64_t second, heard;   /* messages heard in this second */
};

struct slice {
    bool present;
    int listener, peers; /* first peer, -1: none */
    uint32_t peer_count;
    char path[256];
    const struct fr_limits *limits;
    uint32_t seen; /* sequence of the limits that the seats have */
    uint32_t cards;
    int16_t card[FR_MAX_CARDS];          /* number at the node; -1: not arbitrated */
    uint64_t lease[FR_MAX_CARDS];        /* number of the last lease */
    uint64_t until[FR_MAX_CARDS];        /* its end, 0: open */
    uint32_t outstanding[FR_MAX_CARDS];  /* processes that hold it */
    bool recalled[FR_MAX_CARDS];
};

struct event {
    uint64_t number, at_ns;
    pid_t pid;
    char slice[64], what[96];
};

struct node {
    int epoll, inotify, control;
    int spare; /* a descriptor to give up when there is no other, so that a connection can be refused */
    char root[256]; /* directory of slices, "" when they were named */
    char uuids[SHARE_CARDS][96];
    uint32_t card_count;
    uint64_t next_lease, events_seen, terms_checked;
    int free_peer;
    struct share share;
    struct slice slices[SHARE_TENANTS];
    struct peer peers[PEERS];
    struct event events[EVENTS];
};

/* slices.c */
bool slice_add(struct node *n, const char *path);
void slice_remove(struct node *n, uint32_t slice);
void slices_scan(struct node *n);           /* what is in n->root now */
void slices_terms(struct node *n, uint64_t now); /* weights and limits as the pages say now */

/* peers.c */
void peer_accept(struct node *n, uint32_t slice);
void peer_hear(struct node *n, uint32_t peer);
void peer_died(struct node *n, uint32_t peer);
void peer_drop(struct node *n, uint32_t peer, const char *why); /* why NULL: it went by itself */
void peers_tell(struct node *n, const struct share_decision *d, uint64_t now);

/* status.c */
void event_note(struct node *n, const struct slice *s, pid_t pid, const char *what);
int status_write(const struct node *n, int fd, uint64_t now);

/* arbiter.c: what an epoll event belongs to */
enum source { FROM_INOTIFY, FROM_CONTROL, FROM_SLICE, FROM_PEER, FROM_DEATH };
bool node_watch(struct node *n, int fd, enum source what, uint32_t index);

#endif
