/* Notices new slice directories, and sockets that were deleted, by inotify. If the kernel grants no inotify instance or watch (their number
 * per user is bounded, and a container's root is often the same user), the directory is scanned once a second, and inotify is tried again
 * each time. */
#include "node.h"

#include "clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#define LOOK_AGAIN_NS 1000000000ull

static bool watches_root(struct node *n)
{
    if (n->inotify < 0) {
        n->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
        if (n->inotify >= 0) node_watch(n, n->inotify, FROM_INOTIFY, 0);
    }
    return n->inotify >= 0 && inotify_add_watch(n->inotify, n->root, IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_ONLYDIR) >= 0;
}

static void go_blind(struct node *n)
{
    if (!n->blind && !n->said_blind) fprintf(stderr, "fractile-arbiter: no inotify instance or watch is free (%s): %s is looked through once a second\n", strerror(errno), n->root);
    n->blind = n->said_blind = true;
}

/* Watching comes before scanning, so that a directory that appears in between is seen by one or the other. */
static void begin_to_look(struct node *n)
{
    n->blind = false;
    if (!watches_root(n)) go_blind(n);
    for (uint32_t i = 0; i < n->schedule.tenants && !n->blind; i++)
        if (n->slices[i].present) look_in(n, n->slices[i].path); /* inotify may be a new one */
    slices_scan(n);
    n->look_at = clock_now() + LOOK_AGAIN_NS;
    if (!n->blind && n->said_blind) fprintf(stderr, "fractile-arbiter: inotify watches %s again\n", n->root), n->said_blind = false;
}

void look_begin(struct node *n)
{
    n->inotify = -1;
    if (n->root[0]) begin_to_look(n);
}

void look_in(struct node *n, const char *directory)
{
    if (n->inotify >= 0 && inotify_add_watch(n->inotify, directory, IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE | IN_MOVED_FROM | IN_ONLYDIR) >= 0) return;
    if (errno == ENOSPC || errno == ENOMEM) go_blind(n);
}

void look_heard(struct node *n)
{
    char changes[4096];
    while (read(n->inotify, changes, sizeof changes) > 0) {}
    slices_scan(n);
}

void look_if_due(struct node *n, uint64_t now)
{
    if (n->blind && now >= n->look_at) begin_to_look(n);
    else if (n->mend_at && now >= n->mend_at) slices_scan(n);
}
