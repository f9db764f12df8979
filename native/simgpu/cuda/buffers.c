/* The buffers of a context: the stack of its threads, the buffer of printf, the heap of malloc, and buffers for kernels that launch kernels.
 * The default sizes are part of a context's cost. The policy decides when a new size is taken, how much of the bound it is, and whether the
 * old and the new buffer exist at the same time while a limit is set.
 *
 * The stack also grows at a launch whose kernel has more local memory than a thread has stack, and keeps that size; the old one is freed
 * first. Buffers shrink only at cuCtxSetLimit, or at the launch for which such a change waits. */
#include "local.h"

#define THREADS_PER_SM 2048
#define STACK_UNIT 512
#define SYNC_LEVEL (150 * SIM_MIB) /* per level of nested synchronisation, from the programming guide */
#define PENDING_LAUNCH 36864       /* per launch that waits on the card: its parameters, and up to a page more */

static const size_t defaults[SIM_BUFFERS] = {1024, 1048576, 8388608, 2, 2048};

void sim_buffers_init(struct sim_ctx *c)
{
    static const size_t limits[11] = {1024, 1048576, 8388608, 2, 2048, 128};
    for (int i = 0; i < 11; i++) c->limits[i] = limits[i];
    for (int i = 0; i < SIM_BUFFERS; i++) c->buffers[i] = (struct sim_buffer){.value = defaults[i]};
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX / 2 : product;
}

/* All bytes needed for a size; `value` is in the limit's own unit. */
static uint64_t needs(const struct sim_ctx *c, int limit, uint64_t value)
{
    uint64_t bytes = value;
    if (limit == SIM_STACK) bytes = times(sim_round(value, STACK_UNIT), (uint64_t)sim_card_of(c->device)->sm_count * THREADS_PER_SM);
    if (limit == SIM_SYNC_DEPTH) bytes = times(value, SYNC_LEVEL);
    if (limit == SIM_PENDING) bytes = times(value, PENDING_LAUNCH);
    return bytes > UINT64_MAX / 2 ? UINT64_MAX / 2 : sim_round(bytes, SIM_GRANULE);
}

static uint64_t drawn(uint64_t n) { return sim.policy.seed ? sim_policy_hash(sim.policy.seed, n) : 0; }

/* The bound is the whole size. The bytes taken may be less by the part that is included in the context's cost. */
static uint64_t taken(const struct sim_ctx *c, int limit, uint64_t most)
{
    uint64_t included = needs(c, limit, defaults[limit]), rest = most - (included < most ? included : most);
    uint64_t choice = drawn(200 + (uint64_t)limit) % 3;
    return choice == 0 ? rest : choice == 1 ? most : sim_round((rest + most) / 2, SIM_GRANULE);
}

static uint32_t charge(const struct sim_ctx *c, uint64_t bytes, uint64_t most)
{
    uint32_t number = sim_charge_memory(&sim.host, c->card, SIM_CONTEXT, bytes, bytes);
    if (number && bytes < most) sim_allow(&sim.host, number, most - bytes);
    return number;
}

/* One step under the host's lock, so that no other process can take the freed memory in between. */
static CUresult resize(struct sim_ctx *c, int limit, uint64_t value, bool both)
{
    struct sim_buffer *b = &c->buffers[limit];
    uint64_t most = value > defaults[limit] ? needs(c, limit, value) : 0, bytes = most ? taken(c, limit, most) : 0;
    uint64_t high = most > b->most ? most : b->most;
    sim_bound("a context's buffer", bytes, most);
    sim_lock(&sim.host);
    if (!both || bytes < b->bytes) sim_release(&sim.host, b->charge), b->charge = 0;
    uint32_t fresh = high ? charge(c, bytes, high) : 0;
    bool done = fresh || !high;
    if (done && b->charge) sim_release(&sim.host, b->charge);
    if (done) *b = (struct sim_buffer){.charge = fresh, .bytes = bytes, .most = high, .value = value};
    else if (!b->charge && b->most) b->charge = charge(c, b->bytes, b->most);
    sim_unlock(&sim.host);
    return done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static enum sim_when when(int limit)
{
    return limit == SIM_STACK ? sim.policy.stack_when : limit == SIM_PRINTF ? sim.policy.printf_when : sim.policy.heap_when;
}

/* The memory will be taken at a launch. A library may count it before. */
static CUresult later(struct sim_ctx *c, int limit, uint64_t value)
{
    struct sim_buffer *b = &c->buffers[limit];
    uint64_t most = value > defaults[limit] ? needs(c, limit, value) : 0;
    b->waits = true;
    if (most <= b->most) return CUDA_SUCCESS;
    sim_lock(&sim.host);
    sim_release(&sim.host, b->charge);
    b->charge = charge(c, b->bytes, most);
    b->most = most;
    sim_unlock(&sim.host);
    return CUDA_SUCCESS;
}

CUresult sim_buffer_set(struct sim_ctx *c, int limit, uint64_t value)
{
    if (limit >= SIM_BUFFERS) return CUDA_SUCCESS;
    if (when(limit) == SIM_AT_FIRST_USE) return later(c, limit, value);
    return resize(c, limit, value, drawn(210) % 2 == 0);
}

CUresult sim_buffers_use(struct sim_ctx *c, uint64_t local)
{
    CUresult r = CUDA_SUCCESS;
    for (int limit = 0; limit < SIM_BUFFERS && !r; limit++) {
        struct sim_buffer *b = &c->buffers[limit];
        uint64_t value = b->waits ? c->limits[limit] : b->value;
        if (limit == SIM_STACK && sim_round(local, STACK_UNIT) > value) value = sim_round(local, STACK_UNIT);
        if (value != b->value) r = resize(c, limit, value, false);
        if (!r) b->waits = false;
    }
    return r;
}

/* With the host's lock. */
void sim_buffers_drop(struct sim_ctx *c)
{
    for (int i = 0; i < SIM_BUFFERS; i++) {
        sim_release(&sim.host, c->buffers[i].charge);
        c->buffers[i] = (struct sim_buffer){0};
    }
}
