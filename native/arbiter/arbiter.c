/* fractile-arbiter: shares out the time of the cards of one node between containers. Its loop:
 *
 *      1. look at the slices: new ones, removed ones, changed terms     slices.c
 *      2. read the processes' messages                                  peers.c
 *      3. charge work outside of turns, decide                          apart.c, schedule.c
 *      4. notify the processes, sleep until something is due
 *
 * It has one thread for that, and one that only sleeps (alive.c). It keeps no state on disk: after a restart the processes send their
 * requests again. */
#include "node.h"

#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define TERMS_NS 50000000ull /* between two looks for changed weights and limits while a card is in use */
#define SPELL_US 100000      /* computing this long without a sleep ends the real-time priority */
#define OTHER_DESCRIPTORS 64 /* the arbiter's own files, and connections for the status */
#define ROUND 64             /* most events handled before the next decision */

static const char usage[] =
    "usage: fractile-arbiter [--control SOCKET] [--exclusive] --slices DIR   serve every slice directory in DIR, also those to come\n"
    "       fractile-arbiter [--control SOCKET] SLICE...              serve these slice directories\n"
    "       fractile-arbiter status [--json] DIR                      what the arbiter that serves DIR knows\n"
    "       fractile-arbiter status [--json] --control SOCKET         what the arbiter with this control socket knows\n"
    "       fractile-arbiter --version\n"
    "\n"
    "Shares out the time of the cards of this node between containers. One per node is enough, for all cards; a second one for\n"
    "the same DIR or SLICE is refused.\n"
    "\n"
    "A slice directory belongs to one container. It holds the page `limits`, with the container's weight, limit and priority\n"
    "for each card, which is looked at again at every decision; the arbiter makes the socket `arbiter.sock` in it, which the\n"
    "library in the container speaks to. --control is the socket that `status` asks, for root only; it defaults to\n"
    "arbiter.sock beside DIR, and there is none when slices are named one by one.\n"
    "\n"
    "While a card has time to spare, containers without a hard limit use it at the same time, and the driver's time slicing decides;\n"
    "a container that works without a break, or gets more than its weight, ends that. --exclusive: always in turns.\n"
    "\n"
    "Stop it with SIGTERM, or kill it: containers go on with the driver's own time slicing, and come back when it is started\n"
    "again. It keeps nothing on disk. With --parent=PID it stops when the process PID, which started it, ends.\n"
    "\n"
    "status prints per card and container:\n"
    "  STATE   holds the card; waits for others; throttled by its own limit; away; late: does not give the card back\n"
    "  SHARE%  of the card's time in the last one or two seconds of use\n"
    "  HELD, WAITED, THROTTL   seconds since the arbiter or the container started; throttled is the part of waited in which\n"
    "          its turn had come, but its own limit held it back\n"
    "  DEBT    seconds of the card that it has had too early: it waits until that is paid\n"
    "and what went wrong, counted: late, nonsense and flood (the connection was closed), refused (no place was left),\n"
    "limits (a page that cannot be read).\n"
    "\n"
    "Exit status 0: told to stop, or the status is printed; 1: it cannot be done; 2: the command line is wrong.\n";

static struct node node;
static bool exclusive;
static volatile sig_atomic_t stop;

static void on_signal(int unused) { (void)unused, stop = 1; }

/* SIGBUS: a mapped limits page was truncated. For any other address the signal's default action follows. */
static void on_cut_page(int number, siginfo_t *what, void *unused)
{
    (void)unused;
    if (!slices_mend(&node, what->si_addr)) signal(number, SIG_DFL);
}

bool node_watch(struct node *n, int fd, enum source what, uint32_t index)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = (uint64_t)what << 32 | index};
    return epoll_ctl(n->epoll, EPOLL_CTL_ADD, fd, &e) == 0;
}

/* ---- the status ---- */

static int unix_socket(const char *path, bool serve)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof name.sun_path) return errno = ENAMETOOLONG, -1;
    strcpy(name.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | (serve ? SOCK_NONBLOCK : 0), 0);
    if (serve) unlink(path);
    if (fd >= 0 && (serve ? bind(fd, (struct sockaddr *)&name, sizeof name) || chmod(path, 0600) || listen(fd, 16)
                          : connect(fd, (struct sockaddr *)&name, sizeof name)) == 0)
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static void answer(struct node *n)
{
    int fd = accept4(n->control, NULL, NULL, SOCK_CLOEXEC);
    struct timeval patience = {0, 200000};
    if (fd < 0) return;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    status_write(n, fd, clock_now());
    close(fd);
}

static int print_status(const char *control, const char *remedy, bool json)
{
    char *text = NULL;
    size_t size = 0;
    int fd = unix_socket(control, false), next;
    if (fd < 0) return fprintf(stderr, "fractile-arbiter: no arbiter answers at %s (%s); %s\n", control, strerror(errno), remedy), 1;
    FILE *from = fdopen(fd, "r"), *all = open_memstream(&text, &size);
    while (from && all && (next = fgetc(from)) != EOF) fputc(next, all);
    if (from) fclose(from);
    if (all) fclose(all);
    if (!text || !size || text[size - 1] != '\n') return fprintf(stderr, "fractile-arbiter: the arbiter at %s did not answer in full; ask again\n", control), 1;
    if (json) fputs(text, stdout);
    else table_print(text);
    free(text);
    return 0;
}

