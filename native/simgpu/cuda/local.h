/* The simulated driver's state in one process: contexts, streams, and the address space. One mutex protects all of it. The lock of the shared
 * state is taken while holding the mutex, or without it, but the mutex is never taken while holding that lock. */
#ifndef SIMGPU_LOCAL_H
#define SIMGPU_LOCAL_H

#include "../state/policy.h"
#include "../state/state.h"
#include "cuda_abi.h"

#define API __attribute__((visibility("default")))

/* The stream of a call in its per-thread-default-stream form, in which stream 0 means the thread's own. */
#define SIM_PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

enum { MAGIC_CTX = 0x43545831, MAGIC_STREAM = 0x53545231, MAGIC_EVENT = 0x45564e31, MAGIC_MODULE = 0x4d4f4431,
       MAGIC_FUNCTION = 0x46554e31, MAGIC_POOL = 0x504f4f31, MAGIC_ARRAY = 0x41525231, MAGIC_GRAPH = 0x47524131,
       MAGIC_NODE = 0x4e4f4431, MAGIC_EXEC = 0x45584531, MAGIC_OBJECT = 0x4f424a31, MAGIC_LINK = 0x4c4e4b31 };

#define SIM_VALID(handle, kind) ((handle) && (handle)->magic == MAGIC_##kind)

struct sim_capture;

struct sim_stream {
    uint32_t magic;
    struct sim_ctx *ctx;
    uint16_t queue;
    bool legacy, blocking, per_thread;
    unsigned flags;
    int priority;
    uint64_t last_seq, id;
    long thread;
    struct sim_capture *capture;
    struct sim_stream *next;
};

/* The buffers of a context, numbered like the limits that set their sizes. */
enum { SIM_STACK, SIM_PRINTF, SIM_HEAP, SIM_SYNC_DEPTH, SIM_PENDING, SIM_BUFFERS };
struct sim_buffer {
    uint32_t charge;
    uint64_t bytes, most, value; /* most: the bound of the largest size so far; value: the size, in the limit's unit */
    bool waits;                  /* the next launch takes the size that the limit has now */
};

struct sim_ctx {
    uint32_t magic, id, generation;
    int device;
    uint32_t card, charge, fault_seen;
    struct sim_buffer buffers[SIM_BUFFERS];
    struct sim_ctx *parent; /* for a green context: the primary context, which owns everything made in it */
    CUresult broken; /* sticky */
    bool primary;
    unsigned flags, primary_refs, peers;
    size_t limits[11];
    uint64_t last_legacy, number;
    unsigned next_queue;
    struct sim_stream legacy, *streams;
    struct sim_ctx *next;
};

/* The context that owns memory and code made in this one. */
static inline struct sim_ctx *sim_owner(struct sim_ctx *ctx) { return ctx && ctx->parent ? ctx->parent : ctx; }

struct sim_ev {
    uint32_t magic, slot, generation; /* slot: index + 1 in the shared table */
    struct sim_ctx *ctx;
    unsigned flags;
    bool recorded, imported;
    bool in_capture;             /* last recorded in a capture: queries return CUDA_ERROR_CAPTURED_EVENT */
    struct sim_capture *capture; /* recorded while capturing: stands for these nodes */
    struct sim_node **captured;
    size_t captured_count;
};

/* The contents of a simulated allocation. No memory of the machine is used before they are first touched. */
struct sim_bytes {
    void *memory;
    size_t size;
    unsigned refs;
    uint64_t object; /* if not 0: shared with other processes through this object's file */
};

enum sim_region_kind { R_LINEAR, R_SMALL, R_MANAGED, R_HOST, R_REGISTERED, R_POOL, R_MAPPED, R_IPC, R_GRAPH, R_POOL_IMPORT };

struct sim_region {
    uint64_t va;
    size_t size, offset; /* offset into bytes */
    enum sim_region_kind kind;
    struct sim_ctx *ctx;
    int device;
    uint32_t charge;
    unsigned flags;
    uint64_t number;
    struct sim_bytes *bytes;
    void *owner; /* slab, pool block or handle, by kind */
};

