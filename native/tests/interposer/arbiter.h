/* Test scenarios in a container with an arbiter. */
#ifndef ARBITER_H
#define ARBITER_H

#include "container.h"

#include <sys/un.h>
#include <sys/socket.h>

static pid_t arbiter;

/* The socket may exist before the arbiter listens. */
static inline bool arbiter_answers(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%.90s/arbiter.sock", container_directory);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool answers = fd >= 0 && connect(fd, (struct sockaddr *)&name, sizeof name) == 0;
    if (fd >= 0) close(fd);
    return answers;
}

static inline void start_arbiter(void)
{
    char program[600];
    snprintf(program, sizeof program, "%s/arbiter/fractile-arbiter", getenv("OUT"));
    unsetenv("LD_PRELOAD");
    if (!(arbiter = fork())) {
        freopen("/dev/null", "w", stderr);
        execl(program, program, container_directory, NULL);
        _exit(127);
    }
    for (int i = 0; i < 3000 && !arbiter_answers(); i++) usleep(10000);
}

static inline void stop_arbiter(int signal)
{
    kill(arbiter, signal);
    waitpid(arbiter, NULL, 0);
}

#define BESIDE_AN_ARBITER(start, signal, test) \
    do {                                       \
        new_container(LIMITED);                \
        start();                               \
        ok_so_far = run_child(test);           \
        stop_arbiter(signal);                  \
        printf("%s %s\n", ok_so_far ? "ok  " : "FAIL", #test); \
        ok_so_far ? passed++ : failed++;       \
    } while (0)

/* The least of up to five attempts. On a machine without a free processor some attempts take long; with turns to wait for, all do. */
#define EXPECT_WITHIN(bound, seconds_taken)                                                                 \
    do {                                                                                                    \
        double least_ = 1e9;                                                                                \
        for (int i_ = 0; i_ < 5 && least_ >= (bound); i_++) {                                               \
            double took_ = (seconds_taken);                                                                 \
            if (took_ < least_) least_ = took_;                                                             \
        }                                                                                                   \
        EXPECT(least_ < (bound));                                                                           \
    } while (0)

#define UNDER_AN_ARBITER(test) BESIDE_AN_ARBITER(start_arbiter, SIGTERM, test)

#endif
