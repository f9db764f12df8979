/* Turns that are granted before they begin: how the library handles BEGINS. The test plays the arbiter, with the messages and instants of the real
 * one (arbiter/protocol.h). Runs in real time: the tests check that things do not happen too early. */
#include "arbiter.h"

#include "../../arbiter/protocol.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#define LIMITED CARD_A "=900MiB,context=256MiB,cores=50 " CARD_B "=900MiB,context=100MiB"
#define MS 1000000ull
#define FIRST_TURN 1u /* the turn in which the library learns; it begins at once */

enum manner { AHEAD, FAR_AHEAD, SOONER, ANOTHERS, LATE_THREAD };

/* The played arbiter's messages, sent and received; shared with the tested process. */
static struct { enum manner manner; _Atomic uint64_t begins, granted, done; _Atomic uint32_t turns, short_turns; } *seen;

CUresult cuCtxGetCurrent(CUcontext *);

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void say(int fd, enum arbiter_kind kind, uint64_t lease, uint64_t length)
{
    struct arbiter_message m = {.version = ARBITER_VERSION, .kind = kind, .lease = lease, .length_ns = length};
    if (kind == ARBITER_GRANT) m.gang = ARBITER_MAY_END | ARBITER_BEHIND;
    send(fd, &m, sizeof m, MSG_NOSIGNAL);
}

static void give_turn(int fd)
{
    uint32_t turn = atomic_load(&seen->turns) + 1;
    uint64_t now = now_ns(), begins = now + (seen->manner == FAR_AHEAD ? 60000 * MS : 8 * MS);
    atomic_store(&seen->begins, begins);
    atomic_store(&seen->granted, now);
    if (turn > FIRST_TURN && seen->manner != LATE_THREAD) say(fd, ARBITER_BEGINS, seen->manner == ANOTHERS ? turn + 1 : turn, begins);
    atomic_store(&seen->turns, turn);
    say(fd, ARBITER_GRANT, turn, 30 * MS);
    if (turn > FIRST_TURN && seen->manner == SOONER) {
        usleep(2000);
        atomic_store(&seen->begins, now_ns());
        say(fd, ARBITER_BEGINS, turn, atomic_load(&seen->begins));
    }
}

static void serve(int fd)
{
    struct arbiter_message m;
    while (recv(fd, &m, sizeof m, 0) == sizeof m) {
        if (m.kind == ARBITER_DONE && !m.lease) continue; /* not for a turn: a report of other work on the card */
        if (m.kind == ARBITER_DONE) {
            atomic_store(&seen->done, now_ns());
            if (atomic_load(&seen->done) < atomic_load(&seen->granted) + 3 * MS / 2) atomic_fetch_add(&seen->short_turns, 1);
        }
        if (m.kind == ARBITER_WANT || (m.kind == ARBITER_DONE && m.more)) give_turn(fd);
    }
}

static void play_arbiter(void)
{
    memset(seen, 0, sizeof *seen);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%.90s/arbiter.sock", container_directory);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    unlink(name.sun_path);
    if (bind(fd, (struct sockaddr *)&name, sizeof name) || listen(fd, 8)) return;
    if (!(arbiter = fork()))
        for (int one;;)
            if ((one = accept(fd, NULL, NULL)) >= 0) serve(one);
    close(fd);
}

/* ---- in the container ---- */

static CUfunction spin;

/* Waits until the thread that communicates with the arbiter runs, and the first turn is over. */
static void get_ready(void)
{
    CUmodule module;
    if (!context_on(0)) _exit(1);
    EXPECT_EQ(cuModuleLoadData(&module, spin_ptx), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&spin, module, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(spin, 100, NULL), CUDA_SUCCESS);
    while (!atomic_load(&seen->done)) usleep(1000);
}

/* Returns the time of the launch. */
static uint64_t launch_in_the_next_turn(void)
{
    uint32_t turns = atomic_load(&seen->turns);
    EXPECT_EQ(spin_in(spin, 100, NULL), CUDA_SUCCESS);
    uint64_t launched = now_ns();
    uint32_t then = atomic_load(&seen->turns);
    EXPECT(then > turns);
    return launched;
}

