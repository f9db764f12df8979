/* Compares the quick clock, which is read at every launch, with the kernel's: in one thread, in several, and after a pause. */
#include "check.h"
#include "clock.h"

#include <pthread.h>
#include <stdatomic.h>

#define MS 1000000ull
#define MOST_WRONG (MS / 5) /* 0.1 ms, plus the difference between the kernel's own readings on a busy machine */

static _Atomic uint32_t wrong;

static void look(void)
{
    uint64_t before = clock_now(), quick = clock_now_quickly(), after = clock_now();
    if (quick + MOST_WRONG < before || quick > after + MOST_WRONG) atomic_fetch_add(&wrong, 1);
}

static void *look_for_a_while(void *unused)
{
    for (uint64_t end = clock_now() + 300 * MS; clock_now() < end;) look();
    return unused;
}

static void it_says_what_the_kernel_says(void)
{
    look_for_a_while(NULL);
    EXPECT_EQ(wrong, 0);
}

static void threads_do_not_mislead_each_other(void)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, look_for_a_while, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    EXPECT_EQ(wrong, 0);
}

static void it_is_right_after_a_pause(void)
{
    for (int i = 0; i < 30; i++) {
        usleep(10000u * (unsigned)(i % 3));
        look();
    }
    usleep(2500000);
    look();
    look_for_a_while(NULL);
    EXPECT_EQ(wrong, 0);
}

int main(void)
{
    RUN(it_says_what_the_kernel_says);
    RUN(threads_do_not_mislead_each_other);
    RUN(it_is_right_after_a_pause);
    FINISH;
}
