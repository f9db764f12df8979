/* Linear memory: plain, pitched, managed; and host memory.
 *
 * A card's memory is taken in granules of 2 MiB. An allocation of 1 MiB or more takes whole granules; smaller ones may share them (small.c).
 * SIMGPU_GRANULE=N turns the sharing off and rounds every allocation up to N bytes. */
#include "local.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define UNIT 512 /* a pitch is a multiple of this */

uint64_t sim_round(uint64_t size, uint64_t to)
{
    return (size + to - 1) / to * to;
}

uint32_t sim_take(uint32_t card, enum sim_kind kind, size_t bytes, size_t asked)
{
    sim_lock(&sim.host);
    uint32_t charge = sim_charge_memory(&sim.host, card, kind, bytes, asked);
    sim_unlock(&sim.host);
    return charge;
}

/* A policy's choices must be within the table of bounds, unless it is a wild policy. */
void sim_bound(const char *what, uint64_t bytes, uint64_t most)
{
    if (bytes <= most || sim.policy.wild) return;
    sim_complain("simgpu: policy %llu took %llu bytes for %s, which may take %llu", (unsigned long long)sim.policy.seed,
                 (unsigned long long)bytes, what, (unsigned long long)most);
    abort();
}

/* Takes `bytes` for a purpose for which a library may count up to `most`. */
uint32_t sim_take_within(uint32_t card, enum sim_kind kind, size_t bytes, size_t asked, size_t most)
{
    sim_bound(sim_kind_names[kind], bytes, most);
    sim_lock(&sim.host);
    uint32_t charge = sim_charge_memory(&sim.host, card, kind, bytes, asked);
    if (charge && bytes < most) sim_allow(&sim.host, charge, most - bytes);
    sim_unlock(&sim.host);
    return charge;
}

/* Linear memory in whole granules; a wild policy takes more. */
uint32_t sim_take_linear(uint32_t card, enum sim_kind kind, size_t bytes, size_t asked)
{
    return sim_take_within(card, kind, (size_t)((unsigned __int128)bytes * sim.policy.linear_percent / 100), asked, bytes);
}

/* Takes no bytes, but allows a library to count `slack`: it cannot know yet that the memory was freed. */
uint32_t sim_allowance(uint32_t card, enum sim_kind kind, size_t slack) { return sim_take_within(card, kind, 0, 0, slack); }

void sim_give(uint32_t charge)
{
    if (!charge) return;
    sim_lock(&sim.host);
    sim_release(&sim.host, charge);
    sim_unlock(&sim.host);
}

/* ---- linear ---- */

CUresult sim_alloc_linear(struct sim_ctx *ctx, size_t size, enum sim_kind kind, CUdeviceptr *out)
{
    if (sim.pack && size < sim.policy.small_below && kind == SIM_LINEAR) return sim_alloc_small(ctx, size, out);
    if (size > 1ull << 50) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t bytes = (size_t)sim_round(size, sim.granule);
    uint32_t charge = kind == SIM_LINEAR ? sim_take_linear(ctx->card, kind, bytes, size) : sim_take(ctx->card, kind, bytes, size);
    if (!charge) return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_region r = {.va = sim_reserve_address(size), .size = size, .kind = R_LINEAR, .ctx = ctx,
                           .device = ctx->device, .charge = charge, .bytes = sim_bytes_new(size)};
    if (!r.bytes || !sim_region_add(r)) return sim_give(charge), CUDA_ERROR_OUT_OF_MEMORY;
    *out = r.va;
    return CUDA_SUCCESS;
}

/* Frees the memory of a region, which may be removed from the list already. */
void sim_drop_linear(const struct sim_region *r)
{
    if (r->kind == R_SMALL) return sim_drop_small(r);
    sim_give(r->charge);
    sim_release_address(r->va, r->size);
    sim_bytes_drop(r->bytes);
}

static void free_host(struct sim_region *r)
{
    munmap((void *)(uintptr_t)r->va, (size_t)sim_round(r->size, 4096));
    sim_give(r->charge);
    sim_region_remove(r);
}

