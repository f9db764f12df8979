/* The hooks of graph launches. A graph may allocate memory: see memory/graph.c. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/api_pool.h"
#include "memory/graph.h"
#include "memory/streams.h"
#include "pacing/gate.h"
#include "pacing/stream_state.h"
#include "pacing/wait_calls.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

/* A graph launch is one piece of work on the card, and is paced like a kernel. One that may wait for the program has a batch of its own, so
 * that no other work is taken for waiting. */
#define LAUNCH(name, stream, own)                                                                                                  \
    HOOK CUresult name(CUgraphExec e, CUstream s)                                                                                  \
    {                                                                                                                              \
        if (fr_unpaced()) return likely(fr_graph_is_plain(e)) ? REAL(name)(e, s) : fr_graph_run(e, stream, s, REAL(name));          \
        struct fr_ticket t;                                                                                                        \
        bool may_wait = fr_graph_may_wait(e);                                                                                      \
        if (unlikely(may_wait)) fr_wait_cut(s, own, true);                                                                         \
        fr_gate_enter(&t, &(struct fr_work){(uintptr_t)e, 0, s, own, 0, may_wait});                                                \
        CUresult r = fr_graph_is_plain(e) ? REAL(name)(e, s) : fr_graph_run(e, stream, s, REAL(name));                              \
        fr_gate_leave(&t, r);                                                                                                      \
        return r;                                                                                                                  \
    }
LAUNCH(cuGraphLaunch, s, false)
LAUNCH(cuGraphLaunch_ptsz, fr_per_thread(s), true)