struct sim_device {
    uint32_t card; /* in the shared table */
    struct sim_ctx *primary;
    unsigned primary_flags;
    struct sim_pool *default_pool, *current_pool;
    uint64_t graph_used, graph_used_high, graph_reserved, graph_reserved_high, graph_kept, graph_epoch;
    uint32_t *graph_charges;
    size_t graph_charge_count;
};

struct sim_local {
    bool initialised, forked;
    struct sim_host host;
    struct sim_policy policy;
    int device_count;
    struct sim_device devices[SIM_CARDS];
    struct sim_ctx *contexts;
    uint64_t granule;
    bool pack;
    size_t contents_limit;
    bool streams_again;
    uint64_t next_number;
};

extern struct sim_local sim;

/* core.c */
CUresult sim_enter(void);
CUresult sim_enter_context(struct sim_ctx **ctx);
CUresult sim_leave(CUresult result);
void sim_pause(void);  /* lets other threads in while this one waits */
void sim_resume(void);
CUresult sim_stub(const char *name);
void sim_nap_until(uint64_t when);
void sim_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
CUresult sim_init_state(void);
struct sim_card *sim_card_of(int device);
bool sim_device_valid(int device);
int sim_driver_version(void);

/* context.c */
struct sim_ctx *sim_current(void);
void sim_set_current(struct sim_ctx *ctx);
CUresult sim_context_make(int device, unsigned flags, struct sim_ctx *parent, struct sim_ctx **out);
void sim_context_free(struct sim_ctx *ctx);
CUresult sim_primary_hold(CUdevice device, struct sim_ctx **out);
void sim_primary_let_go(CUdevice device);
CUresult sim_context_check(struct sim_ctx *ctx);

/* buffers.c */
void sim_buffers_init(struct sim_ctx *ctx);
void sim_buffers_drop(struct sim_ctx *ctx);
CUresult sim_buffer_set(struct sim_ctx *ctx, int limit, uint64_t value);
CUresult sim_buffers_use(struct sim_ctx *ctx, uint64_t local); /* at a launch: bytes of local memory of a thread */

/* addresses.c */
uint64_t sim_reserve_address(size_t size);
void sim_release_address(uint64_t va, size_t size);
struct sim_region *sim_region_add(struct sim_region r);
struct sim_region *sim_region_find(uint64_t va);
struct sim_region *sim_region_at(uint64_t va); /* the region that begins at va */
void sim_region_remove(struct sim_region *r);
size_t sim_region_count(void);
struct sim_region *sim_region_number(size_t i);
struct sim_bytes *sim_bytes_new(size_t size);
struct sim_bytes *sim_bytes_shared(uint64_t object, size_t size);
bool sim_bytes_publish(struct sim_bytes *b, uint64_t object);
void sim_bytes_drop(struct sim_bytes *b);
void *sim_bytes_touch(struct sim_bytes *b);
void *sim_contents(uint64_t va, size_t size, bool *on_device);

/* memory.c */
uint32_t sim_take(uint32_t card, enum sim_kind kind, size_t bytes, size_t asked);
uint32_t sim_take_within(uint32_t card, enum sim_kind kind, size_t bytes, size_t asked, size_t most);
uint32_t sim_take_linear(uint32_t card, enum sim_kind kind, size_t bytes, size_t asked);
uint32_t sim_allowance(uint32_t card, enum sim_kind kind, size_t slack);
void sim_bound(const char *what, uint64_t bytes, uint64_t most);
void sim_give(uint32_t charge);
uint64_t sim_round(uint64_t size, uint64_t to);
CUresult sim_alloc_linear(struct sim_ctx *ctx, size_t size, enum sim_kind kind, CUdeviceptr *out);
void sim_free_region(struct sim_region *r);
void sim_drop_linear(const struct sim_region *r);