/* The turn is given back once the card has been idle for some milliseconds; on a busy machine the thread that does so may be late. */
static void until_the_turn_is_given_back(void)
{
    while (atomic_load(&seen->done) < atomic_load(&seen->granted)) usleep(1000);
}

static void nothing_is_launched_before_a_turn_that_was_given_ahead_begins(void)
{
    seen->manner = AHEAD;
    get_ready();
    for (int i = 0; i < 20; i++) {
        uint64_t launched = launch_in_the_next_turn(), begins = atomic_load(&seen->begins);
        EXPECT(launched >= begins);
        cuCtxSynchronize();
        until_the_turn_is_given_back();
    }
}

/* Under load a single thread may be woken late, but not all of twenty. */
static void turns_that_began(enum manner manner, uint64_t within)
{
    int soon = 0;
    seen->manner = manner;
    get_ready();
    for (int i = 0; i < 20; i++) {
        uint64_t launched = launch_in_the_next_turn();
        soon += launched < atomic_load(&seen->granted) + within;
        cuCtxSynchronize();
        until_the_turn_is_given_back();
    }
    EXPECT(soon > 0);
}

static void a_beginning_that_makes_no_sense_is_now(void) { turns_that_began(FAR_AHEAD, 6 * MS); }
static void the_beginning_of_another_turn_is_not_waited_for(void) { turns_that_began(ANOTHERS, 6 * MS); }
static void a_turn_may_begin_sooner_than_was_said_first(void) { turns_that_began(SOONER, 7 * MS); }

static void stay_on_the_first_processor(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    sched_setaffinity(0, sizeof one, &one);
}

/* A thread that waits for its turn but cannot run: it has less than the lowest weight, on a processor that other threads use. */
static void *wait_badly(void *context)
{
    cuCtxSetCurrent(context);
    stay_on_the_first_processor();
    sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
    for (int i = 0; i < 20; i++) {
        launch_in_the_next_turn();
        cuCtxSynchronize();
        until_the_turn_is_given_back();
    }
    return NULL;
}

static _Atomic bool over;

static void *compute(void *unused)
{
    stay_on_the_first_processor();
    while (!atomic_load(&over)) {}
    return unused;
}

static void a_turn_is_not_idle_while_the_thread_that_asked_for_it_is_not_awake_yet(void)
{
    pthread_t slow, busy;
    CUcontext context;
    seen->manner = LATE_THREAD;
    get_ready();
    EXPECT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
    EXPECT_EQ(pthread_create(&busy, NULL, compute, NULL), 0);
    atomic_store(&seen->short_turns, 0);
    EXPECT_EQ(pthread_create(&slow, NULL, wait_badly, context), 0);
    pthread_join(slow, NULL);
    atomic_store(&over, true);
    pthread_join(busy, NULL);
    /* One turn for each launch, and one more if the thread slept again before its turn was over. Hundreds if turns were given back as idle. */
    uint32_t turns = atomic_load(&seen->short_turns);
    if (turns > 40) printf("%u turns shorter than 1.5 ms for 20 launches\n", turns);
    EXPECT_EQ(turns > 40, false);
}

#define BESIDE_A_PLAYED_ARBITER(test) BESIDE_AN_ARBITER(play_arbiter, SIGKILL, test)

int main(void)
{
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    BESIDE_A_PLAYED_ARBITER(nothing_is_launched_before_a_turn_that_was_given_ahead_begins);
    BESIDE_A_PLAYED_ARBITER(a_beginning_that_makes_no_sense_is_now);
    BESIDE_A_PLAYED_ARBITER(the_beginning_of_another_turn_is_not_waited_for);
    BESIDE_A_PLAYED_ARBITER(a_turn_may_begin_sooner_than_was_said_first);
    BESIDE_A_PLAYED_ARBITER(a_turn_is_not_idle_while_the_thread_that_asked_for_it_is_not_awake_yet);
    FINISH;
}
