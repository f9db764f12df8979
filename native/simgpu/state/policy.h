/* Policies: the choices that a driver makes and does not document, such as how it packs, grows and shrinks memory, and when it takes it. One
 * number chooses all of them, so that the library is tested with drivers whose choices it cannot know.
 *
 *     SIMGPU_POLICY=0 (or unset)    the fixed choices that simgpu had before there were policies
 *     SIMGPU_POLICY=SEED            choices drawn from the seed, all within the table of bounds of docs/develop/simgpu.md
 *     SIMGPU_POLICY=wild[:SEED]     choices drawn from the seed that exceed those bounds
 *
 * The choices are computed by arithmetic alone: a seed means the same policy in every process and on every machine. A process reads its
 * policy once, at cuInit. `simgpu-ctl policy SEED` prints it. */
#ifndef SIMGPU_POLICY_H
#define SIMGPU_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Which of the free places that are large enough is used. */
enum sim_fit { SIM_FIT_FIRST, SIM_FIT_BEST, SIM_FIT_RANDOM };

/* When linear memory passed to cuMemFreeAsync is freed. */
enum sim_free_async {
    SIM_FREE_WAITS,     /* the call waits for the context's work, then frees */
    SIM_FREE_AT_ONCE,   /* in the call, without waiting */
    SIM_FREE_IN_STREAM, /* when the stream's work before it is done; noticed at any later call */
    SIM_FREE_AT_SYNC,   /* when a synchronisation of that stream or of its context returns */
};

/* When a pool gives back unused chunks, down to its release threshold. In every policy it also does so at cuMemPoolTrimTo. */
enum sim_shrink { SIM_SHRINK_AT_SYNC, SIM_SHRINK_AT_FREE, SIM_SHRINK_AT_ALLOC, SIM_SHRINK_AT_ANY_CALL, SIM_SHRINK_AT_TRIM };

/* When the card's memory for a graph's allocation nodes is taken; at the latest with the launch. */
enum sim_graph_when { SIM_GRAPH_AT_LAUNCH, SIM_GRAPH_AT_UPLOAD, SIM_GRAPH_AT_INSTANTIATE };

/* When code is loaded. */
enum sim_loading { SIM_LOADING_BY_ENVIRONMENT, SIM_LOADING_LAZY, SIM_LOADING_EAGER };

/* When the memory for a buffer whose size cuCtxSetLimit changed is taken. */
enum sim_when { SIM_AT_SET_LIMIT, SIM_AT_FIRST_USE };

struct sim_policy {
    uint64_t seed; /* 0: the fixed policy */
    bool wild;

    /* ---- linear memory (cuda/memory.c) ---- */
    uint32_t small_below;  /* bytes: smaller allocations of a context share blocks of 2 MiB, others take whole granules; 0: no sharing */
    uint32_t small_unit;   /* bytes: pieces of a shared block are multiples of this */
    bool small_classes;    /* only pieces of similar size, by powers of two, share a block */
    enum sim_fit small_fit; /* place of a piece among a context's shared blocks */
    uint32_t linear_percent; /* of the rounded size that linear, pitched and managed memory takes; above 100 only when wild */
    enum sim_free_async linear_free_async;

    /* ---- pools (cuda/pool.c) ---- */
    enum sim_fit pool_fit;
    uint32_t pool_step;     /* bytes: a new chunk is the request rounded up to this, a multiple of 2 MiB and at most 32 MiB */
    bool pool_doubles;      /* each new chunk is twice the newest one, but no more than the request rounded up to 32 MiB */
    enum sim_shrink pool_shrink;
    uint32_t pool_shrink_every; /* calls between two checks, for SIM_SHRINK_AT_ANY_CALL */
    bool pool_reuse_at_sync; /* memory that another stream freed is reused only after a synchronisation, not when its work is done */
    uint32_t pool_percent;  /* a new chunk, in percent of the request rounded up to 32 MiB; above 100 only when wild */

    /* ---- graph memory (cuda/graph.c) ---- */
    bool graph_reuse;       /* a graph reuses memory if its edges put the free first; else every node has its own */
    bool graph_shared;      /* executable graphs of a process and device share memory; else each keeps its own until a trim */
    enum sim_graph_when graph_when;
    uint32_t graph_step;    /* bytes: growth is rounded up to this; above 2 MiB only when wild */
    uint32_t graph_percent; /* growth, in percent of the allocation nodes' sum rounded up to 32 MiB; above 100 only when wild */

    /* ---- modules (cuda/module.c) ---- */
    enum sim_loading module_loading;
    bool module_packed;     /* pieces of code share a context's blocks of 2 MiB; false, only when wild: each has its own */
    bool module_newest;     /* a piece goes behind the last one in the newest block or into a new block; else into any block that has room */
    uint32_t module_unit;   /* bytes: a piece is rounded up to this; a function of an image that is already loaded, to 4 KiB at most */
    bool module_functions;  /* functions are loaded one by one if the image tells them apart; else all with the first */
    bool module_handles;    /* cuModuleGetFunction loads the function, as drivers before 12.2 did */
    bool module_asks;       /* a query of its attributes or occupancy loads a function */
    bool module_nodes;      /* adding a function to a graph node loads it */
    uint32_t module_percent; /* of the code's and the variables' bytes; above 100 only when wild */

    /* ---- contexts (cuda/context.c) ---- */
    uint32_t context_percent; /* of the reported size (contextMiB); above 100 only when wild */
    enum sim_when stack_when, printf_when, heap_when;

    /* ---- time: where threads run while other threads are inside a call (cuda/core.c) ---- */
    uint32_t yield_percent; /* percentage of calls that let other threads run before and after their work */
    uint32_t delay_ns;      /* the longest time that such a call also waits; not under the virtual clock */
};

/* False: the text is not a policy. NULL and "" mean the fixed policy. */
bool sim_policy_read(const char *text, struct sim_policy *out);
void sim_policy_draw(uint64_t seed, bool wild, struct sim_policy *out);
void sim_policy_print(const struct sim_policy *p, FILE *to);

/* Is the policy within the table of bounds? */
bool sim_policy_bounded(const struct sim_policy *p);

/* A number that depends only on its arguments; used for the choices that a policy makes at run time. */
uint64_t sim_policy_hash(uint64_t seed, uint64_t n);

#endif
