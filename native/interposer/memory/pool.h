/* What the files about stream-ordered memory tell each other: pool.c (what a pool is charged with), pool_blocks.c (what lies
 * unused inside it), async.c (allocating and freeing), sync.c (calls after which a pool may be smaller). */
#ifndef FRACTILE_POOL_H
#define FRACTILE_POOL_H

#include "api_pool.h"
#include "fractile.h"

#define FR_CHUNK (32ull << 20) /* a pool grows by these */

struct fr_pool {
    CUmemoryPool handle;
    CUdevice device;
    int card;                  /* FR_NO_CARD: its memory is the host's, or another process's */
    _Atomic int object;        /* of a pool that others use */
    _Atomic uint64_t version;  /* moves when an allocation begins and whenever the charge is looked at anew */
    _Atomic uint64_t charged;  /* what of its reserved memory is in the ledger */
    uint64_t claim;            /* growth at worst of the call that goes without a reservation; 0: there is none */
    uint32_t calls, users;     /* allocations on their way; threads that use the handle */
    _Atomic uint32_t tight;    /* not 0: lately there was no room for its growth */
    bool used;                 /* the place is taken */
    _Atomic bool doomed;       /* destroyed by the application and not empty yet */
    bool made, imported;       /* by this process; from another one */
    bool exported, mistrusted; /* can go to other processes; grew when a piece was known to fit */
    struct fr_key key;         /* what exporter and importer know it by; a 0: it was never exported */
    struct fr_pool *next;
};

/* An allocation on its way. */
struct fr_growth {
    struct fr_op op;
    uint64_t version;
    bool claimed, alone;
    size_t size;
};

/* ---- pool.c ---- */
extern struct fr_lock fr_pools_lock;  /* of pools and pieces */
extern _Atomic uint32_t fr_pools_any; /* 0: this process has no pool that could hold memory */
void fr_pools_enter(void);            /* takes the lock; in a forked child drops what the parent knew */
struct fr_pool *fr_pool_use(CUmemoryPool handle); /* NULL: unknown; else end with fr_pool_done */
struct fr_pool *fr_pool_adopt(CUmemoryPool handle, CUdevice device, int card);
void fr_pool_done(struct fr_pool *p);
void fr_pool_resize_object(struct fr_pool *p);
void fr_pool_leave(struct fr_pool *p); /* ... and its place is free */
bool fr_pool_grow_begin(struct fr_pool *p, size_t size, struct fr_growth *g); /* false: not room enough in the ledger just now */
bool fr_pool_claim_begin(struct fr_pool *p, size_t size, uint64_t order, struct fr_growth *g); /* false: no piece is known to fit */
bool fr_pool_end(struct fr_pool *p, struct fr_growth *g, CUdeviceptr at); /* at 0: it failed. false: it grew without a reservation */
CUresult fr_pool_import_ends(struct fr_pool *p); /* pool_share.c: the application destroys an imported pool */
uint32_t fr_pool_calls(struct fr_pool *p); /* allocations from it that are on their way */
uint64_t fr_pools_begun(void);        /* allocations from pools that this process ever began */
void fr_pools_settle(int card);       /* charges become what the pools have now; FR_NO_CARD: on all cards */

/* Around a call after which pools may be smaller. */
struct fr_lull {
    uint64_t cards, begun, freed;
    struct fr_op op[64];
};
void fr_lull_begin(struct fr_lull *l);
void fr_lull_end(struct fr_lull *l, uint64_t order); /* order: the stream whose work is done; 0: of all */
#define FR_NO_ORDER UINT64_MAX

/* ---- pool_blocks.c: with the lock held ---- */
void fr_pieces_drop(void);
void fr_chunk_add(struct fr_pool *p, uint64_t base, uint64_t size);
void fr_chunk_forget(struct fr_pool *p, bool empty_only);
bool fr_chunk_waits(int card); /* a chunk without a piece in use is still there: its last work is not done */
void fr_piece_given(uint64_t at, size_t size);
bool fr_piece_fits(const struct fr_pool *p, size_t size, uint64_t order, bool empty_too);
uint64_t fr_pieces_now(void);
void fr_pieces_ordered(uint64_t order, uint64_t until);

/* ---- async.c ---- */
extern _Atomic int fr_captures;         /* streams of this process that are being captured */
uint64_t fr_order(CUstream s);          /* a number for the stream, never 0 */
bool fr_capturing(CUstream s);
static inline CUstream fr_per_thread(CUstream s) { return s ? s : CU_STREAM_PER_THREAD; }

/* ---- nodes.c, graph.c ---- */
struct fr_need {
    uint64_t bytes; /* that the graph holds at its fullest */
    CUdevice device;
};
struct fr_need fr_graph_need(CUgraph graph);


#endif