/* small.c */
CUresult sim_alloc_small(struct sim_ctx *ctx, size_t size, CUdeviceptr *out);
void sim_drop_small(const struct sim_region *r);
uint32_t sim_slab_charge(const struct sim_region *r);

/* late.c */
void sim_free_late(struct sim_region *r, struct sim_stream *st);
void sim_late_look(void);
void sim_late_synchronised(const struct sim_ctx *ctx, const struct sim_stream *st, uint64_t from);
void sim_late_forget(const struct sim_ctx *ctx);

/* disturb.c */
void sim_disturb(void);

/* stream.c */
struct sim_stream *sim_stream_of(struct sim_ctx *ctx, CUstream handle);
CUresult sim_enter_for(CUstream handle, struct sim_ctx **ctx); /* like sim_enter_context; without a current context, in the stream's own */
struct sim_stream *sim_stream_new(void);    /* not initialised yet */
void sim_stream_gone(struct sim_stream *st); /* no pointer to it may remain */
void sim_stream_init(struct sim_ctx *ctx, struct sim_stream *st, unsigned flags, int priority);
CUresult sim_submit(struct sim_stream *st, struct sim_item item, uint64_t *seq);
void sim_wait(uint32_t context, uint32_t generation, uint64_t seq);
void sim_wait_context(struct sim_ctx *ctx);
bool sim_stream_idle(struct sim_stream *st);
bool sim_work_done(uint32_t context, uint32_t generation, uint64_t seq);
void sim_synchronised(const struct sim_ctx *ctx, const struct sim_stream *st, uint64_t from);
CUresult sim_submit_host(struct sim_stream *st, CUhostFn fn, void *data);

/* copy.c */
struct sim_item sim_copy_item(struct sim_ctx *ctx, size_t size, int engine);
struct sim_item sim_fill_item(struct sim_ctx *ctx, size_t size);
CUresult sim_fill(CUdeviceptr dst, size_t pitch, unsigned value, unsigned element, size_t width, size_t height);
CUresult sim_copy_3d(const CUDA_MEMCPY3D *p, struct sim_ctx *ctx, struct sim_item *item);
CUresult sim_copy_call(const CUDA_MEMCPY3D *p, CUstream stream, bool wait);

/* launch.c */
CUresult sim_kernel_item(struct sim_ctx *ctx, struct sim_function *f, const unsigned grid[3], const unsigned block[3],
                         void **params, void **extra, struct sim_item *item);

/* pool.c, pool_chunks.c */
CUresult sim_pool_alloc(struct sim_pool *pool, size_t size, struct sim_stream *st, CUdeviceptr *out);
CUresult sim_pool_free(struct sim_region *r, struct sim_stream *st);
struct sim_pool *sim_default_pool(int device);
void sim_pools_at_sync(void);
void sim_pools_between_calls(void);

/* graph.c, graph_memory.c */
bool sim_capturing(struct sim_stream *st);
bool sim_any_capture(void);
void sim_capture_stream_ends(struct sim_stream *st);
CUresult sim_capture_node(struct sim_stream *st, const CUgraphNodeParams *p);
CUresult sim_capture_alloc(struct sim_stream *st, int device, size_t size, CUdeviceptr *out);
void sim_capture_event(struct sim_stream *st, struct sim_ev *e);
CUresult sim_capture_wait(struct sim_stream *st, struct sim_ev *e);
CUresult sim_graph_free(struct sim_region *r);

/* array.c */
void sim_arrays_forget(struct sim_ctx *ctx);
void sim_arrays_move(const struct sim_ctx *from, struct sim_ctx *to);

/* module.c */
struct sim_module;
void sim_modules_forget(struct sim_ctx *ctx);
CUresult sim_function_load(struct sim_ctx *ctx, struct sim_function *f);
CUresult sim_function_asked(struct sim_function *f);
CUresult sim_libraries_load(struct sim_ctx *ctx);

#endif
