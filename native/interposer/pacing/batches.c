/* Calls that make many copies at once. The bytes that stay within cards are added up and paced as one copy. A batch that only goes
 * over the bus is not paced. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "pacing/api_copies.h"
#include "pacing/copies.h"
#include "pacing/gate.h"
#include "pacing/stream_state.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static uint64_t bytes_of_list(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; to && from && sizes && i < count; i++)
        if (fr_copy_within(to[i], from[i])) sum += sizes[i];
    return sum;
}

/* Elements of an array are counted as bytes: the time that the copy takes is learned anyway. */
static uint64_t bytes_of_operations(const CUDA_MEMCPY3D_BATCH_OP *ops, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; ops && i < count; i++) {
        bool from_array = ops[i].src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY, to_array = ops[i].dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
        CUdeviceptr to = to_array ? 0 : ops[i].dst.op.ptr.ptr, from = from_array ? 0 : ops[i].src.op.ptr.ptr;
        bool within = from_array ? to_array || fr_copy_within(to, to) : fr_copy_within(to_array ? from : to, from);
        if (within) sum += ops[i].extent.width * ops[i].extent.height * ops[i].extent.depth;
    }
    return sum;
}

/* The decompressor writes to the card, whatever memory it reads. */
static uint64_t bytes_of_decompression(const CUmemDecompressParams *all, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; all && i < count; i++) sum += all[i].dstNumBytes;
    return sum;
}

#define BATCH(name, own, bytes, parameters, arguments)                           \
    HOOK CUresult name parameters                                                \
    {                                                                            \
        uint64_t sum = fr_unpaced() ? 0 : (bytes);                               \
        if (!sum) return REAL(name) arguments;                                   \
        struct fr_work work = fr_copy_work((const void *)&name, sum, s, own);    \
        PACED(work, REAL(name) arguments);                                       \
    }
#define BOTH(name, bytes, parameters, arguments) \
    BATCH(name, false, bytes, parameters, arguments) \
    BATCH(name##_ptsz, true, bytes, parameters, arguments)

BOTH(cuMemcpyBatchAsync, bytes_of_list(to, from, sizes, n),
     (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t n, CUmemcpyAttributes *a, size_t *which, size_t as, size_t *failed, CUstream s),
     (to, from, sizes, n, a, which, as, failed, s))
BOTH(cuMemcpyBatchAsync_v2, bytes_of_list(to, from, sizes, n),
     (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t n, CUmemcpyAttributes *a, size_t *which, size_t as, CUstream s),
     (to, from, sizes, n, a, which, as, s))
BOTH(cuMemcpyWithAttributesAsync, fr_copy_within(to, from) ? n : 0,
     (CUdeviceptr to, CUdeviceptr from, size_t n, CUmemcpyAttributes *a, CUstream s), (to, from, n, a, s))
BOTH(cuMemcpy3DBatchAsync, bytes_of_operations(ops, n),
     (size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed, unsigned long long flags, CUstream s), (n, ops, failed, flags, s))
BOTH(cuMemcpy3DBatchAsync_v2, bytes_of_operations(ops, n), (size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream s),
     (n, ops, flags, s))
BOTH(cuMemcpy3DWithAttributesAsync, bytes_of_operations(op, 1), (CUDA_MEMCPY3D_BATCH_OP * op, unsigned long long flags, CUstream s),
     (op, flags, s))
BOTH(cuMemBatchDecompressAsync, bytes_of_decompression(all, n),
     (CUmemDecompressParams * all, size_t n, unsigned flags, size_t *failed, CUstream s), (all, n, flags, failed, s))
