/* Copies under a hard limit of 20 % of the card: copies within the card wait for turns, in every form, and take five times as long as alone;
 * copies over the bus are not paced. */
#include "arbiter.h"

#define SYNC(name, ...)  CUresult name(__VA_ARGS__);
#define ASYNC(name, ...) CUresult name(__VA_ARGS__, CUstream);
SYNC(cuMemcpy, CUdeviceptr, CUdeviceptr, size_t)
ASYNC(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, size_t)
SYNC(cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t)
ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t)
SYNC(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t)
ASYNC(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, size_t)
SYNC(cuMemcpyPeer, CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)
ASYNC(cuMemcpyPeerAsync, CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)
SYNC(cuMemcpy2D_v2, const CUDA_MEMCPY2D *)
ASYNC(cuMemcpy2DAsync_v2, const CUDA_MEMCPY2D *)
SYNC(cuMemcpy3D_v2, const CUDA_MEMCPY3D *)
ASYNC(cuMemcpy3DAsync_v2, const CUDA_MEMCPY3D *)
ASYNC(cuMemcpy3DPeerAsync, const CUDA_MEMCPY3D_PEER *)
ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, size_t)
ASYNC(cuMemcpyBatchAsync, CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, size_t *)
ASYNC(cuMemcpyBatchAsync_v2, CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t)
ASYNC(cuMemcpyWithAttributesAsync, CUdeviceptr, CUdeviceptr, size_t, CUmemcpyAttributes *)
ASYNC(cuMemcpy3DBatchAsync, size_t, CUDA_MEMCPY3D_BATCH_OP *, size_t *, unsigned long long)
ASYNC(cuMemcpy3DWithAttributesAsync, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long)
ASYNC(cuMemBatchDecompressAsync, CUmemDecompressParams *, size_t, unsigned, size_t *)
ASYNC(cuMemsetD8Async, CUdeviceptr, unsigned char, size_t)

#define LIMITED CARD_A "=900MiB,context=256MiB,cores=20,cores-limit=20"
#define SIZE (64 * MIB)
#define TOTAL_US 60000.0 /* length of all copies, alone */

static CUdeviceptr to, from;
static void *host;
static CUstream stream;

static void get_ready(void)
{
    setenv("SIMGPU_CONTENTS_MIB", "0", 1); /* copies take the card's time, and no time of the machine */
    if (!context_on(0)) _exit(1);
    EXPECT_EQ(cuMemAlloc_v2(&to, SIZE) + cuMemAlloc_v2(&from, SIZE), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&stream, 1), CUDA_SUCCESS);
    host = malloc(SIZE);
}

static CUresult any(size_t n) { return cuMemcpy(to, from, n); }
static CUresult any_async(size_t n) { return cuMemcpyAsync(to, from, n, stream); }
static CUresult on_the_card(size_t n) { return cuMemcpyDtoDAsync_v2(to, from, n, stream); }
static CUresult filled(size_t n) { return cuMemsetD8Async(to, 1, n, stream); }
static CUresult by_peer(size_t n) { return cuMemcpyPeer(to, NULL, from, NULL, n); }
static CUresult by_peer_async(size_t n) { return cuMemcpyPeerAsync(to, NULL, from, NULL, n, stream); }
static CUresult over_the_bus(size_t n) { return cuMemcpyAsync(to, (CUdeviceptr)(uintptr_t)host, n, stream); }

/* Host pointers by their type, but addresses of the card. */
static void *as_host(CUdeviceptr p) { return (void *)(uintptr_t)p; }
static CUresult named_to_the_card(size_t n) { return cuMemcpyHtoD_v2(to, as_host(from), n); }
static CUresult named_to_the_card_async(size_t n) { return cuMemcpyHtoDAsync_v2(to, as_host(from), n, stream); }
static CUresult named_to_the_host(size_t n) { return cuMemcpyDtoH_v2(as_host(to), from, n); }
static CUresult named_to_the_host_async(size_t n) { return cuMemcpyDtoHAsync_v2(as_host(to), from, n, stream); }
static CUresult to_the_card_over_the_bus(size_t n) { return cuMemcpyHtoDAsync_v2(to, host, n, stream); }

static CUDA_MEMCPY2D plane_of(size_t n)
{
    return (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = from, .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = to,
                           .WidthInBytes = 1024, .Height = n / 1024};
}
static CUDA_MEMCPY3D space_of(size_t n)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = from, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to,
                           .WidthInBytes = 1024, .Height = 64, .Depth = n / 65536};
}
static CUresult in_a_plane(size_t n) { return cuMemcpy2D_v2(&(CUDA_MEMCPY2D[]){plane_of(n)}[0]); }
static CUresult in_a_plane_of_the_host_by_type(size_t n)
{
    CUDA_MEMCPY2D p = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = as_host(from), .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = as_host(to),
                       .WidthInBytes = 1024, .Height = n / 1024};
    return cuMemcpy2DAsync_v2(&p, stream);
}
static CUresult in_a_plane_async(size_t n) { return cuMemcpy2DAsync_v2(&(CUDA_MEMCPY2D[]){plane_of(n)}[0], stream); }
static CUresult in_space(size_t n) { return cuMemcpy3D_v2(&(CUDA_MEMCPY3D[]){space_of(n)}[0]); }
static CUresult in_space_async(size_t n) { return cuMemcpy3DAsync_v2(&(CUDA_MEMCPY3D[]){space_of(n)}[0], stream); }
static CUresult in_space_by_peer(size_t n)
{
    CUDA_MEMCPY3D_PEER p = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = from, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to,
                            .WidthInBytes = n, .Height = 1, .Depth = 1};
    return cuMemcpy3DPeerAsync(&p, stream);
}

