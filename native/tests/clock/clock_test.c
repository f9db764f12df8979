/* The virtual clock stands still while a participant computes, jumps when all wait, and is not stopped by a dead participant. */
#include "check.h"
#include "clock.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MS 1000000ull

static struct shared {
    _Atomic uint32_t here, word, order;
    _Atomic uint64_t times[64];
} *shared;

static pid_t child(void (*what)(int), int argument)
{
    pid_t pid = fork();
    if (pid) {
        while (!shared->here) {} /* it takes part from its first look at the clock on */
        shared->here = 0;
        return pid;
    }
    clock_now();
    shared->here = 1;
    what(argument);
    _exit(0);
}

static void end_of(pid_t pid) { waitpid(pid, NULL, 0); }

static void an_hour_alone_takes_no_time(void)
{
    double from = seconds();
    uint64_t began = clock_now();
    clock_sleep_until(began + 3600000 * MS);
    EXPECT_EQ(clock_now(), began + 3600000 * MS);
    EXPECT(seconds() - from < 1);
}

static void the_clock_stands_while_a_thread_computes(void)
{
    uint64_t began = clock_now();
    usleep(1000); /* shorter than the time until sleeping threads are checked */
    for (volatile int i = 0; i < 3000000; i++) {}
    EXPECT_EQ(clock_now(), began);
}

/* Each child adds its number at its own times; the result must be in the order of the clock, not of the machine. */
static void tick(int period)
{
    uint64_t at = shared->times[63];
    for (int i = 0; i < 20; i++) {
        clock_sleep_until(at += (uint64_t)period * MS);
        uint32_t n = atomic_fetch_add(&shared->order, 1);
        if (n < 60) shared->times[n] = clock_now();
    }
}

static void sleepers_of_several_processes_wake_in_the_order_of_their_deadlines(void)
{
    shared->order = 0;
    shared->times[63] = clock_now() + 100 * MS;
    pid_t a = child(tick, 7), b = child(tick, 11), c = child(tick, 13);
    end_of(a), end_of(b), end_of(c);
    EXPECT_EQ(shared->order, 60);
    for (int i = 1; i < 60; i++) EXPECT(shared->times[i] >= shared->times[i - 1]);
}

static void wait_for_word(int unused)
{
    (void)unused;
    while (shared->word == 0) clock_wait(&shared->word, 0, 0);
    shared->times[0] = clock_now();
}

static void a_woken_thread_runs_before_the_clock_goes_on(void)
{
    for (int i = 0; i < 50; i++) {
        shared->word = 0;
        shared->times[0] = 0;
        pid_t a = child(wait_for_word, 0);
        clock_sleep_until(clock_now() + 5 * MS);
        uint64_t when = clock_now();
        shared->word = 1;
        clock_wake(&shared->word);
        clock_sleep_until(when + 1000 * MS);
        end_of(a);
        EXPECT_EQ(shared->times[0], when);
    }
}

static void echo(int fd)
{
    char m[8];
    while (clock_receive(fd, m, sizeof m, 0) > 0) {
        clock_sleep_until(clock_now() + 2 * MS);
        clock_send(fd, m, sizeof m, MSG_NOSIGNAL);
    }
}

static void messages_take_no_time_and_hold_the_clock_while_they_are_on_their_way(void)
{
    int ends[2];
    char m[8] = "hello";
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    pid_t a = child(echo, ends[1]);
    close(ends[1]);
    uint64_t began = clock_now();
    double from = seconds();
    for (int i = 0; i < 1000; i++) {
        clock_send(ends[0], m, sizeof m, 0);
        struct pollfd p = {.fd = ends[0], .events = POLLIN};
        EXPECT_EQ(clock_poll(&p, 1, clock_now() + 50 * MS), 1);
        EXPECT_EQ(clock_receive(ends[0], m, sizeof m, 0), sizeof m);
    }
    printf("     %.1f us for a message and its answer\n", (seconds() - from) * 1000);
    EXPECT_EQ(clock_now() - began, 2000 * MS);
    kill(a, SIGKILL);
    end_of(a);
    close(ends[0]);
}

static void a_poll_ends_at_its_deadline(void)
{
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    struct pollfd p = {.fd = ends[0], .events = POLLIN};
    uint64_t began = clock_now();
    EXPECT_EQ(clock_poll(&p, 1, began + 30 * MS), 0);
    EXPECT_EQ(clock_now(), began + 30 * MS);
    close(ends[0]), close(ends[1]);
}

