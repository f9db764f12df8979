/* Questions to the driver about what a call has made, while another thread may end the context.
 *
 * A primary context may be reset while other threads work in it. What such a thread has just got from the driver may be dead, and the
 * driver may crash when it is asked about it. So a call that is about to end a context announces it, and waits for the threads that are asking. A
 * call that began before that, or before the driver has ended the context, asks no more.
 *
 * Contexts are counted by a hash of their handles. Where two have the same one, a call may not ask though it could. */
#include "memory/context_ends.h"

#include "base/compiler.h"
#include "base/kernel.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "memory/api_memory.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PLACES 1024
#define NAP_US 50
#define A_WHILE_MS 4000 /* for a driver that hangs; hundreds of threads on two processors take more than a second for a call */

static FR_LARGE struct { _Atomic uint32_t ends, ending, asking; } places[PLACES];
static struct fr_once begun;

static void nobody_yet(void) /* a forked child has none of its parent's threads */
{
    for (int i = 0; i < PLACES; i++) atomic_store(&places[i].ending, 0), atomic_store(&places[i].asking, 0);
}

static unsigned place_of(CUcontext context)
{
    fr_once(&begun, nobody_yet);
    return (unsigned)((uintptr_t)context * 0x9E3779B97F4A7C15ull >> 54);
}

void fr_question_prepare(struct fr_question *q, CUcontext context)
{
    unsigned i = place_of(context);
    q->context = context;
    q->ends = atomic_load(&places[i].ends);            /* before `ending`: that is raised first */
    if (atomic_load(&places[i].ending)) q->ends--;     /* which makes it differ for good */
}

bool fr_may_ask(const struct fr_question *q)
{
    unsigned i = place_of(q->context);
    atomic_fetch_add(&places[i].asking, 1);
    if (likely(atomic_load(&places[i].ends) == q->ends)) return true;
    atomic_fetch_sub(&places[i].asking, 1);
    return false;
}

void fr_asked(const struct fr_question *q) { atomic_fetch_sub(&places[place_of(q->context)].asking, 1); }

void fr_context_end_begins(CUcontext context)
{
    unsigned i = place_of(context);
    atomic_fetch_add(&places[i].ending, 1);
    atomic_fetch_add(&places[i].ends, 1);
    uint32_t until = fr_coarse_ms() + A_WHILE_MS;
    while (atomic_load(&places[i].asking) && (int32_t)(until - fr_coarse_ms()) > 0) fr_sleep_us(NAP_US);
}

void fr_context_end_is_over(CUcontext context) { atomic_fetch_sub(&places[place_of(context)].ending, 1); }

bool fr_current_context_lives(void)
{
    unsigned long long number;
    return !fr_driver_has(FR_cuCtxGetId) || !REAL(cuCtxGetId)(NULL, &number);
}