static CUDA_MEMCPY3D_BATCH_OP operation_of(size_t n)
{
    CUDA_MEMCPY3D_BATCH_OP o = {.extent = {n, 1, 1}};
    o.src.type = o.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    o.src.op.ptr.ptr = from;
    o.dst.op.ptr.ptr = to;
    return o;
}
static CUmemcpyAttributes attributes;
static size_t zero, failure;
static CUresult in_a_batch(size_t n)
{
    return cuMemcpyBatchAsync((CUdeviceptr[]){to, to}, (CUdeviceptr[]){from, from}, (size_t[]){n / 2, n / 2}, 2, &attributes, &zero, 1, &failure, stream);
}
static CUresult in_a_batch_of_13(size_t n)
{
    return cuMemcpyBatchAsync_v2((CUdeviceptr[]){to, to}, (CUdeviceptr[]){from, from}, (size_t[]){n / 2, n / 2}, 2, &attributes, &zero, 1, stream);
}
static CUresult with_attributes(size_t n) { return cuMemcpyWithAttributesAsync(to, from, n, &attributes, stream); }
static CUresult in_a_batch_in_space(size_t n) { return cuMemcpy3DBatchAsync(1, &(CUDA_MEMCPY3D_BATCH_OP[]){operation_of(n)}[0], &failure, 0, stream); }
static CUresult in_space_with_attributes(size_t n) { return cuMemcpy3DWithAttributesAsync(&(CUDA_MEMCPY3D_BATCH_OP[]){operation_of(n)}[0], 0, stream); }
static CUresult decompressed(size_t n)
{
    CUmemDecompressParams p = {.srcNumBytes = n / 2, .dstNumBytes = n, .src = (void *)(uintptr_t)from, .dst = (void *)(uintptr_t)to};
    return cuMemBatchDecompressAsync(&p, 1, 0, &failure, stream);
}

/* Seconds for copies of n bytes that take TOTAL_US alone; one takes `each_us` alone. */
static double time_of(CUresult (*copy)(size_t), size_t n, double each_us)
{
    double start = seconds();
    for (double us = 0; us < TOTAL_US; us += each_us) EXPECT_EQ(copy(n), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(stream) + cuCtxSynchronize(), CUDA_SUCCESS);
    return seconds() - start;
}

static double length_us(size_t n) { return 1.5 + 2.0 * (double)n / 1500e3; }

#define TAKES_TURNS(way)                                                        \
    static void way##_takes_turns(void)                                         \
    {                                                                           \
        get_ready();                                                            \
        EXPECT(time_of(way, SIZE, length_us(SIZE)) > 3 * TOTAL_US / 1e6);       \
    }
TAKES_TURNS(any)
TAKES_TURNS(any_async)
TAKES_TURNS(on_the_card)
TAKES_TURNS(filled)
TAKES_TURNS(by_peer)
TAKES_TURNS(by_peer_async)
TAKES_TURNS(named_to_the_card)
TAKES_TURNS(named_to_the_card_async)
TAKES_TURNS(named_to_the_host)
TAKES_TURNS(named_to_the_host_async)
TAKES_TURNS(in_a_plane_of_the_host_by_type)
TAKES_TURNS(in_a_plane)
TAKES_TURNS(in_a_plane_async)
TAKES_TURNS(in_space)
TAKES_TURNS(in_space_async)
TAKES_TURNS(in_space_by_peer)
TAKES_TURNS(in_a_batch)
TAKES_TURNS(in_a_batch_of_13)
TAKES_TURNS(with_attributes)
TAKES_TURNS(in_a_batch_in_space)
TAKES_TURNS(in_space_with_attributes)
TAKES_TURNS(decompressed)

/* Copies below a megabyte were once not paced. */
static void small_copies_take_turns_too(void)
{
    get_ready();
    size_t n = MIB - 1024;
    EXPECT(time_of(on_the_card, n, length_us(n)) > 3 * TOTAL_US / 1e6);
}

static void copies_over_the_bus_do_not_wait(void)
{
    get_ready();
    EXPECT_WITHIN(2.5 * TOTAL_US / 1e6, time_of(over_the_bus, SIZE, 1.5 + SIZE / 25e3));
    EXPECT_WITHIN(2.5 * TOTAL_US / 1e6, time_of(to_the_card_over_the_bus, SIZE, 1.5 + SIZE / 25e3));
}

int main(void)
{
#define UNDER(way) UNDER_AN_ARBITER(way##_takes_turns)
    UNDER(any); UNDER(any_async); UNDER(on_the_card); UNDER(filled); UNDER(by_peer); UNDER(by_peer_async);
    UNDER(named_to_the_card); UNDER(named_to_the_card_async); UNDER(named_to_the_host); UNDER(named_to_the_host_async);
    UNDER(in_a_plane_of_the_host_by_type);
    UNDER(in_a_plane); UNDER(in_a_plane_async); UNDER(in_space); UNDER(in_space_async); UNDER(in_space_by_peer);
    UNDER(in_a_batch); UNDER(in_a_batch_of_13); UNDER(with_attributes); UNDER(in_a_batch_in_space);
    UNDER(in_space_with_attributes); UNDER(decompressed);
    UNDER_AN_ARBITER(small_copies_take_turns_too);
    UNDER_AN_ARBITER(copies_over_the_bus_do_not_wait);
    FINISH;
}