/* ---- the loop ---- */

static void handle(struct node *n, const struct epoll_event *e)
{
    uint32_t index = (uint32_t)e->data.u64;
    switch ((enum source)(e->data.u64 >> 32)) {
    case FROM_INOTIFY: look_heard(n); break;
    case FROM_CONTROL: answer(n); break;
    case FROM_SLICE: if (n->slices[index].present) peer_accept(n, index); break;
    case FROM_PEER: if (n->peers[index].fd >= 0) peer_hear(n, index); break;
    case FROM_DEATH: peer_died(n, index); break;
    }
}

static bool any_card_busy(const struct node *n)
{
    for (uint32_t c = 0; c < n->schedule.cards; c++)
        if (n->schedule.holder[c] >= 0 || n->schedule.open[c]) return true;
    return false;
}

static void decide(struct node *n, uint64_t *again)
{
    struct schedule_decision d;
    uint64_t now = clock_now();
    look_if_due(n, now);
    slices_terms(n, now);
    status_look(n, now);
    uint64_t look = apart_charge(n, now);
    while (schedule_decide(&n->schedule, now, &d, again)) peers_tell(n, &d, now);
    if (look && (!*again || *again > look)) *again = look;
    if (any_card_busy(n) && (!*again || *again > now + TERMS_NS)) *again = now + TERMS_NS;
    if (n->blind && (!*again || *again > n->look_at)) *again = n->look_at;
    if (n->mend_at && (!*again || *again > n->mend_at)) *again = n->mend_at;
}

/* False: the arbiter cannot continue. */
static bool serve(struct node *n)
{
    struct epoll_event events[ROUND];
    while (!stop) {
        uint64_t again;
        decide(n, &again);
        struct pollfd p = {.fd = n->epoll, .events = POLLIN};
        if (clock_poll(&p, 1, again) < 0 && errno != EINTR) return fprintf(stderr, "fractile-arbiter: cannot wait for containers: %s\n", strerror(errno)), false;
        int ready = epoll_wait(n->epoll, events, ROUND, 0);
        for (int i = 0; i < ready; i++) handle(n, &events[i]);
    }
    return true;
}

/* ---- beginning and end ---- */

/* Makes the kernel send SIGTERM when the parent ends, for any reason. False: it has ended already. */
static bool end_with(const char *parent)
{
    return prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 && getppid() == atoi(parent);
}

/* The arbiter needs two descriptors for each connection, one for each container, and a few others. The number of connections is limited so
 * that enough descriptors are left for all containers. */
static int places(void)
{
    struct rlimit most;
    if (getrlimit(RLIMIT_NOFILE, &most) != 0) return PEERS;
    rlim_t own = SCHEDULE_TENANTS + OTHER_DESCRIPTORS;
    most.rlim_cur = most.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &most) != 0 && getrlimit(RLIMIT_NOFILE, &most) != 0) return PEERS;
    if (own > most.rlim_cur / 2) own = most.rlim_cur / 2;
    rlim_t count = (most.rlim_cur - own) / 2;
    return count < PEERS ? (int)count : PEERS;
}

static bool begin(struct node *n, const char *control)
{
    n->places = places();
    alive_begin();
    n->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    n->epoll = epoll_create1(EPOLL_CLOEXEC);
    n->control = control[0] ? unix_socket(control, true) : -1;
    schedule_init(&n->schedule);
    n->schedule.exclusive = exclusive;
    n->began_ns = clock_now();
    for (int i = 0; i < n->places; i++) n->peers[i] = (struct peer){.fd = -1, .next = i + 1 < n->places ? i + 1 : -1};
    if (n->epoll < 0) return fprintf(stderr, "fractile-arbiter: %s\n", strerror(errno)), false;
    if (control[0] && n->control < 0) return fprintf(stderr, "fractile-arbiter: cannot listen at %s: %s\n", control, strerror(errno)), false;
    if (n->control >= 0) node_watch(n, n->control, FROM_CONTROL, 0);
    return true;
}

/* A second arbiter would take over the sockets: some programs would be connected to the one, some to the other. So the directory is locked
 * for as long as this process lives. No container sees the directory, so none can lock it. */
static bool is_ours(const char *root)
{
    int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fprintf(stderr, "fractile-arbiter: %s: %s\n", root, strerror(errno)), false;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    return fprintf(stderr, "fractile-arbiter: another arbiter serves %s; one is enough for all cards (fractile-arbiter status %s)\n", root, root), false;
}

static bool take_root(struct node *n, const char *root)
{
    /* A slice's directory appears complete, by rename. Its limits page may appear later, also by rename. */
    if (strlen(root) >= sizeof n->root) return fprintf(stderr, "fractile-arbiter: the path %s is too long\n", root), false;
    strcpy(n->root, root);
    look_begin(n);
    return true;
}