void sim_free_region(struct sim_region *r)
{
    switch (r->kind) {
    case R_MANAGED:
    case R_HOST: free_host(r); return;
    case R_REGISTERED: sim_region_remove(r); return;
    case R_POOL: sim_pool_free(r, NULL); return;
    case R_GRAPH: sim_graph_free(r); return;
    case R_SMALL:
    case R_LINEAR:
    case R_IPC:
    case R_POOL_IMPORT:
    case R_MAPPED: break;
    }
    sim_drop_linear(r);
    sim_region_remove(r);
}

static CUresult alloc(CUdeviceptr *out, size_t size)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!out || !size) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    return sim_leave(sim_alloc_linear(c, size, SIM_LINEAR, out));
}

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) { return alloc(out, size); }

/* The 32-bit form of CUDA 3.1: it fails, because an address would not fit. */
API CUresult cuMemAlloc(unsigned *out, unsigned size)
{
    (void)out, (void)size;
    return sim.initialised ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    bool element_ok = element == 4 || element == 8 || element == 16;
    if (!out || !pitch || !width || !height || !element_ok) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (width > 1ull << 40 || height > 1ull << 40) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *pitch = (size_t)sim_round(width, UNIT);
    if (height > (1ull << 50) / *pitch) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    return sim_leave(sim_alloc_linear(c, *pitch * height, SIM_LINEAR, out));
}

/* As in the real driver, freeing waits for the work of the context. */
static CUresult release(CUdeviceptr p)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!p) return sim_leave(CUDA_SUCCESS);
    struct sim_region *region = sim_region_at(p);
    bool freeable = region && region->kind != R_HOST && region->kind != R_REGISTERED && region->kind != R_MAPPED &&
                    region->kind != R_IPC;
    if (!freeable) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    sim_wait_context(region->ctx ? region->ctx : c);
    region = sim_region_at(p); /* again, since other threads ran meanwhile */
    if (region) sim_free_region(region);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemFree_v2(CUdeviceptr p) { return release(p); }
API CUresult cuMemFree(unsigned p) { return release(p); }

static void info(struct sim_ctx *c, uint64_t *free_bytes, uint64_t *total)
{
    struct sim_card *card = sim_card_of(c->device);
    sim_lock(&sim.host);
    sim_reap_sometimes(&sim.host, sim_now());
    *free_bytes = sim_free_bytes(card);
    *total = card->total;
    sim_unlock(&sim.host);
}

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    struct sim_ctx *c;
    uint64_t f, t;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    info(c, &f, &t);
    if (free_bytes) *free_bytes = f;
    if (total) *total = t;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
    struct sim_ctx *c;
    uint64_t f, t;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    info(c, &f, &t);
    if (free_bytes) *free_bytes = f > UINT32_MAX ? UINT32_MAX : (unsigned)f;
    if (total) *total = t > UINT32_MAX ? UINT32_MAX : (unsigned)t;
    return sim_leave(CUDA_SUCCESS);
}

/* ---- host-visible memory ---- */

static CUresult map_host(struct sim_ctx *c, size_t size, enum sim_region_kind kind, uint32_t charge, unsigned flags, void **out)
{
    size_t length = (size_t)sim_round(size, 4096);
    void *p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_region r = {.va = (uint64_t)(uintptr_t)p, .size = size, .kind = kind, .ctx = c, .device = c->device,
                           .charge = charge, .flags = flags};
    if (!sim_region_add(r)) {
        munmap(p, length);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = p;
    return CUDA_SUCCESS;
}

/* Managed memory counts in full from the start: residency is not modelled. */
API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags)
{
    struct sim_ctx *c;
    void *p;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!out || !size || (flags != 1 && flags != 2)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (size > 1ull << 46) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    uint32_t charge = sim_take_linear(c->card, SIM_MANAGED, (size_t)sim_round(size, sim.granule), size);
    if (!charge) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    r = map_host(c, size, R_MANAGED, charge, flags, &p);
    if (r) sim_give(charge);
    else *out = (uint64_t)(uintptr_t)p;
    return sim_leave(r);
}

