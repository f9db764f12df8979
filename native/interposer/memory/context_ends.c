/* Lets a call query the driver about what it has made, while another thread may end the context.
 *
 * A primary context may be reset while other threads work in it. What one of these threads has just got from the driver may be
 * dead, and a query about it may crash the driver. So a call that is about to end a context announces this, and waits for the
 * threads that are querying. A call that began before the announcement, or before the driver has ended the context, makes no
 * more queries.
 *
 * The ends are kept in the order in which they began, the last ENDS of them; a call remembers how many ends there had been. If
 * more than ENDS began during one call, or more than ENDING are under way, a call may be denied a query that would be safe; it
 * is then charged as for all of its code. */
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

#define ENDS 4096
#define ENDING 64
#define PLACES 1024
#define NAP_US 50
#define A_WHILE_MS 4000 /* for a driver that hangs; hundreds of threads on two processors take more than a second for a call */

static struct fr_lock lock;
static FR_LARGE struct {
    uint64_t begun; /* number of ends so far */
    CUcontext last[ENDS];
    CUcontext ending[ENDING];
    uint32_t listed, unlisted; /* ends under way: in the list, and without a place in it */
} ends;
static FR_LARGE _Atomic uint32_t asking[PLACES]; /* by a hash of the context: an end may also wait for a query about another context */
static struct fr_once begun;

static void nobody_yet(void) /* a forked child has none of its parent's threads */
{
    for (int i = 0; i < PLACES; i++) atomic_store(&asking[i], 0);
    ends.listed = ends.unlisted = 0;
}

static void enter(void)
{
    fr_once(&begun, nobody_yet);
    fr_lock(&lock);
}

static _Atomic uint32_t *place_of(CUcontext context) { return &asking[(uintptr_t)context * 0x9E3779B97F4A7C15ull >> 54]; }

static uint32_t place_in_list(CUcontext context)
{
    uint32_t i = 0;
    while (i < ends.listed && ends.ending[i] != context) i++;
    return i;
}

static bool may_be_ending(CUcontext context) { return ends.unlisted || place_in_list(context) < ends.listed; }

static bool ended_since(CUcontext context, uint64_t before)
{
    if (ends.begun - before > ENDS) return true;
    for (uint64_t i = before; i < ends.begun; i++)
        if (ends.last[i % ENDS] == context) return true;
    return false;
}

void fr_question_prepare(struct fr_question *q, CUcontext context)
{
    enter();
    *q = (struct fr_question){.context = context, .ends = ends.begun, .too_late = may_be_ending(context)};
    fr_unlock(&lock);
}

bool fr_may_ask(const struct fr_question *q)
{
    enter();
    bool may = !q->too_late && !ended_since(q->context, q->ends);
    if (may) atomic_fetch_add(place_of(q->context), 1);
    fr_unlock(&lock);
    return may;
}

void fr_asked(const struct fr_question *q) { atomic_fetch_sub(place_of(q->context), 1); }

void fr_context_end_begins(CUcontext context)
{
    _Atomic uint32_t *place = place_of(context);
    enter();
    ends.last[ends.begun++ % ENDS] = context;
    if (ends.listed < ENDING) ends.ending[ends.listed++] = context;
    else ends.unlisted++;
    fr_unlock(&lock);
    uint32_t until = fr_coarse_ms() + A_WHILE_MS;
    while (atomic_load(place) && (int32_t)(until - fr_coarse_ms()) > 0) fr_sleep_us(NAP_US);
}

void fr_context_end_is_over(CUcontext context)
{
    enter();
    uint32_t i = place_in_list(context);
    if (i < ends.listed) ends.ending[i] = ends.ending[--ends.listed];
    else if (ends.unlisted) ends.unlisted--;
    fr_unlock(&lock);
}

bool fr_current_context_lives(void)
{
    unsigned long long number;
    return !fr_driver_has(FR_cuCtxGetId) || !REAL(cuCtxGetId)(NULL, &number);
}
