/* Calls in a context that another thread ends: whether they may still ask the driver about what they have made. */
#include "check.h"
#include "memory/context_ends.h"

#include <pthread.h>
#include <unistd.h>

#define CONTEXT_A ((CUcontext)(uintptr_t)0x5500)
#define CONTEXT_B ((CUcontext)(uintptr_t)0x5600)

static struct fr_question call_in(CUcontext c)
{
    struct fr_question q;
    fr_question_prepare(&q, c);
    return q;
}

static bool may_ask(struct fr_question q)
{
    bool may = fr_may_ask(&q);
    if (may) fr_asked(&q);
    return may;
}

static void a_call_asks_when_nobody_ends_its_context(void)
{
    EXPECT(may_ask(call_in(CONTEXT_A)));
    EXPECT(may_ask(call_in(CONTEXT_B)));
}

static _Atomic bool begun;
static void *end_context(void *unused)
{
    fr_context_end_begins(CONTEXT_A);
    begun = true;
    return unused;
}

static void an_end_waits_for_those_that_ask(void)
{
    pthread_t t;
    struct fr_question q = call_in(CONTEXT_A);
    EXPECT(fr_may_ask(&q));
    pthread_create(&t, NULL, end_context, NULL);
    usleep(100000);
    EXPECT(!begun);
    fr_asked(&q);
    pthread_join(t, NULL);
    EXPECT(begun);
    fr_context_end_is_over(CONTEXT_A);
}

static void what_was_made_before_an_end_is_not_asked_about_after_it(void)
{
    struct fr_question q = call_in(CONTEXT_A);
    fr_context_end_begins(CONTEXT_A);
    EXPECT(!may_ask(q));
    fr_context_end_is_over(CONTEXT_A);
    EXPECT(!may_ask(q));
}

/* The driver may end the context after the call has made something in it. */
static void a_call_that_begins_amid_an_end_does_not_ask(void)
{
    fr_context_end_begins(CONTEXT_A);
    struct fr_question q = call_in(CONTEXT_A);
    EXPECT(!may_ask(q));
    fr_context_end_is_over(CONTEXT_A);
    EXPECT(!may_ask(q));
    EXPECT(may_ask(call_in(CONTEXT_A)));
}

static void the_end_of_another_context_is_nothing_to_it(void)
{
    struct fr_question q = call_in(CONTEXT_B);
    fr_context_end_begins(CONTEXT_A);
    EXPECT(may_ask(q));
    EXPECT(may_ask(call_in(CONTEXT_B)));
    fr_context_end_is_over(CONTEXT_A);
    EXPECT(may_ask(q));
}

static _Atomic bool asking, enough;
static void *keep_asking(void *unused)
{
    struct fr_question q = call_in(CONTEXT_A);
    asking = fr_may_ask(&q);
    while (!enough) usleep(1000);
    fr_asked(&q);
    return unused;
}

static void a_driver_that_hangs_holds_an_end_up_for_seconds_only(void)
{
    pthread_t t;
    pthread_create(&t, NULL, keep_asking, NULL);
    while (!asking) usleep(1000);
    double from = seconds();
    fr_context_end_begins(CONTEXT_A);
    double waited = seconds() - from;
    EXPECT(waited > 3.9 && waited < 10);
    fr_context_end_is_over(CONTEXT_A);
    enough = true;
    pthread_join(t, NULL);
}

int main(void)
{
    RUN(a_call_asks_when_nobody_ends_its_context);
    RUN(an_end_waits_for_those_that_ask);
    RUN(what_was_made_before_an_end_is_not_asked_about_after_it);
    RUN(a_call_that_begins_amid_an_end_does_not_ask);
    RUN(the_end_of_another_context_is_nothing_to_it);
    RUN(a_driver_that_hangs_holds_an_end_up_for_seconds_only);
    FINISH;
}
