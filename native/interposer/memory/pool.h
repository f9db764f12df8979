/* Pools of stream-ordered memory, and the charge of each (see pool.c). */
#ifndef FRACTILE_MEMORY_POOL_H
#define FRACTILE_MEMORY_POOL_H

#include "base/lock.h"
#include "ledger/descriptor.h"
#include "ledger/oom_retry.h"
#include "memory/turn.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FR_POOL_STEP (32ull << 20) /* one allocation makes a pool grow by at most its size, rounded up to this */

struct fr_pool {
    CUmemoryPool handle;
    CUdevice device;
    int card;                  /* FR_NO_CARD: its memory belongs to the host, or to another process */
    _Atomic int object;        /* of a pool that other processes use */
    struct fr_turn turn;       /* held around every call that can make the pool grow, and wherever `charged` changes */
    uint64_t charged;          /* bytes of its reserved memory that are in the ledger; under `turn` */
    uint64_t chunk;            /* no piece of it lies in a larger block of the driver; under `turn` */
    uint64_t most;             /* the driver lets it grow to this size and no further; 0: no limit */
    bool seen;                 /* `charged` was compared with the driver's figure at least once; under `turn` */
    uint32_t users;            /* threads that use the handle */
    bool used;                 /* the place is in use */
    _Atomic bool doomed;       /* destroyed by the application but not empty yet */
    bool made, imported;       /* by this process; from another one */
    bool margin;               /* the library's own, for the last of the quota (margin_pool.c) */
    bool exported;             /* can go to other processes */
    bool peers;                /* other devices or the host can use it: other memory would not serve */
    struct fr_key key;         /* by which exporter and importer know it; a 0: never exported */
    struct fr_pool *next;
};

extern struct fr_lock fr_pools_lock;              /* for the list of pools */
extern _Atomic uint32_t fr_pools_any;             /* 0: this process has no pool that could hold memory */
void fr_pools_enter(void);                        /* takes the lock; in a forked child it drops the parent's list */
struct fr_pool *fr_pool_use(CUmemoryPool handle); /* NULL: unknown; otherwise end with fr_pool_done */
/* During the turn of the handles: */
void fr_pool_handles_enter(void);
void fr_pool_handles_leave(void); /* before fr_pool_done */
struct fr_pool *fr_pool_adopt(CUmemoryPool handle, CUdevice device, int card);
/* The driver has just made it: an older entry belongs to another pool. */
struct fr_pool *fr_pool_adopt_new(CUmemoryPool handle, CUdevice device, int card);
void fr_pool_gone(struct fr_pool *p); /* the driver has destroyed it */

void fr_pool_done(struct fr_pool *p);
bool fr_pool_make_object(struct fr_pool *p, struct fr_key key); /* other processes may hold the pool by this key; false: the table is full */
uint64_t fr_pool_chunk(struct fr_pool *p);
void fr_pool_settle(struct fr_pool *p); /* sets the charge to what the pool has */
void fr_pool_settle_within(struct fr_pool *p); /* the same, inside a free that the caller has announced for the pool's card */
uint64_t fr_pool_worst(const struct fr_pool *p, size_t size); /* the most by which an allocation can increase the charge */

/* One attempt to allocate. `op` has reserved `worst`; it is ended in every case. False: the charge went down meanwhile and more
 * has to be reserved; the driver was not called. */
struct fr_pool_request {
    struct fr_pool *pool;
    size_t size;
    CUstream stream;
    CUdeviceptr *out;
    CUresult result; /* the driver's */
    struct fr_retry patience; /* for all attempts */
};
bool fr_pool_allocate(struct fr_pool_request *q, struct fr_op *op);

/* Reserves and allocates. False: there is no room for the growth. With `patiently` it waits for running calls that may free
 * some. */
bool fr_pool_attempt(struct fr_pool_request *q, bool patiently);
bool fr_pool_is_empty(struct fr_pool *p);   /* it holds no memory at all */
uint64_t fr_pool_unused(struct fr_pool *p); /* reserved bytes that are not in use, perhaps in small parts */
bool fr_pool_can_be_capped(void);           /* the driver supports pools with a largest size */

struct fr_pool *fr_pool_next(struct fr_pool *before, int card); /* of the card, held; FR_NO_CARD: of any card. The previous one is let go */
bool fr_pool_could_shrink(struct fr_pool *p);
uint64_t fr_pools_charged(void); /* cards on which pools of this process hold memory, as a bit set */

#endif
