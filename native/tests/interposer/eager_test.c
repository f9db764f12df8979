/* With libraries that are loaded into every context: contexts and libraries that are made and destroyed at the same time. */
#include "container.h"

#include <pthread.h>
#include <unistd.h>

CUresult cuLibraryLoadData(CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned);
CUresult cuLibraryUnload(CUlibrary);
CUresult cuCtxPopCurrent_v2(CUcontext *);

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

/* Takes memory, so that there is rarely room for both. */
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
    EXPECT(peak(CARD_A) > 500 * MIB); /* how close it gets depends on the machine */
}

/* ---- an unavoidable refusal comes at once ---- */

#define REFUSED_AT_ONCE(call)                            \
    do {                                                 \
        double start = seconds();                        \
        EXPECT_EQ(call, CUDA_ERROR_OUT_OF_MEMORY);       \
        EXPECT(seconds() - start < 0.5);                 \
    } while (0)

static const char large[] = ".version 7.0\n.target sm_50\n.address_size 64\n.global .align 4 .b8 big[209715200];\n.visible .entry k() { ret; }\n";

static CUlibrary load_large(void)
{
    CUlibrary library = NULL;
    EXPECT_EQ(cuLibraryLoadData(&library, large, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    return library;
}

/* There would be room for the context without its libraries. */
static void a_context_whose_libraries_do_not_fit_is_refused_at_once(void)
{
    CUcontext c;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    context_on(0);
    CUlibrary library = load_large();
    uint64_t before = used();
    REFUSED_AT_ONCE(cuCtxCreate_v2(&c, 0, 0));
    REFUSED_AT_ONCE(cuDevicePrimaryCtxRetain(&c, 0));
    EXPECT_EQ(used(), before);
    EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(used(), 2 * CONTEXT);
}

/* There would be room for the library in one of the two contexts. */
static void a_library_that_does_not_fit_into_all_contexts_is_refused_at_once(void)
{
    CUcontext c, first;
    CUlibrary library;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    first = context_on(0);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_SUCCESS);
    REFUSED_AT_ONCE(cuLibraryLoadData(&library, large, NULL, NULL, 0, NULL, NULL, 0));
    EXPECT_EQ(used(), 2 * CONTEXT);
    EXPECT_EQ(cuCtxDestroy_v2(c) + cuCtxSetCurrent(first), CUDA_SUCCESS);
    load_large();
    EXPECT(used() > CONTEXT + 200 * MIB);
    EXPECT(peak(CARD_A) <= 800 * MIB);
}

/* More contexts than any list of the library has room for; they are small, on a card of a separate host. */
#define MANY 80
#define SMALL_CONTEXTS CARD_A "=3GiB,context=4MiB"

static void move_to_a_host_of_small_contexts(void)
{
    char directory[512];
    snprintf(directory, sizeof directory, "%s/small-contexts", getenv("SIMGPU_DIR"));
    mkdir(directory, 0755);
    setenv("SIMGPU_DIR", directory, 1);
    shell("echo '[{\"uuid\": \"" CARD_A "\", \"index\": 0, \"model\": \"NVIDIA A100-SXM4-40GB\", \"memoryMiB\": 7680, \"contextMiB\": 4}]' >%s/cards.json", directory);
}

static void a_library_is_counted_in_every_context_however_many_there_are(void)
{
    CUcontext c;
    CUlibrary library;
    CUdeviceptr rest;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    for (int i = 0; i < MANY; i++) {
        if (i) EXPECT_EQ(cuCtxPopCurrent_v2(&c), CUDA_SUCCESS); /* a thread's stack of contexts is limited */
        EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_SUCCESS);
    }
    uint64_t before = used();
    EXPECT_EQ(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    uint64_t needed = used() - before;
    EXPECT(held(CARD_A) <= used());
    EXPECT(needed >= MANY * 16 * MIB);
    EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
    EXPECT_EQ(used(), before);
    EXPECT_EQ(cuMemAlloc_v2(&rest, 3072 * MIB - used() - needed + 2 * MIB), CUDA_SUCCESS);
    REFUSED_AT_ONCE(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    EXPECT(peak(CARD_A) <= 3072 * MIB);
}

static void ask_for_contexts(double end)
{
    CUcontext c;
    usleep(500000); /* by then the other process has its own */
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    load_large();
    while (seconds() < end) EXPECT_EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    fflush(NULL);
    _exit(ok_so_far ? 0 : 1);
}

static void one_that_cannot_have_its_libraries_delays_no_process(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    allocate_beside(ask_for_contexts);
}

/* ---- green contexts: parts of the primary context, where the libraries are loaded ---- */

typedef struct { int type; unsigned char padding[92]; unsigned sms; unsigned char rest[44]; } resource;
CUresult cuDeviceGetDevResource(CUdevice, resource *, int);
CUresult cuDevResourceGenerateDesc(void **, const resource *, unsigned);
CUresult cuGreenCtxCreate(CUgreenCtx *, void *, CUdevice, unsigned);
CUresult cuGreenCtxDestroy(CUgreenCtx);

static CUlibrary load(void)
{
    CUlibrary library = NULL;
    EXPECT_EQ(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    NEVER_BELOW;
    return library;
}

static CUgreenCtx made_green(void)
{
    resource all;
    void *description = NULL;
    CUgreenCtx g = NULL;
    EXPECT_EQ(cuDeviceGetDevResource(0, &all, 1) + cuDevResourceGenerateDesc(&description, &all, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuGreenCtxCreate(&g, description, 0, 1), CUDA_SUCCESS);
    return g;
}

static CUgreenCtx green(void)
{
    CUgreenCtx g = made_green();
    NEVER_BELOW;
    return g;
}

static void unload(CUlibrary library)
{
    EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
    NEVER_BELOW;
}

static void go(CUgreenCtx g)
{
    EXPECT_EQ(cuGreenCtxDestroy(g), CUDA_SUCCESS);
    NEVER_BELOW;
}

static void green_contexts_load_no_libraries_of_their_own(void)
{
    CUcontext primary;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    EXPECT_EQ(cuInit(0) + cuDevicePrimaryCtxRetain(&primary, 0) + cuCtxSetCurrent(primary), CUDA_SUCCESS);
    struct accounts before = accounts_now();
    for (int round = 0; round < 12; round++) { /* every order of two calls of each kind */
        CUlibrary library = round & 1 ? load() : NULL;
        CUgreenCtx g = green();
        if (!library) library = load();
        if (round & 2) unload(library);
        go(g);
        if (!(round & 2)) unload(library);
        AS_BEFORE(before);
    }
}

/* The call makes the primary context, and the libraries are loaded into that. */
static void a_green_context_that_makes_the_primary_one_makes_it_with_its_libraries(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    context_on(1);
    EXPECT_EQ(held(CARD_A), 0);
    CUlibrary library = NULL;
    EXPECT_EQ(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    for (int round = 0; round < 4; round++) {
        CUgreenCtx g = made_green();
        EXPECT(held(CARD_A) >= 16 * MIB);
        EXPECT_EQ(cuGreenCtxDestroy(g), CUDA_SUCCESS);
        EXPECT_EQ(held(CARD_A), 0);
    }
    EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
    context_on(0);
    EXPECT(used() <= CONTEXT);
    EXPECT(peak(CARD_A) <= 700 * MIB);
}

int main(void)
{
    IN_POLICIES(CARD_A "=700MiB,context=256MiB", green_contexts_load_no_libraries_of_their_own);
    IN_POLICIES(CARD_A "=700MiB,context=256MiB " CARD_B "=600MiB,context=100MiB", a_green_context_that_makes_the_primary_one_makes_it_with_its_libraries);
    IN(CARD_A "=800MiB,context=256MiB", a_context_whose_libraries_do_not_fit_is_refused_at_once);
    IN(CARD_A "=800MiB,context=256MiB", a_library_that_does_not_fit_into_all_contexts_is_refused_at_once);
    IN(CARD_A "=600MiB,context=256MiB", one_that_cannot_have_its_libraries_delays_no_process);
    IN(CARD_A "=900MiB,context=256MiB", contexts_and_libraries_that_come_and_go_at_once_stay_below_the_quota);
    move_to_a_host_of_small_contexts();
    IN(SMALL_CONTEXTS, a_library_is_counted_in_every_context_however_many_there_are);
    FINISH;
}