static void end(struct node *n, const char *control)
{
    char path[300];
    for (uint32_t i = 0; i < n->schedule.tenants; i++) {
        if (!n->slices[i].present) continue;
        snprintf(path, sizeof path, "%s/" ARBITER_SOCKET, n->slices[i].path);
        unlink(path);
        slice_remove(n, i);
    }
    if (n->control >= 0) unlink(control);
}

/* Every container waits for the arbiter in every turn. So, if it is allowed to (CAP_SYS_NICE), it runs before all other programs, and with
 * precise timers. If it computes for SPELL_US without a break, because of a flood or a bug, it loses that priority. */
static void on_long_spell(int unused)
{
    (void)unused;
    sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){0});
}

static void go_first(void)
{
    struct rlimit spell = {SPELL_US, RLIM_INFINITY};
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns; the default is 50000 */
    clock_wake_soon(); /* in case the real-time class is refused */
    signal(SIGXCPU, on_long_spell);
    if (setrlimit(RLIMIT_RTTIME, &spell) == 0) sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &(struct sched_param){.sched_priority = 1});
}

static int run(const char *root, const char *control, char **slices)
{
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    signal(SIGPIPE, SIG_IGN);
    go_first();
    sigaction(SIGBUS, &(struct sigaction){.sa_sigaction = on_cut_page, .sa_flags = SA_SIGINFO}, NULL);
    if (root[0] && !is_ours(root)) return 1;
    if (!begin(&node, control) || (root[0] && !take_root(&node, root))) return 1;
    for (; *slices; slices++)
        if (slice_is_served(*slices)) return fprintf(stderr, "fractile-arbiter: another arbiter serves %s; one is enough for all cards\n", *slices), 1;
        else if (!slice_add(&node, *slices)) return fprintf(stderr, "fractile-arbiter: %s is no slice directory (%s); fractile-slice create makes one, and `fractile-arbiter status DIR` asks a running arbiter\n", *slices, strerror(errno)), 1;
    bool told = serve(&node);
    end(&node, control);
    return told ? 0 : 1;
}

/* Prints one line, and returns the exit status for a wrong command line. */
static int wrong(const char *what, const char *about)
{
    fprintf(stderr, "fractile-arbiter: %s%s; see fractile-arbiter --help\n", what, about);
    return 2;
}

/* The path of arbiter.sock beside the directory; links are followed. */
static bool beside(const char *directory, char *socket, size_t size)
{
    char whole[PATH_MAX];
    if (!realpath(directory, whole)) return fprintf(stderr, "fractile-arbiter: %s: %s\n", directory, strerror(errno)), false;
    *strrchr(whole, '/') = 0;
    if ((size_t)snprintf(socket, size, "%s/" ARBITER_SOCKET, whole) < size) return true;
    return fprintf(stderr, "fractile-arbiter: the path %s/" ARBITER_SOCKET " is too long; name another with --control\n", whole), false;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"slices", 1, NULL, 's'}, {"control", 1, NULL, 'c'}, {"parent", 1, NULL, 'p'}, {"json", 0, NULL, 'j'}, {"exclusive", 0, NULL, 'e'}, {"help", 0, NULL, 'h'}, {"version", 0, NULL, 'v'}, {0}};
    bool json = false;
    char control[256] = "";
    const char *root = "";
    opterr = 0;
    for (int o; (o = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
        if (o == 'h') return fputs(usage, stdout), 0;
        if (o == 'v') return puts("fractile-arbiter " FRACTILE_VERSION), 0;
        if (o == '?') return wrong("there is no option ", argv[optind - 1]);
        if (o == ':') return wrong("a value is missing after ", argv[optind - 1]);
        if (o == 's') root = optarg;
        if (o == 'c' && (size_t)snprintf(control, sizeof control, "%s", optarg) >= sizeof control) return wrong("the path is too long: ", optarg);
        if (o == 'j') json = true;
        if (o == 'e') exclusive = true;
        if (o == 'p' && atoi(optarg) < 1) return wrong("--parent is the number of a process, not ", optarg);
        if (o == 'p' && !end_with(optarg)) return fprintf(stderr, "fractile-arbiter: process %s is not the parent any more\n", optarg), 1;
    }
    bool status = optind < argc && !strcmp(argv[optind], "status");
    if (status && argc - optind > 2) return wrong("status takes one directory, but was given ", argv[optind + 2]);
    if (status && argc - optind == 2) root = argv[optind + 1];
    if (status && !root[0] && !control[0]) return wrong("status needs DIR or --control SOCKET", "");
    if (json && !status) return wrong("--json goes with status", "");
    if (!root[0] && optind == argc) return wrong("which slices? expected --slices DIR, or slice directories", "");
    const char *remedy = control[0] ? "is it running with this --control?" : "start it: fractile-arbiter --slices DIR";
    if (!control[0] && root[0] && !beside(root, control, sizeof control)) return 1;
    if (status) return print_status(control, remedy, json);
    mallopt(M_MMAP_THRESHOLD, 16384); /* the status texts' memory goes back to the kernel; otherwise fragments stayed forever */
    return run(root, control, argv + optind);
}
