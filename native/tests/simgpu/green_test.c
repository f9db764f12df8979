/* Green contexts, judged by the card's own count: memory and code allocated or loaded in one belong to the primary context. */
#include "check.h"

typedef struct { int type; unsigned char padding[92]; unsigned sms; unsigned char rest[44]; } resource;
CUresult cuDeviceGetDevResource(CUdevice, resource *, int);
CUresult cuDevResourceGenerateDesc(void **, const resource *, unsigned);
CUresult cuGreenCtxCreate(CUgreenCtx *, void *, CUdevice, unsigned);
CUresult cuGreenCtxDestroy(CUgreenCtx);
CUresult cuCtxFromGreenCtx(CUcontext *, CUgreenCtx);
CUresult cuLibraryLoadData(CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned);
CUresult cuLibraryUnload(CUlibrary);
CUresult cuLibraryGetKernel(CUkernel *, CUlibrary, const char *);

static const char image[] = ".version 7.0\n.target sm_50\n.address_size 64\n.global .align 16 .b8 big[20971520];\n.visible .entry k() { ret; }\n";
static CUcontext primary;

static CUgreenCtx green(void)
{
    resource all;
    void *description = NULL;
    CUgreenCtx g = NULL;
    CUcontext c = NULL;
    EXPECT_EQ(cuDeviceGetDevResource(0, &all, 1) + cuDevResourceGenerateDesc(&description, &all, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuGreenCtxCreate(&g, description, 0, 1) + cuCtxFromGreenCtx(&c, g) + cuCtxSetCurrent(c), CUDA_SUCCESS);
    return g;
}

static void end(CUgreenCtx g) { EXPECT_EQ(cuCtxSynchronize() + cuCtxSetCurrent(primary) + cuGreenCtxDestroy(g), CUDA_SUCCESS); }

static CUresult run(CUfunction f) { return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); }

static void a_library_is_unloaded_from_wherever_it_was_used(void)
{
    CUlibrary l;
    CUkernel k;
    CUgreenCtx g = green();
    EXPECT_EQ(cuLibraryLoadData(&l, image, NULL, NULL, 0, NULL, NULL, 0) + cuLibraryGetKernel(&k, l, "k") + run((CUfunction)k), CUDA_SUCCESS);
    EXPECT_EQ(used(), 2 * CONTEXT + 22 * MIB);
    end(g);
    EXPECT_EQ(used(), CONTEXT + 22 * MIB);
    EXPECT_EQ(run((CUfunction)k) + cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT + 22 * MIB);
    EXPECT_EQ(cuLibraryUnload(l), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void a_module_and_arrays_outlive_it(void)
{
    CUmodule m;
    CUarray a;
    CUmipmappedArray levels;
    CUDA_ARRAY3D_DESCRIPTOR d = {2048, 2048, 0, 8, 4, 0};
    CUgreenCtx g = green();
    EXPECT_EQ(cuModuleLoadData(&m, image) + cuArray3DCreate_v2(&a, &d) + cuMipmappedArrayCreate(&levels, &d, 1), CUDA_SUCCESS);
    end(g);
    EXPECT_EQ(used(), CONTEXT + 52 * MIB);
    EXPECT_EQ(cuModuleUnload(m) + cuArrayDestroy(a) + cuMipmappedArrayDestroy(levels), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
}

static void eager_libraries_are_in_the_primary_one_alone(void)
{
    CUlibrary l;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    EXPECT_EQ(cuLibraryLoadData(&l, image, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    unsigned long long before = used();
    for (int i = 0; i < 3; i++) {
        CUgreenCtx g = green();
        EXPECT_EQ(used(), before + CONTEXT);
        end(g);
        EXPECT_EQ(used(), before);
    }
    EXPECT_EQ(cuLibraryUnload(l), CUDA_SUCCESS);
    EXPECT_EQ(used(), CONTEXT);
    unsetenv("CUDA_MODULE_LOADING");
}

int main(void)
{
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&primary, 0) || cuCtxSetCurrent(primary)) return 1;
    RUN(a_library_is_unloaded_from_wherever_it_was_used);
    RUN(a_module_and_arrays_outlive_it);
    RUN(eager_libraries_are_in_the_primary_one_alone);
    FINISH;
}
