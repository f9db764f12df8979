/* The stand-in alone, as seen by a program that is linked with it; built for each of its sonames. */
#include "check.h"

typedef struct { unsigned x, y, z; } dim3;
enum { TO_DEVICE = 1, TO_HOST = 2 };

int cudaGetLastError(void);
int cudaPeekAtLastError(void);
const char *cudaGetErrorName(int);
const char *cudaGetErrorString(int);
int cudaRuntimeGetVersion(int *);
int cudaGetDeviceCount(int *);
int cudaSetDevice(int);
int cudaGetDevice(int *);
int cudaMemGetInfo(size_t *, size_t *);
int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaMallocAsync(void **, size_t, CUstream);
int cudaFreeAsync(void *, CUstream);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemset(void *, int, size_t);
int cudaDeviceSynchronize(void);
int cudaStreamCreate(CUstream *);
int cudaStreamDestroy(CUstream);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, CUstream);
int cudaGetSymbolSize(size_t *, const void *);
int cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, int);
int cudaMemcpyFromSymbol(void *, const void *, size_t, size_t, int);
int cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long, int *);
void **__cudaRegisterFatBinary(const void *);
void __cudaRegisterFatBinaryEnd(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);

static const char text[] = "\n// simgpu: time_us=50\n.version 7.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .b8 there[64];\n.visible .entry add(.param .u64 at, .param .u32 n) { ret; }\n";
static const struct { unsigned magic, version; const void *data; void *file; } fat_binary = {0x466243b1, 1, text, NULL};
static char stub, variable, nobody;

static void start_up(void)
{
    void **handle = __cudaRegisterFatBinary(&fat_binary);
    __cudaRegisterFunction(handle, &stub, &stub, "add", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterVar(handle, &variable, &variable, "there", 0, 64, 0, 1);
    __cudaRegisterFatBinaryEnd(handle);
}

static void the_last_error_stays_until_it_is_taken(void)
{
    void *p;
    EXPECT_EQ(cudaMalloc(&p, 1ull << 50), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(p == NULL);
    EXPECT_EQ(cudaMalloc(&p, MIB), 0);
    EXPECT_EQ(cudaPeekAtLastError(), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cudaGetLastError(), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cudaGetLastError(), 0);
    EXPECT(!strcmp(cudaGetErrorName(2), "cudaErrorMemoryAllocation"));
    EXPECT(!strcmp(cudaGetErrorString(2), "out of memory"));
    EXPECT_EQ(cudaFree(p), 0);
    EXPECT_EQ(cudaFree(NULL), 0);
}

static void the_container_has_its_quota(void)
{
    size_t free, total;
    int count, device;
    EXPECT_EQ(cudaGetDeviceCount(&count), 0);
    EXPECT_EQ(cudaSetDevice(count), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cudaGetLastError(), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cudaSetDevice(1), 0);
    EXPECT_EQ(cudaGetDevice(&device), 0);
    EXPECT_EQ(device, 1);
    EXPECT_EQ(cudaSetDevice(0), 0);
    EXPECT_EQ(cudaMemGetInfo(&free, &total), 0);
    EXPECT_EQ(total, 1024 * MIB);
    EXPECT_EQ(free, 768 * MIB);
}

static void a_registered_kernel_is_found_and_launched(void)
{
    CUdeviceptr at = 0;
    unsigned n = 0;
    void *arguments[] = {&at, &n};
    CUstream s;
    EXPECT_EQ(cudaStreamCreate(&s), 0);
    EXPECT_EQ(cudaLaunchKernel(&stub, (dim3){1, 1, 1}, (dim3){32, 1, 1}, arguments, 0, s), 0);
    EXPECT_EQ(cudaLaunchKernel(&stub, (dim3){0, 1, 1}, (dim3){32, 1, 1}, arguments, 0, s), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cudaLaunchKernel(&nobody, (dim3){1, 1, 1}, (dim3){32, 1, 1}, arguments, 0, s), 98);
    EXPECT_EQ(cudaGetLastError(), 98);
    EXPECT_EQ(cudaDeviceSynchronize(), 0);
    EXPECT_EQ(cudaStreamDestroy(s), 0);
}

static void a_registered_variable_has_its_bytes(void)
{
    size_t size = 0;
    unsigned in = 0x1234, out = 0;
    EXPECT_EQ(cudaGetSymbolSize(&size, &variable), 0);
    EXPECT_EQ(size, 64);
    EXPECT_EQ(cudaMemcpyToSymbol(&variable, &in, 4, 8, TO_DEVICE), 0);
    EXPECT_EQ(cudaMemcpyFromSymbol(&out, &variable, 4, 8, TO_HOST), 0);
    EXPECT_EQ(out, in);
    EXPECT_EQ(cudaMemcpyFromSymbol(&out, &variable, 4, 64, TO_HOST), CUDA_ERROR_INVALID_VALUE);
}

static void memory_in_the_order_of_a_stream_is_there_and_filled(void)
{
    void *p;
    unsigned char byte = 0;
    EXPECT_EQ(cudaMallocAsync(&p, MIB, NULL), 0);
    EXPECT_EQ(cudaMemset(p, 9, MIB), 0);
    EXPECT_EQ(cudaMemcpy(&byte, (char *)p + MIB - 1, 1, TO_HOST), 0);
    EXPECT_EQ(byte, 9);
    EXPECT_EQ(cudaMemcpy(&byte, p, 1, 7), 21);
    EXPECT_EQ(cudaFreeAsync(p, NULL), 0);
    EXPECT_EQ(cudaDeviceSynchronize(), 0);
}

static void functions_of_the_driver_are_those_that_the_program_is_linked_with(void)
{
    void *at = NULL;
    int status = -1, version = 0;
    EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuMemAlloc", &at, 12000, 0, &status), 0);
    EXPECT(at == (void *)cuMemAlloc_v2 && status == 0);
    EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &at, 12000, 0, &status), 0);
    EXPECT_EQ(status, 1);
    EXPECT_EQ(cudaRuntimeGetVersion(&version), 0);
    EXPECT_EQ(version / 1000, RUNTIME);
}

int main(void)
{
    start_up();
    cudaGetLastError();
    RUN(the_last_error_stays_until_it_is_taken);
    RUN(the_container_has_its_quota);
    RUN(a_registered_kernel_is_found_and_launched);
    RUN(a_registered_variable_has_its_bytes);
    RUN(memory_in_the_order_of_a_stream_is_there_and_filled);
    RUN(functions_of_the_driver_are_those_that_the_program_is_linked_with);
    FINISH;
}
