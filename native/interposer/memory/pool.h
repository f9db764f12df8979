/* Stream-ordered memory, between its files: pool.c (what a pool is charged with), async.c (allocating and freeing),
 * margin_pool.c and kept_blocks.c (the last of the quota), sync.c (calls after which a pool may be smaller), late_free.c (linear memory that is freed in a stream). */
#ifndef FRACTILE_POOL_H
#define FRACTILE_POOL_H

#include "api_pool.h"
#include "fractile.h"

#define FR_POOL_STEP (32ull << 20) /* one allocation makes a pool grow by at most its size, rounded up to this */

struct fr_pool {
    CUmemoryPool handle;
    CUdevice device;
    int card;                  /* FR_NO_CARD: its memory is the host's, or another process's */
    _Atomic int object;        /* of a pool that others use */
    struct fr_mutex turn;      /* held around every call that can make the pool grow, and wherever `charged` changes */
    uint64_t charged;          /* what of its reserved memory is in the ledger; under `turn` */
    uint64_t most;             /* the driver lets it grow to this size and no further; 0: without end */
    _Atomic bool stale;        /* the pool may be smaller than `charged` */
    bool seen;                 /* `charged` was compared with the driver's figure at least once; under `turn` */
    uint32_t users;            /* threads that use the handle */
    bool used;                 /* the place is taken */
    _Atomic bool doomed;       /* destroyed by the application and not empty yet */
    bool made, imported;       /* by this process; from another one */
    bool exported;             /* can go to other processes */
    bool peers;                /* other devices were given access to it */
    struct fr_key key;         /* what exporter and importer know it by; a 0: it was never exported */
    struct fr_pool *next;
};

/* ---- pool.c ---- */
extern struct fr_lock fr_pools_lock;  /* of the list of pools */
extern _Atomic uint32_t fr_pools_any; /* 0: this process has no pool that could hold memory */
void fr_pools_enter(void);            /* takes the lock; in a forked child drops what the parent knew */
struct fr_pool *fr_pool_use(CUmemoryPool handle); /* NULL: unknown; else end with fr_pool_done */
struct fr_pool *fr_pool_adopt(CUmemoryPool handle, CUdevice device, int card);
void fr_pool_done(struct fr_pool *p);
void fr_pool_leave(struct fr_pool *p); /* ... and its place is free */
bool fr_pool_make_object(struct fr_pool *p, struct fr_key key); /* others may hold the pool by this key; false: the table is full */
void fr_pool_settle(struct fr_pool *p); /* the charge becomes what the pool has */
uint64_t fr_pool_worst(const struct fr_pool *p, size_t size); /* by how much an allocation can make the charge grow */

/* One attempt to allocate. `op` has reserved `worst`; it is ended in every case. False: the charge went down meanwhile and more
 * has to be reserved; the driver was not called. */
struct fr_pool_request {
    struct fr_pool *pool;
    size_t size;
    CUstream stream;
    CUdeviceptr *out;
    CUresult result; /* the driver's */
};
bool fr_pool_allocate(struct fr_pool_request *q, struct fr_op *op);

/* Reserves and allocates. False: there is no room for the growth; `patiently` waits for calls of others that may leave some. */
bool fr_pool_attempt(struct fr_pool_request *q, bool patiently);
bool fr_pool_is_empty(const struct fr_pool *p);   /* it holds no memory at all */
uint64_t fr_pool_unused(const struct fr_pool *p); /* bytes that it has reserved and that nothing lies in: perhaps in small parts */
bool fr_pool_can_be_capped(void);              /* the driver knows pools with a largest size */

/* ---- margin_pool.c: the last of the quota ---- */
struct fr_place;
bool fr_margin_allocate(const struct fr_pool_request *q); /* false: not possible there */
extern _Atomic uint32_t fr_margin_pieces; /* small linear memory that is there */
bool fr_margin_piece_gone(CUdeviceptr p);  /* it was freed; false: it is none of these */
void fr_margin_tidy(CUdevice device);
bool fr_margin_holds(CUdeviceptr p);
#define FR_POINTER_MEMPOOL 17 /* CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE */
bool fr_margin_small(CUdeviceptr *out, size_t size, const struct fr_place *at);

CUresult fr_pool_import_ends(struct fr_pool *p); /* pool_share.c: the application destroys an imported pool */

/* Around a call after which pools may be smaller. */
struct fr_shrinking {
    uint64_t cards;
    struct fr_op op[64];
};
enum fr_how_long { FR_BRIEF, FR_WAITS }; /* others who are short wait for a brief call; for one that waits only where memory may come back */
void fr_pools_shrinking(struct fr_shrinking *s, enum fr_how_long how_long);
void fr_pools_shrunk(struct fr_shrinking *s);

/* ---- async.c ---- */
extern _Atomic int fr_capture_count;         /* streams of this process that are being captured */
#define FR_NO_STREAM UINT64_MAX
uint64_t fr_stream_id(CUstream s);  /* never 0; FR_NO_STREAM: it cannot be told */
bool fr_stream_is_capturing(CUstream s);
static inline CUstream fr_per_thread(CUstream s) { return s ? s : CU_STREAM_PER_THREAD; }

/* ---- sync.c ---- */
bool fr_synchronised(CUstream s); /* the stream is idle, and was waited for */

/* ---- late_free.c ---- */
struct fr_linear;
extern _Atomic uint32_t fr_late_frees;
/* The driver was told to free it when the stream, which is of this context, gets there. */
void fr_late_free(struct fr_linear *f, CUstream s, uint64_t stream, CUcontext context);
uint64_t fr_late_frees_so_far(void); /* before a call that waits: it says nothing of frees that come later */
void fr_late_frees_done(uint64_t stream, CUcontext context, uint64_t until); /* this stream, or this context, was waited for */

void fr_late_frees_look(void);           /* is one of the streams done? */
void fr_late_frees_without(CUstream s);  /* it is about to be destroyed */

/* ---- kept_blocks.c ---- */
extern _Atomic uint32_t fr_room_is_tight;       /* not 0: lately there was no room for a pool to grow */
extern _Atomic uint32_t fr_kept_block_count; /* how many are kept */
enum fr_kept { FR_NOT_KEPT, FR_KEPT, FR_KEPT_BEFORE /* it was freed twice */ };
enum fr_kept fr_kept_block_put(CUdeviceptr p, CUstream s); /* instead of the driver's free */
bool fr_kept_block_take(const struct fr_pool_request *q);  /* instead of the driver's allocation */
void fr_kept_blocks_free(void);                             /* all of them are freed by the driver now */
void fr_room_was_short(void);

/* ---- nodes.c ---- */
struct fr_need {
    uint64_t bytes; /* of card memory behind all addresses of the graph's allocations */
    CUdevice device;
};
struct fr_need fr_graph_need(CUgraph graph);

#endif
