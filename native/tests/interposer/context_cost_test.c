/* The cost of a context: never charged below the memory that the card gave, with the agent's figure and without, whatever other containers do. */
#include "container.h"

#include <pthread.h>

#define ROUNDS 20

/* Another container on the card that allocates and frees memory all the time. */
static pid_t neighbour(void)
{
    pid_t child = fork();
    if (child) return child;
    CUdeviceptr p;
    new_container(CARD_A "=2000MiB,context=256MiB");
    context_on(0);
    for (;;)
        if (cuMemAlloc_v2(&p, 300 * MIB) == CUDA_SUCCESS) cuMemFree_v2(p);
}

static void one_round(void)
{
    CUcontext c = context_on(0), d;
    EXPECT(used() >= held(CARD_A));
    EXPECT_EQ(cuCtxCreate_v2(&d, 0, 0), CUDA_SUCCESS);
    EXPECT(used() >= held(CARD_A));
    EXPECT_EQ(cuCtxDestroy_v2(d), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(c), CUDA_SUCCESS);
    EXPECT(used() >= held(CARD_A));
    EXPECT(used() <= 512 * MIB);
}

static void beside_a_neighbour_whose_memory_comes_and_goes(const char *cards)
{
    ok_so_far = true;
    pid_t other = neighbour();
    usleep(300000);
    for (int i = 0; i < ROUNDS; i++) {
        new_container(cards);
        if (!run_child(one_round)) ok_so_far = false;
    }
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
}

static void a_measured_context_is_never_below_the_truth(void) { beside_a_neighbour_whose_memory_comes_and_goes(CARD_A "=1100MiB"); }
static void a_context_of_a_known_size_is_charged_with_that(void) { beside_a_neighbour_whose_memory_comes_and_goes(CARD_A "=1100MiB,context=256MiB"); }

static void *allocate_and_free(void *stop)
{
    CUdeviceptr p;
    CUcontext c = NULL;
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_SUCCESS);
    while (!*(_Atomic int *)stop)
        if (cuMemAlloc_v2(&p, 64 * MIB) == CUDA_SUCCESS) cuMemFree_v2(p);
    return NULL;
}

static void threads_that_allocate_meanwhile_do_not_make_it_smaller(void)
{
    pthread_t thread;
    _Atomic int stop = 0;
    CUcontext c;
    CUdeviceptr p;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    pthread_create(&thread, NULL, allocate_and_free, &stop);
    for (int i = 0; i < 30; i++) {
        if (cuCtxCreate_v2(&c, 0, 0) != CUDA_SUCCESS) continue;
        if (cuMemAlloc_v2(&p, 2 * MIB) == CUDA_SUCCESS) cuMemFree_v2(p);
        EXPECT_EQ(cuCtxDestroy_v2(c), CUDA_SUCCESS);
    }
    stop = 1;
    pthread_join(thread, NULL);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&c, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(c), CUDA_SUCCESS);
    EXPECT(used() >= held(CARD_A));
    EXPECT(peak(CARD_A) <= 1200 * MIB);
}

static void a_context_that_is_smaller_than_told_is_charged_as_told(void)
{
    context_on(0);
    EXPECT_EQ(used(), CONTEXT);
    EXPECT(held(CARD_A) <= CONTEXT);
}

static void a_context_of_any_size_is_measured_exactly(void)
{
    context_on(0);
    EXPECT_EQ(used(), held(CARD_A));
    EXPECT(held(CARD_A) >= CONTEXT / 2);
}

static void more_than_the_quota_has_is_refused_and_does_not_stay(void)
{
    CUcontext c;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(held(CARD_A), 0);
}

int main(void)
{
    RUN(a_measured_context_is_never_below_the_truth);
    RUN(a_context_of_a_known_size_is_charged_with_that);
    IN(CARD_A "=1200MiB", threads_that_allocate_meanwhile_do_not_make_it_smaller);
    IN(CARD_A "=200MiB", more_than_the_quota_has_is_refused_and_does_not_stay);
    for (int seed = 1; seed <= 20; seed++) {
        char text[16];
        snprintf(text, sizeof text, "%d", seed);
        setenv("SIMGPU_POLICY", text, 1);
        IN(CARD_A "=1200MiB,context=256MiB", a_context_that_is_smaller_than_told_is_charged_as_told);
        IN(CARD_A "=1200MiB", a_context_of_any_size_is_measured_exactly);
    }
    FINISH;
}
