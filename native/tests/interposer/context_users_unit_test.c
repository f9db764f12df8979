/* The count of calls in progress in a context, in a process that has just started: its first calls may come at the same time. */
#include "check.h"
#include "base/era.h"
#include "memory/context_ends.h"
#include "memory/context_users.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

enum { THREADS = 2, ROUNDS = 100000, CARD = 63 };
#define CONTEXT_A ((CUcontext)(uintptr_t)0x5500)

static void work(void)
{
    for (volatile int i = 0; i < 3000; i++) continue;
}

static void use(void)
{
    struct fr_user user;
    fr_user_begin(&user, CARD);
    work();
    fr_user_end(&user);
}

static void ask(void)
{
    struct fr_question q;
    fr_question_prepare(&q, CONTEXT_A);
    if (!fr_may_ask(&q)) return;
    work();
    fr_asked(&q);
}

static void wait_for_users(void) { fr_users_wait(CARD); }
static void end_a_context(void) { fr_context_end_begins(CONTEXT_A), fr_context_end_is_over(CONTEXT_A); }

static void (*call)(void);
static _Atomic int round_now, done;

static void *calls(void *unused)
{
    for (int round = 1; round <= ROUNDS; round++) {
        while (round_now < round) sched_yield();
        if (round_now > ROUNDS) break;
        call();
        done++;
    }
    return unused;
}

/* For the library each round is another process: the test changes the number that a fork changes. */
static void no_call_is_left_over(void (*first)(void), void (*then)(void))
{
    pthread_t t[THREADS];
    int slow = 0;
    call = first;
    round_now = done = 0;
    fr_era_now();
    for (int k = 0; k < THREADS; k++) pthread_create(&t[k], NULL, calls, NULL);
    double until = seconds() + 5;
    for (int round = 1; round <= ROUNDS && !slow && seconds() < until; round++) {
        fr_era++;
        round_now = round;
        while (done < THREADS * round) sched_yield();
        double before = seconds();
        then();
        then(); /* calls are counted in two counters */
        slow += seconds() - before > 3;
    }
    round_now = ROUNDS + 1;
    for (int k = 0; k < THREADS; k++) pthread_join(t[k], NULL);
    EXPECT_EQ(slow, 0);
}

static void no_first_call_of_a_process_is_waited_for_when_it_is_over(void) { no_call_is_left_over(use, wait_for_users); }
static void no_first_question_of_a_process_is_waited_for_when_it_is_answered(void) { no_call_is_left_over(ask, end_a_context); }

int main(void)
{
    RUN(no_first_call_of_a_process_is_waited_for_when_it_is_over);
    RUN(no_first_question_of_a_process_is_waited_for_when_it_is_answered);
    FINISH;
}