static CUresult alloc_host(void **out, size_t size, unsigned flags)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!out || !size || flags > 7) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (size > 1ull << 46) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    return sim_leave(map_host(c, size, R_HOST, 0, flags, out));
}

API CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags) { return alloc_host(out, size, flags); }
API CUresult cuMemAllocHost_v2(void **out, size_t size) { return alloc_host(out, size, 0); }
API CUresult cuMemAllocHost(void **out, unsigned size) { return alloc_host(out, size, 0); }

API CUresult cuMemFreeHost(void *p)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_region *region = sim_region_at((uint64_t)(uintptr_t)p);
    if (!region || region->kind != R_HOST) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    sim_wait_context(c);
    region = sim_region_at((uint64_t)(uintptr_t)p);
    if (region) sim_free_region(region);
    return sim_leave(CUDA_SUCCESS);
}

static CUresult host_register(void *p, size_t size, unsigned flags)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    uint64_t va = (uint64_t)(uintptr_t)p;
    if (!p || !size) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (sim_region_find(va) || sim_region_find(va + size - 1)) return sim_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    struct sim_region region = {.va = va, .size = size, .kind = R_REGISTERED, .ctx = c, .device = c->device, .flags = flags};
    return sim_leave(sim_region_add(region) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuMemHostRegister_v2(void *p, size_t size, unsigned flags) { return host_register(p, size, flags); }
API CUresult cuMemHostRegister(void *p, size_t size, unsigned flags) { return host_register(p, size, flags); }

API CUresult cuMemHostUnregister(void *p)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_region *region = sim_region_at((uint64_t)(uintptr_t)p);
    if (!region || region->kind != R_REGISTERED) return sim_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    sim_region_remove(region);
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned flags)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_region *region = sim_region_find((uint64_t)(uintptr_t)p);
    if (!out || flags || !region) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    *out = (uint64_t)(uintptr_t)p;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuMemHostGetFlags(unsigned *out, void *p)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_region *region = sim_region_at((uint64_t)(uintptr_t)p);
    if (!out || !region || region->kind != R_HOST) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    *out = region->flags;
    return sim_leave(CUDA_SUCCESS);
}

/* ---- queries about addresses ---- */

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_region *region = sim_region_find(p);
    if (!region) return sim_leave(CUDA_ERROR_NOT_FOUND);
    if (base) *base = region->va;
    if (size) *size = region->size;
    return sim_leave(CUDA_SUCCESS);
}

enum { A_CONTEXT = 1, A_MEMORY_TYPE, A_DEVICE_POINTER, A_HOST_POINTER, A_P2P_TOKENS, A_SYNC_MEMOPS, A_BUFFER_ID,
       A_IS_MANAGED, A_DEVICE_ORDINAL, A_IPC_CAPABLE, A_RANGE_START, A_RANGE_SIZE, A_MAPPED, A_HANDLE_TYPES, A_RDMA,
       A_ACCESS_FLAGS, A_MEMPOOL };

