/* Pools: declarations shared by pool.c, pool_chunks.c and pool_share.c. */
#ifndef SIMGPU_POOL_H
#define SIMGPU_POOL_H

#include "local.h"

struct sim_piece {
    struct sim_pool *pool; /* must be first: cuPointerGetAttribute reads it here */
    struct sim_chunk *chunk;
    size_t offset, size;
    bool used;
    uint32_t context, generation; /* freed in a stream of this context ... */
    uint64_t seq, stream;         /* ... after this work */
    struct sim_piece *next;
};

struct sim_chunk {
    uint32_t charge;
    uint64_t va;
    size_t size;
    struct sim_bytes *bytes;
    struct sim_piece *pieces; /* by offset, without gaps */
    struct sim_chunk *next;
};

struct sim_pool {
    uint32_t magic;
    int device;
    bool is_default, destroyed, imported, on_host; /* on_host: it takes no memory of the card */
    uint32_t allowance; /* charge without bytes for memory that was freed in calls unrelated to the pool ... */
    uint64_t unseen;    /* ... and how many bytes that was */
    uint32_t name; /* charge without bytes, whose object names the pool to other processes */
    CUmemPoolProps props;
    uint64_t threshold, reserved, reserved_high, used, used_high, max_size;
    int reuse[3];
    struct sim_chunk *chunks;
    struct sim_pool *next;
};

struct sim_pool *sim_pool_make(int device, const CUmemPoolProps *props);
void sim_pool_list(struct sim_pool *pool);
void sim_pool_trim(struct sim_pool *pool, uint64_t keep);
void sim_pool_seen(struct sim_pool *pool); /* from now on a library can know the pool's size */
void sim_pool_bury(struct sim_pool *pool);

#endif
