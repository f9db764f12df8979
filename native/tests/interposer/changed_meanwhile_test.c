/* Another thread changes a call's arguments in memory while the call is in progress: the driver must get the values that the library has
 * checked. Each test first takes the whole quota, so that anything granted in excess is above it. */
#include "container.h"

#include <fcntl.h>
#include <pthread.h>

#define CARDS CARD_A "=1GiB,context=256MiB"
#define TRIES 4000
#define GRANULE (2 * MIB)

CUresult cuArray3DCreate_v2(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);
CUresult cuModuleLoad(CUmodule *, const char *);
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *, CUmemGenericAllocationHandle);
CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuMemExportToShareableHandle(void *, CUmemGenericAllocationHandle, int, unsigned long long);

static volatile bool stop;

/* The thread that changes the arguments. */
static void *change(void *turn)
{
    while (!stop) ((void (*)(void))turn)();
    return NULL;
}

static void a_moment(void)
{
    for (volatile int i = 0; i < 20; i++) {}
}

/* Allocates memory so that `bytes` of the quota are left. */
static CUdeviceptr leave(unsigned long long bytes)
{
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAlloc_v2(&p, free_bytes() - bytes), 0);
    return p;
}

static void beside(void (*turn)(void), void (*test)(void))
{
    pthread_t thread;
    stop = false;
    pthread_create(&thread, NULL, change, (void *)turn);
    test();
    stop = true;
    pthread_join(thread, NULL);
    EXPECT(peak(CARD_A) <= 1024 * MIB);
}

/* ---- properties of a handle ---- */

static volatile CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}};

static void host_or_card(void)
{
    prop.location.type = CU_MEM_LOCATION_HOST;
    a_moment();
    prop.location.type = CU_MEM_LOCATION_DEVICE;
    a_moment();
}

static void create_handles(void)
{
    CUmemGenericAllocationHandle h;
    for (int i = 0; i < TRIES; i++)
        if (!cuMemCreate(&h, 64 * MIB, (const CUmemAllocationProp *)&prop, 0)) cuMemRelease(h);
}

static void a_handle_lies_where_it_was_looked_at(void)
{
    context_on(0);
    leave(0);
    beside(host_or_card, create_handles);
}

/* ---- the description of an array ---- */

static volatile CUDA_ARRAY3D_DESCRIPTOR description = {.Width = 4096, .Height = 4096, .Format = 0x20, .NumChannels = 1};

static void sparse_or_not(void)
{
    description.Flags = CUDA_ARRAY3D_SPARSE;
    a_moment();
    description.Flags = 0;
    a_moment();
}

static void create_arrays(void)
{
    CUarray a;
    for (int i = 0; i < TRIES; i++) cuArray3DCreate_v2(&a, (const CUDA_ARRAY3D_DESCRIPTOR *)&description);
}

static void an_array_is_what_was_looked_at(void)
{
    context_on(0);
    leave(0);
    beside(sparse_or_not, create_arrays);
}

/* ---- the largest size of a pool ---- */

static volatile CUmemPoolProps pool_props = {.allocType = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}};

static void small_or_endless(void)
{
    pool_props.maxSize = GRANULE;
    a_moment();
    pool_props.maxSize = 0;
    a_moment();
}

static void create_pools(void)
{
    CUmemoryPool pool;
    CUstream s;
    CUdeviceptr p;
    EXPECT_EQ(cuStreamCreate(&s, 1), 0);
    for (int i = 0; i < TRIES / 10; i++) {
        if (cuMemPoolCreate(&pool, (const CUmemPoolProps *)&pool_props)) continue;
        if (!cuMemAllocFromPoolAsync(&p, 48 * MIB, pool, s)) cuMemFreeAsync(p, s), cuStreamSynchronize(s);
        cuMemPoolDestroy(pool);
    }
}

static void a_pool_has_the_largest_size_that_was_looked_at(void)
{
    context_on(0);
    leave(2 * GRANULE);
    beside(small_or_endless, create_pools);
}

/* ---- the handle that is returned ---- */

static volatile CUmemGenericAllocationHandle returned;
static CUmemGenericAllocationHandle other;

static void another_handle(void) { returned = other; }

