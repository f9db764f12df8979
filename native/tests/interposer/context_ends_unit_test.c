/* Calls in a context that another thread ends: may they still query the driver about objects that they have made? */
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

static void a_call_asks_when_no_thread_ends_its_context(void)
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

static void the_ends_of_thousands_of_others_are_nothing_to_it(void)
{
    struct fr_question q[64];
    for (uintptr_t i = 0; i < 64; i++) q[i] = call_in((CUcontext)(0x7f0000001000 + 4112 * i));
    for (uintptr_t i = 0; i < 4000; i++) {
        CUcontext other = (CUcontext)(0x7f1000000040 + 53008 * i);
        fr_context_end_begins(other);
        fr_context_end_is_over(other);
    }
    for (int i = 0; i < 64; i++) EXPECT(may_ask(q[i]));
}

/* More ends than are remembered: then the library does not know, and must not query the driver about an object that may be dead. */
static void after_very_many_ends_a_call_does_not_ask_about_what_it_made_before(void)
{
    struct fr_question q = call_in(CONTEXT_A);
    fr_context_end_begins(CONTEXT_A);
    fr_context_end_is_over(CONTEXT_A);
    for (uintptr_t i = 1; i < 20000; i++) {
        CUcontext other = (CUcontext)(0x7f2000000000 + 4096 * i);
        fr_context_end_begins(other);
        fr_context_end_is_over(other);
        EXPECT(!may_ask(q));
    }
    EXPECT(may_ask(call_in(CONTEXT_A)));
}

/* More ends in progress than the list holds, in any order, and one of them twice. */
static void calls_amid_very_many_ends_do_not_ask(void)
{
    CUcontext c[200];
    for (uintptr_t i = 0; i < 200; i++) c[i] = (CUcontext)(0x7f3000000000 + 4096 * (i % 190));
    for (int i = 0; i < 200; i++) fr_context_end_begins(c[i]);
    for (int i = 199; i >= 0; i--) {
        struct fr_question q = call_in(c[i]);
        fr_context_end_is_over(c[i]);
        EXPECT(!may_ask(q));
        if (i >= 190) EXPECT(!may_ask(call_in(c[i]))); /* its other end is still in progress */
    }
    for (int i = 0; i < 200; i++) EXPECT(may_ask(call_in(c[i])));
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
    RUN(a_call_asks_when_no_thread_ends_its_context);
    RUN(an_end_waits_for_those_that_ask);
    RUN(what_was_made_before_an_end_is_not_asked_about_after_it);
    RUN(a_call_that_begins_amid_an_end_does_not_ask);
    RUN(the_end_of_another_context_is_nothing_to_it);
    RUN(the_ends_of_thousands_of_others_are_nothing_to_it);
    RUN(after_very_many_ends_a_call_does_not_ask_about_what_it_made_before);
    RUN(calls_amid_very_many_ends_do_not_ask);
    RUN(a_driver_that_hangs_holds_an_end_up_for_seconds_only);
    FINISH;
}
