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
#include <sys/mman.h>

#define DMA_BUF_FD 1 /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */

struct keys { /* of the objects in the range */
    struct fr_key *at;
    size_t count, room;
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

/* The look keeps what another thread frees meanwhile charged until the descriptor is marked. */
static CUresult export(int *fd, struct keys *k, CUdeviceptr p, size_t size, unsigned long long flags)
{
    int look = fr_look_begin();
    bool known = look != FR_NO_OBJECT && collect(k, p, size);
    CUresult r = known || fr_process_state() != FR_ENFORCE ? REAL(cuMemGetHandleForAddressRange)(fd, p, size, DMA_BUF_FD, flags) : CUDA_ERROR_NOT_SUPPORTED;
    if (!r && !mark(k, *fd) && fr_process_state() == FR_ENFORCE) {
        fr_close(*fd);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (look != FR_NO_OBJECT) fr_look_end(look);
    return r;
}

HOOK CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr p, size_t size, int type, unsigned long long flags)
{
    int fd = -1;
    struct keys k = {.room = size / FR_GRANULE + 2};
    if (!out || type != DMA_BUF_FD || !size || size > UINT64_MAX - p) return REAL(cuMemGetHandleForAddressRange)(out, p, size, type, flags);
    k.at = mmap(NULL, k.room * sizeof *k.at, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (k.at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = export(&fd, &k, p, size, flags);
    munmap(k.at, k.room * sizeof *k.at);
    if (!r) *(int *)out = fd;
    return r;
}