static void note_signal(int unused) { (void)unused; }

static void poll_until_signal(int unused)
{
    (void)unused;
    struct pollfd none = {.fd = -1};
    signal(SIGTERM, note_signal);
    shared->word = 1;
    _exit(clock_poll(&none, 1, 0) < 0 && errno == EINTR ? 7 : 8);
}

static void a_signal_ends_a_poll(void)
{
    int status = 0;
    shared->word = 0;
    pid_t a = child(poll_until_signal, 0);
    while (!shared->word) usleep(1000);
    double from = seconds();
    while (waitpid(a, &status, WNOHANG) == 0 && seconds() - from < 5) {
        kill(a, SIGTERM);
        usleep(20000);
    }
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    if (!WIFEXITED(status)) kill(a, SIGKILL), end_of(a);
}

static void forever(int computing)
{
    if (!computing) clock_sleep_until(clock_now() + 1000000000 * MS);
    clock_now();
    for (;;) {}
}

static void a_killed_participant_does_not_stop_the_clock(void)
{
    for (int computing = 0; computing < 2; computing++) {
        pid_t a = child(forever, computing);
        usleep(20000);
        kill(a, SIGKILL);
        uint64_t began = clock_now();
        clock_sleep_until(began + 500 * MS);
        EXPECT(clock_now() >= began + 500 * MS);
        end_of(a);
    }
}

static void *sleeper(void *unused)
{
    clock_sleep_until(clock_now() + 100 * MS);
    return unused;
}

static void a_thread_that_joins_another_is_not_waited_for(void)
{
    pthread_t t;
    uint64_t began = clock_now();
    pthread_create(&t, NULL, sleeper, NULL);
    pthread_join(t, NULL);
    EXPECT_EQ(clock_now(), began + 100 * MS);
}

/* As a thread does that waits for a lock of the library under test. */
static void nap(int milliseconds)
{
    double until = seconds() + milliseconds / 1e3;
    while (seconds() < until) usleep(20);
    shared->times[0] = clock_now();
}

static void the_clock_stands_while_a_thread_sleeps_for_microseconds_at_a_time(void)
{
    for (int i = 0; i < 10; i++) {
        uint64_t began = clock_now();
        pid_t other = child(nap, 30);
        clock_sleep_until(began + 3600000 * MS);
        end_of(other);
        EXPECT_EQ(shared->times[0], began);
    }
}

static void a_thread_that_does_so_for_long_is_not_waited_for(void)
{
    uint64_t began = clock_now();
    double from = seconds();
    pid_t other = child(nap, 20000);
    clock_sleep_until(began + 3600000 * MS);
    EXPECT(seconds() - from < 15);
    kill(other, SIGKILL);
    end_of(other);
}

static void jump(int n)
{
    uint64_t at = clock_now();
    for (int i = 0; i < n; i++) clock_sleep_until(at += MS);
}

static void jumping_is_quick(void)
{
    double from = seconds();
    jump(100000);
    double alone = (seconds() - from) * 10;
    from = seconds();
    pid_t a = child(jump, 10000);
    jump(10000);
    end_of(a);
    double two = (seconds() - from) * 50;
    printf("     a jump: %.2f us alone, %.1f us with two processes\n", alone, two);
    EXPECT(alone < 50 && two < 500);
}

int main(void)
{
    setenv("SIMGPU_CLOCK", "virtual", 1);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RUN(an_hour_alone_takes_no_time);
    RUN(the_clock_stands_while_a_thread_computes);
    RUN(sleepers_of_several_processes_wake_in_the_order_of_their_deadlines);
    RUN(a_woken_thread_runs_before_the_clock_goes_on);
    RUN(messages_take_no_time_and_hold_the_clock_while_they_are_on_their_way);
    RUN(a_poll_ends_at_its_deadline);
    RUN(a_signal_ends_a_poll);
    RUN(a_killed_participant_does_not_stop_the_clock);
    RUN(a_thread_that_joins_another_is_not_waited_for);
    RUN(the_clock_stands_while_a_thread_sleeps_for_microseconds_at_a_time);
    RUN(a_thread_that_does_so_for_long_is_not_waited_for);
    RUN(jumping_is_quick);
    FINISH;
}
