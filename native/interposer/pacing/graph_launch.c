/* The hooks of graph launches. A graph may allocate memory: see memory/graph.c. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/api_pool.h"
#include "memory/graph.h"
#include "memory/streams.h"
#include "pacing/gate.h"
#include "pacing/stream_state.h"

#include "cuda_abi.h"

#include <stdint.h>

/* A graph launch is one piece of work on the card, and is paced like a kernel. */
#define LAUNCH(name, stream, own)                                                                                                  \
    HOOK CUresult name(CUgraphExec e, CUstream s)                                                                                  \
    {                                                                                                                              \
        if (fr_unpaced()) return likely(fr_graph_is_plain(e)) ? REAL(name)(e, s) : fr_graph_run(e, stream, s, REAL(name));          \
        struct fr_ticket t;                                                                                                        \
        fr_gate_enter(&t, &(struct fr_work){(uintptr_t)e, 0, s, own, 0});                                                          \
        CUresult r = fr_graph_is_plain(e) ? REAL(name)(e, s) : fr_graph_run(e, stream, s, REAL(name));                              \
        fr_gate_leave(&t, r);                                                                                                      \
        return r;                                                                                                                  \
    }
LAUNCH(cuGraphLaunch, s, false)
LAUNCH(cuGraphLaunch_ptsz, fr_per_thread(s), true)