static void create_and_release(void)
{
    const CUmemAllocationProp there = {.type = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}};
    CUmemGenericAllocationHandle h;
    for (int i = 0; i < TRIES; i++) {
        if (cuMemCreate((CUmemGenericAllocationHandle *)&returned, 2 * MIB, &there, 0)) break;
        if ((h = returned) != other) cuMemRelease(h); /* otherwise the memory is lost, and stays charged */
    }
    for (int i = 0; i < TRIES && !cuMemCreate(&h, 2 * MIB, &there, 0); i++) {}
}

static void what_a_call_returned_is_what_is_counted(void)
{
    const CUmemAllocationProp there = {.type = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}};
    context_on(0);
    EXPECT_EQ(cuMemCreate(&other, 2 * MIB, &there, 0), 0);
    beside(another_handle, create_and_release);
    EXPECT_EQ(held(CARD_A), 1024 * MIB - free_bytes());
}

/* ---- the descriptor of an exported handle: the thread takes it, and leaves another one ---- */

#define EXPORTS 12

static volatile int exported = -1, decoy, stolen[EXPORTS], thefts;

static void steal(void)
{
    int fd = exported;
    if (fd < 0 || fd == decoy || thefts == EXPORTS) return;
    exported = decoy;
    stolen[thefts++] = fd;
}

static void export_and_release(void)
{
    const CUmemAllocationProp shared = {.type = 1, .requestedHandleTypes = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}};
    CUmemGenericAllocationHandle h;
    for (int i = 0; i < EXPORTS && !cuMemCreate(&h, 64 * MIB, &shared, 0); i++) {
        EXPECT_EQ(cuMemExportToShareableHandle((void *)&exported, h, 1, 0), 0);
        usleep(500);
        exported = -1;
        EXPECT_EQ(cuMemRelease(h), 0);
    }
}

static void a_descriptor_is_marked_before_another_thread_can_take_it(void)
{
    decoy = open("/dev/null", O_RDWR);
    context_on(0);
    beside(steal, export_and_release);
    EXPECT(thefts > 0);
    NEVER_BELOW;
}

/* ---- images ---- */

static const char *image_with = ".version 7.0\n.target sm_50\n.address_size 64\n.global .align 4 .b8 big[%s];\n.visible .entry k() { ret; }\n";
static char image[1024], path[600], small[600], large[600];
static char *volatile digit;

static void small_or_large(void)
{
    *(volatile char *)digit = '3';
    a_moment();
    *(volatile char *)digit = ' ';
    a_moment();
}

static void load_image(void)
{
    CUmodule m;
    for (int i = 0; i < TRIES; i++)
        if (!cuModuleLoadData(&m, image)) cuModuleUnload(m);
}

static void the_variables_of_a_text_are_those_that_were_looked_at(void)
{
    snprintf(image, sizeof image, image_with, " 4000000"); /* 4 MiB, or 34 */
    digit = strstr(image, "big[") + 4;
    context_on(0);
    leave(8 * MIB);
    beside(small_or_large, load_image);
}

static void write_file(const char *name, const char *bytes)
{
    FILE *f = fopen(name, "w");
    fprintf(f, image_with, bytes);
    fclose(f);
}

static void one_file_or_the_other(void)
{
    char next[700];
    for (int i = 0; i < 2; i++) {
        snprintf(next, sizeof next, "%s.next", path);
        if (!link(i ? large : small, next)) rename(next, path);
    }
}

static void load_file(void)
{
    CUmodule m;
    int loaded = 0;
    for (int i = 0; i < TRIES; i++)
        if (!cuModuleLoad(&m, path)) cuModuleUnload(m), loaded++;
    EXPECT(loaded > 0);
}

static void a_file_is_read_once(void)
{
    snprintf(path, sizeof path, "%s/module.ptx", container_directory);
    snprintf(small, sizeof small, "%s/small.ptx", container_directory);
    snprintf(large, sizeof large, "%s/large.ptx", container_directory);
    write_file(small, "4");
    write_file(large, "60000000");
    write_file(path, "4");
    context_on(0);
    leave(8 * MIB);
    beside(one_file_or_the_other, load_file);
}

int main(void)
{
    IN(CARDS, a_handle_lies_where_it_was_looked_at);
    IN(CARDS, an_array_is_what_was_looked_at);
    IN(CARDS, a_pool_has_the_largest_size_that_was_looked_at);
    IN(CARDS, what_a_call_returned_is_what_is_counted);
    IN(CARDS, a_descriptor_is_marked_before_another_thread_can_take_it);
    IN(CARDS, the_variables_of_a_text_are_those_that_were_looked_at);
    IN(CARDS, a_file_is_read_once);
    FINISH;
}
