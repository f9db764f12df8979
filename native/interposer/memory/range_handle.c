/* Descriptors of a range of addresses (dma-buf, for network cards): memory stays with the card while such a descriptor is open
 * anywhere, also after it was freed, as with exported handles. NVIDIA's open kernel module takes a hold of the memory for each.
 * So the memory becomes an object of the container, and the descriptor carries the marks of all objects in the range. Memory of
 * which this process has no record, such as that of pools, has no such descriptors here. */
#include "base/compiler.h"
#include "base/kernel.h"
#include "ledger/descriptor.h"
#include "ledger/objects.h"
#include "ledger/process.h"
#include "memory/api_vmm.h"
#include "memory/granules.h"
#include "memory/handles.h"
#include "memory/holding.h"
#include "resolve/real.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define DMA_BUF_FD 1       /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD; there is no other type */
#define MOST (1ull << 44)  /* bytes: no range of a card is larger */

struct keys { /* of the objects in the range */
    struct fr_key *at;
    size_t count;
};

static void add(struct keys *k, struct fr_key key)
{
    if (key.a && (!k->count || k->at[k->count - 1].b != key.b)) k->at[k->count++] = key;
}

/* False: some of the range is not known. Mappings begin and end at granules. */
static bool collect(struct keys *k, CUdeviceptr p, size_t size)
{
    struct fr_key key = {0, 0};
    if (fr_linear_export(p, size, &key)) return add(k, key), true;
    for (CUdeviceptr a = p; a - p < size; a = (a / FR_GRANULE + 1) * FR_GRANULE) {
        struct fr_memory *m = fr_memory_pin_at(a);
        bool known = m && fr_memory_export(m, &key);
        if (known) add(k, key);
        fr_memory_unpin(m);
        if (!known) return false;
    }
    return true;
}

static bool mark(const struct keys *k, int fd)
{
    bool all = true;
    for (size_t i = 0; i < k->count; i++) all &= fr_descriptor_mark(fd, k->at[i]);
    return all;
}

static bool are_equal(const struct keys *k, const struct keys *other)
{
    return k->count == other->count && !memcmp(k->at, other->at, k->count * sizeof *k->at);
}

/* Why there is no descriptor: the driver is not asked for one, because another thread could copy it before it is closed. */
static CUresult refusal(CUdeviceptr p, size_t size)
{
    CUdeviceptr base;
    size_t length;
    bool there = !REAL(cuMemGetAddressRange_v2)(&base, &length, p) && size <= length - (p - base);
    return there ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

/* The look keeps what another thread frees meanwhile charged until the descriptor is marked. Nothing is mapped during the turn
 * for numbers, and a new allocation has a new key: so if the keys are the same afterwards, the driver has seen this memory. */
static CUresult export(int *fd, struct keys *before, struct keys *after, CUdeviceptr p, size_t size, unsigned long long flags)
{
    bool enforced = fr_process_state() == FR_ENFORCE;
    fr_numbers_enter();
    bool known = collect(before, p, size);
    CUresult r = known || !enforced ? REAL(cuMemGetHandleForAddressRange)(fd, p, size, DMA_BUF_FD, flags) : refusal(p, size);
    bool marked = !r && mark(before, *fd), same = !r && known && collect(after, p, size) && are_equal(before, after);
    fr_numbers_leave();
    if (r || !enforced || (marked && same)) return r;
    fr_close(*fd);
    return marked ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult export_in_look(int *fd, struct keys *before, struct keys *after, CUdeviceptr p, size_t size, unsigned long long flags)
{
    int look = fr_look_begin();
    if (look == FR_NO_OBJECT && fr_process_state() == FR_ENFORCE) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = export(fd, before, after, p, size, flags);
    if (look != FR_NO_OBJECT) fr_look_end(look);
    return r;
}

HOOK CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr p, size_t size, int type, unsigned long long flags)
{
    int fd = -1;
    size_t room = size / FR_GRANULE + 2;
    if (!out || type != DMA_BUF_FD || !size || size > MOST || size > UINT64_MAX - p) return REAL(cuMemGetHandleForAddressRange)(NULL, p, size, type, flags);
    struct fr_key *both = mmap(NULL, 2 * room * sizeof *both, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (both == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = export_in_look(&fd, &(struct keys){.at = both}, &(struct keys){.at = both + room}, p, size, flags);
    munmap(both, 2 * room * sizeof *both);
    if (!r) *(int *)out = fd;
    return r;
}
