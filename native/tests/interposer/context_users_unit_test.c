/* Calls on their way in a context that another thread ends: whether they may still ask the driver about what they have made. */
#include "check.h"
#include "memory/context_users.h"

#include <pthread.h>
#include <unistd.h>

enum { CARD = 0, ANOTHER = 1 };

static _Atomic bool begun;

static void *end_context(void *unused)
{
    fr_context_end_begins(CARD);
    begun = true;
    return unused;
}

static void a_call_asks_when_nobody_ends_a_context(void)
{
    struct fr_user u;
    fr_user_begin(&u, CARD);
    EXPECT(fr_user_asks(&u));
    fr_user_asked(&u);
    fr_user_end(&u);
}

static void an_end_waits_for_those_that_ask(void)
{
    pthread_t t;
    struct fr_user u;
    fr_user_begin(&u, CARD);
    EXPECT(fr_user_asks(&u));
    pthread_create(&t, NULL, end_context, NULL);
    usleep(100000);
    EXPECT(!begun);
    fr_user_asked(&u);
    pthread_join(t, NULL);
    EXPECT(begun);
    fr_context_end_is_over(CARD);
    fr_user_end(&u);
}

static void what_was_made_before_an_end_is_not_asked_about_after_it(void)
{
    struct fr_user u;
    fr_user_begin(&u, CARD);
    fr_context_end_begins(CARD);
    EXPECT(!fr_user_asks(&u));
    fr_context_end_is_over(CARD);
    EXPECT(!fr_user_asks(&u));
    fr_user_end(&u);
}

/* The driver may end the context after the call has made something in it. */
static void a_call_that_begins_amid_an_end_does_not_ask(void)
{
    struct fr_user u, other;
    fr_context_end_begins(CARD);
    fr_user_begin(&u, CARD);
    fr_user_begin(&other, ANOTHER);
    EXPECT(!fr_user_asks(&u));
    EXPECT(fr_user_asks(&other));
    fr_user_asked(&other);
    fr_context_end_is_over(CARD);
    EXPECT(!fr_user_asks(&u));
    fr_user_end(&u);
    fr_user_begin(&u, CARD);
    EXPECT(fr_user_asks(&u));
    fr_user_asked(&u);
    fr_user_end(&u);
    fr_user_end(&other);
}

static _Atomic bool asking, enough;

static void *keep_asking(void *unused)
{
    struct fr_user u;
    fr_user_begin(&u, CARD);
    asking = fr_user_asks(&u);
    while (!enough) usleep(1000);
    fr_user_asked(&u);
    fr_user_end(&u);
    return unused;
}

static void a_driver_that_hangs_holds_an_end_up_for_seconds_only(void)
{
    pthread_t t;
    pthread_create(&t, NULL, keep_asking, NULL);
    while (!asking) usleep(1000);
    double from = seconds();
    fr_context_end_begins(CARD);
    double waited = seconds() - from;
    EXPECT(waited > 3.9 && waited < 10);
    fr_context_end_is_over(CARD);
    enough = true;
    pthread_join(t, NULL);
}

int main(void)
{
    RUN(a_call_asks_when_nobody_ends_a_context);
    RUN(an_end_waits_for_those_that_ask);
    RUN(what_was_made_before_an_end_is_not_asked_about_after_it);
    RUN(a_call_that_begins_amid_an_end_does_not_ask);
    RUN(a_driver_that_hangs_holds_an_end_up_for_seconds_only);
    FINISH;
}
