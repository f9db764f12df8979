/* A context may be dead when the library checks it and alive when the driver gets the call: another thread can create the primary context again
 * under the same handle. Such a call must not reach the driver, since nothing was reserved for it. Here the test acts as the driver. */
#include "check.h"
#include "resolve/real.h"
#include "memory/devices.h"
#include "memory/linear.h"
#include "memory/place.h"

#include "cuda_abi.h"

CUresult cuImportExternalMemory(CUexternalMemory *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *);

#define ALIVE ((CUcontext)(uintptr_t)0x1000)

static CUresult dead = CUDA_ERROR_INVALID_CONTEXT; /* result of the query for the current device */
static int reached;

static CUresult device_now(CUdevice *device) { return dead ? dead : (*device = 0, CUDA_SUCCESS); }
static CUresult context_now(CUcontext *context) { return *context = ALIVE, CUDA_SUCCESS; }
static CUresult alloc(CUdeviceptr *p, size_t size) { return (void)size, reached++, *p = 0x200000000000ull, CUDA_SUCCESS; }
static CUresult alloc_pitch(CUdeviceptr *p, size_t *pitch, size_t width, size_t height, unsigned element)
{
    return (void)width, (void)height, (void)element, reached++, *pitch = 512, *p = 0x200000000000ull, CUDA_SUCCESS;
}
static CUresult create_array(CUarray *out, const void *d) { return (void)d, reached++, *out = (CUarray)(uintptr_t)1, CUDA_SUCCESS; }
static CUresult load(CUmodule *out, const void *image) { return (void)image, reached++, *out = (CUmodule)(uintptr_t)1, CUDA_SUCCESS; }
static CUresult open_ipc(CUdeviceptr *p, CUipcMemHandle h, unsigned f) { return (void)h, (void)f, reached++, *p = 0x200000000000ull, CUDA_SUCCESS; }
static CUresult import_external(CUexternalMemory *out, const void *d) { return (void)d, reached++, *out = (CUexternalMemory)(uintptr_t)1, CUDA_SUCCESS; }
static CUresult set_limit(int limit, size_t value) { return (void)limit, (void)value, reached++, CUDA_SUCCESS; }

#define FAKE(name, function) fr_real[FR_##name] = (void *)(function)
static void be_the_driver(void)
{
    FAKE(cuCtxGetDevice, device_now);
    FAKE(cuCtxGetCurrent, context_now);
    FAKE(cuMemAlloc_v2, alloc);
    FAKE(cuMemAllocPitch_v2, alloc_pitch);
    FAKE(cuArrayCreate_v2, create_array);
    FAKE(cuModuleLoadData, load);
    FAKE(cuIpcOpenMemHandle_v2, open_ipc);
    FAKE(cuImportExternalMemory, import_external);
    FAKE(cuCtxSetLimit, set_limit);
}

static void what_asking_for_the_context_answered_is_what_the_call_answers(void)
{
    struct fr_place at;
    static const CUresult answers[] = {CUDA_ERROR_NOT_INITIALIZED, 4, CUDA_ERROR_INVALID_CONTEXT}; /* 4: deinitialized */
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        dead = answers[i];
        EXPECT(!fr_place_here(&at));
        EXPECT_EQ(at.error, answers[i]);
    }
    dead = CUDA_SUCCESS;
    EXPECT(fr_place_here(&at));
    EXPECT_EQ(at.error, CUDA_SUCCESS);
}

static void a_call_for_which_nothing_could_be_reserved_does_not_reach_the_driver(void)
{
    CUdeviceptr p;
    size_t pitch;
    CUarray array;
    CUmodule module;
    CUexternalMemory memory;
    CUDA_ARRAY_DESCRIPTOR flat = {.Width = 64, .Height = 64, .Format = 1, .NumChannels = 1};
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC outside = {.size = 1 << 20};
    CUipcMemHandle handle = {{0}};
    dead = CUDA_ERROR_INVALID_CONTEXT;
    reached = 0;
    EXPECT_EQ(cuMemAlloc_v2(&p, 64 * MIB), dead);
    EXPECT_EQ(cuMemAlloc_v2(&p, 4096), dead);
    EXPECT_EQ(cuMemAllocPitch_v2(&p, &pitch, 4096, 4096, 4), dead);
    EXPECT_EQ(cuArrayCreate_v2(&array, &flat), dead);
    EXPECT_EQ(cuModuleLoadData(&module, ".version 8.0\n.target sm_80\n"), dead);
    EXPECT_EQ(cuIpcOpenMemHandle_v2(&p, handle, 1), dead);
    EXPECT_EQ(cuImportExternalMemory(&memory, &outside), dead);
    EXPECT_EQ(cuCtxSetLimit(0, 65536), dead);
    EXPECT_EQ(reached, 0);
}

int main(void)
{
    be_the_driver();
    RUN(what_asking_for_the_context_answered_is_what_the_call_answers);
    RUN(a_call_for_which_nothing_could_be_reserved_does_not_reach_the_driver);
    FINISH;
}