static CUresult attribute(void *out, int what, CUdeviceptr p, const struct sim_region *r)
{
    bool host = r->kind == R_HOST || r->kind == R_REGISTERED, managed = r->kind == R_MANAGED;
    switch (what) {
    case A_CONTEXT: *(CUcontext *)out = r->ctx; return CUDA_SUCCESS;
    case A_MEMORY_TYPE: *(unsigned *)out = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; return CUDA_SUCCESS;
    case A_DEVICE_POINTER: *(CUdeviceptr *)out = p; return CUDA_SUCCESS;
    case A_HOST_POINTER:
        if (!host && !managed) return CUDA_ERROR_INVALID_VALUE;
        *(void **)out = (void *)(uintptr_t)p;
        return CUDA_SUCCESS;
    case A_SYNC_MEMOPS: *(unsigned *)out = 0; return CUDA_SUCCESS;
    case A_BUFFER_ID: *(unsigned long long *)out = r->number; return CUDA_SUCCESS;
    case A_IS_MANAGED: *(unsigned *)out = managed; return CUDA_SUCCESS;
    case A_DEVICE_ORDINAL: *(int *)out = r->device; return CUDA_SUCCESS;
    case A_IPC_CAPABLE: *(unsigned *)out = r->kind == R_LINEAR || r->kind == R_SMALL; return CUDA_SUCCESS;
    case A_RANGE_START: *(CUdeviceptr *)out = r->va; return CUDA_SUCCESS;
    case A_RANGE_SIZE: *(size_t *)out = r->size; return CUDA_SUCCESS;
    case A_MAPPED: *(unsigned *)out = 1; return CUDA_SUCCESS;
    case A_HANDLE_TYPES: *(unsigned long long *)out = r->kind == R_MAPPED ? CU_MEM_HANDLE_TYPE_POSIX_FD : 0; return CUDA_SUCCESS;
    case A_RDMA: *(unsigned *)out = 0; return CUDA_SUCCESS;
    case A_ACCESS_FLAGS: *(unsigned *)out = 3; return CUDA_SUCCESS;
    case A_MEMPOOL: *(void **)out = r->kind == R_POOL ? *(void **)r->owner : NULL; return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

API CUresult cuPointerGetAttribute(void *out, int what, CUdeviceptr p)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_region *region = sim_region_find(p);
    return sim_leave(out && region ? attribute(out, what, p, region) : CUDA_ERROR_INVALID_VALUE);
}

/* The plural form returns null where the singular one fails. */
API CUresult cuPointerGetAttributes(unsigned count, const int *what, void **out, CUdeviceptr p)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!what || !out) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_region *region = sim_region_find(p);
    for (unsigned i = 0; i < count; i++) {
        bool narrow = what[i] == A_MEMORY_TYPE || what[i] == A_SYNC_MEMOPS || what[i] == A_IS_MANAGED ||
                      what[i] == A_DEVICE_ORDINAL || what[i] == A_IPC_CAPABLE || what[i] == A_MAPPED || what[i] >= A_RDMA;
        if (region && !attribute(out[i], what[i], p, region)) continue;
        if (what[i] == A_DEVICE_ORDINAL) *(int *)out[i] = -2;
        else memset(out[i], 0, narrow && what[i] != A_MEMPOOL ? 4 : 8);
    }
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuPointerSetAttribute(const void *value, int what, CUdeviceptr p)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    bool ok = value && what == A_SYNC_MEMOPS && sim_region_find(p);
    return sim_leave(ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* Hints are checked, but have no effect. */
static CUresult hint(CUdeviceptr p, size_t size)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    struct sim_region *region = sim_region_find(p);
    bool ok = region && region->kind == R_MANAGED && size && p + size <= region->va + region->size;
    return sim_leave(ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuMemAdvise(CUdeviceptr p, size_t size, int advice, CUdevice d) { return (void)advice, (void)d, hint(p, size); }
API CUresult cuMemAdvise_v2(CUdeviceptr p, size_t size, int advice, CUmemLocation l) { return (void)advice, (void)l, hint(p, size); }
API CUresult cuMemPrefetchAsync(CUdeviceptr p, size_t size, CUdevice d, CUstream s) { return (void)d, (void)s, hint(p, size); }
API CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr p, size_t size, CUdevice d, CUstream s) { return (void)d, (void)s, hint(p, size); }
API CUresult cuMemPrefetchAsync_v2(CUdeviceptr p, size_t size, CUmemLocation l, unsigned f, CUstream s)
{
    return (void)l, (void)f, (void)s, hint(p, size);
}
API CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr p, size_t size, CUmemLocation l, unsigned f, CUstream s)
{
    return (void)l, (void)f, (void)s, hint(p, size);
}
