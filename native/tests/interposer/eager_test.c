/* Where libraries are loaded into every context: contexts and libraries that come and go at the same time. */
#include "container.h"

#include <pthread.h>
#include <unistd.h>

CUresult cuLibraryLoadData(CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned);
CUresult cuLibraryUnload(CUlibrary);

static _Atomic bool enough;
static const char image[] = ".version 7.0\n.target sm_50\n.address_size 64\n.global .align 4 .b8 big[16000000];\n.visible .entry k() { ret; }\n";

static void *contexts(void *unused)
{
    CUcontext c;
    while (!enough) {
        if (cuCtxCreate_v2(&c, 0, 0) != CUDA_SUCCESS) continue;
        EXPECT_EQ(cuCtxDestroy_v2(c), CUDA_SUCCESS);
    }
    return unused;
}

static void *libraries(void *unused)
{
    CUlibrary library;
    while (!enough) {
        if (cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0) != CUDA_SUCCESS) continue;
        EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
    }
    return unused;
}

/* So that there is hardly ever room for both. */
static void *the_rest(void *unused)
{
    CUdeviceptr at[500];
    context_on(0);
    while (!enough) {
        int count = 0;
        while (count < 500 && cuMemAlloc_v2(&at[count], 2 * MIB) == CUDA_SUCCESS) count++;
        while (count) {
            EXPECT_EQ(cuMemFree_v2(at[count - 1]), CUDA_SUCCESS);
            count--;
        }
        usleep(500);
    }
    return unused;
}

static void contexts_and_libraries_that_come_and_go_at_once_stay_below_the_quota(void)
{
    static void *(*const work[])(void *) = {contexts, libraries, the_rest, contexts, libraries};
    pthread_t threads[5];
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    for (int i = 0; i < 5; i++) pthread_create(&threads[i], NULL, work[i], NULL);
    usleep(2000000);
    enough = true;
    for (int i = 0; i < 5; i++) pthread_join(threads[i], NULL);
    EXPECT(peak(CARD_A) <= 900 * MIB);
    EXPECT(peak(CARD_A) > 500 * MIB); /* how near it comes is the machine's doing */
}

int main(void)
{
    IN(CARD_A "=900MiB,context=256MiB", contexts_and_libraries_that_come_and_go_at_once_stay_below_the_quota);
    FINISH;
}
