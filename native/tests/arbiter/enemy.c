/* Roles without a card: they send messages to the arbiter, damage files that it relies on, or change the scene. */
#include "player.h"

#include "protocol.h"
#include "region.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- messages to the arbiter ---- */

static int unix_to(const char *directory, const char *file, int type)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    snprintf(name.sun_path, sizeof name.sun_path, "%.80s/%s", directory, file);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&name, sizeof name) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static int arbiter(void) { return unix_to(getenv("FRACTILE_DIR"), ARBITER_SOCKET, SOCK_SEQPACKET | SOCK_NONBLOCK); }

static bool want(int fd)
{
    struct arbiter_message m = {.version = ARBITER_VERSION, .kind = ARBITER_WANT};
    return clock_send(fd, &m, sizeof m, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof m;
}

static void drink(int fd)
{
    struct arbiter_message m;
    while (clock_receive(fd, &m, sizeof m, MSG_DONTWAIT) > 0) {}
}

void play_late(void)
{
    int fd = arbiter();
    want(fd);
    clock_sleep_until(part.end);
    close(fd);
}

/* When it is disconnected, it connects again. */
void play_flood(void)
{
    for (int fd = -1; clock_now() < part.end; clock_sleep_until(clock_now() + MS)) {
        if (fd < 0) fd = arbiter();
        drink(fd);
        for (unsigned i = 0; fd >= 0 && i < part.n; i++)
            if (!want(fd)) break;
        if (fd >= 0 && recv(fd, &(char){0}, 1, MSG_DONTWAIT | MSG_PEEK) == 0) close(fd), fd = -1;
    }
}

void play_nonsense(void)
{
    for (; clock_now() < part.end; clock_sleep_until(clock_now() + MS))
        for (unsigned i = 0; i < part.n; i++) {
            int fd = arbiter();
            clock_send(fd, "nonsense", 8, MSG_NOSIGNAL | MSG_DONTWAIT);
            close(fd);
        }
}

void play_connect(void)
{
    struct rlimit most;
    if (getrlimit(RLIMIT_NOFILE, &most) == 0) most.rlim_cur = most.rlim_max, setrlimit(RLIMIT_NOFILE, &most);
    for (unsigned i = 0; i < part.n && clock_now() < part.end; i++) {
        int fd = arbiter();
        if (fd >= 0) want(fd);
        if (i % 20 == 19) clock_sleep_until(clock_now() + MS);
    }
}

/* Each child requests a turn, and half of the children are killed before they can get an answer. */
void play_fork(void)
{
    for (unsigned i = 0; i < part.n && clock_now() < part.end; i++) {
        pid_t child = fork();
        if (!child) {
            int fd = unix_to(getenv("FRACTILE_DIR"), ARBITER_SOCKET, SOCK_SEQPACKET);
            struct arbiter_message m = {.version = ARBITER_VERSION, .kind = ARBITER_WANT};
            if (send(fd, &m, sizeof m, MSG_NOSIGNAL) < 0) {}
            _exit(0);
        }
        if (i % 2) kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        if (i % 8 == 7) clock_sleep_until(clock_now() + MS);
    }
}

/* ---- the container's own region ---- */

static int region(struct stat *st)
{
    char path[300];
    snprintf(path, sizeof path, "%s/shared/region", getenv("FRACTILE_DIR"));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, st) == 0) return fd;
    fprintf(stderr, "player: no region at %s\n", path);
    exit(3);
}

void play_garbage(void)
{
    struct stat st;
    unsigned seed = 7;
    int fd = region(&st);
    unsigned char *at = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) exit(3);
    for (; clock_now() < part.end; clock_sleep_until(clock_now() + 10 * MS))
        for (off_t i = 0; i < st.st_size; i += 1 + (off_t)(seed % 13)) at[i] = (unsigned char)((seed = seed * 1103515245u + 12345u) >> 16);
}

void play_truncate(void)
{
    struct stat st;
    if (ftruncate(region(&st), 0) != 0) exit(3);
}

/* ---- changes of the scene ---- */

/* Under the sequence lock, like the agent. */
void play_set(void)
{
    char path[300];
    snprintf(path, sizeof path, "%s/limits", part.slice);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct fr_limits *l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || l == MAP_FAILED) perror(path), exit(3);
    atomic_fetch_add(&l->sequence, 1);
    l->cards[part.card].cores = part.cores;
    l->cards[part.card].cores_limit = part.limit;
    l->cards[part.card].weight = part.weight;
    l->priority = part.priority;
    atomic_fetch_add(&l->sequence, 1);
}

static pid_t arbiter_pid(int fd)
{
    struct ucred who = {0};
    socklen_t size = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 ? who.pid : 0;
}

/* Changes to the machine happen outside of the virtual clock: other processes get a moment of real time to notice them, while the clock stands. */
static void let_it_be_seen(void)
{
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - from.tv_sec) * 1000000000l + now.tv_nsec - from.tv_nsec < 20000000l);
}

void play_kill(void)
{
    int fd = unix_to(part.slices, "../arbiter.sock", SOCK_STREAM);
    pid_t pid = fd >= 0 ? arbiter_pid(fd) : 0;
    if (pid <= 1) fprintf(stderr, "player: no arbiter to kill\n"), exit(3);
    struct pollfd life = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    kill(pid, SIGKILL);
    while (poll(&life, 1, 0) != 1) let_it_be_seen(); /* until then the next arbiter would be refused */
    close(life.fd);
    if (!part.back) return;
    clock_sleep_until(part.begin + part.back * MS);
    if (!fork()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl(part.program, part.program, "--slices", part.slices, NULL);
        _exit(127);
    }
    for (int fd = -1, tries = 0; fd < 0 && tries < 1000; tries++) { /* until it listens */
        let_it_be_seen();
        fd = arbiter();
        if (fd >= 0) close(fd);
    }
    let_it_be_seen();
}

static void copy_memory(FILE *to, pid_t pid)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "VmHWM:", 6)) fprintf(to, "%ld\n", strtol(line + 6, NULL, 10));
    if (f) fclose(f);
}

/* First line: the arbiter's peak memory, KiB. */
void play_status(void)
{
    char text[4096];
    ssize_t n;
    int fd = unix_to(part.slices, "../arbiter.sock", SOCK_STREAM);
    FILE *to = fopen(part.out, "w");
    if (fd < 0 || !to) fprintf(stderr, "player: no arbiter to ask\n"), exit(3);
    copy_memory(to, arbiter_pid(fd));
    while ((n = read(fd, text, sizeof text)) > 0) fwrite(text, 1, (size_t)n, to);
    fclose(to);
}
