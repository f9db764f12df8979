/* The primary context of a device: made by the driver at the first retain, ended by the last release or a reset.
 *
 * Calls that retain it and calls that let go of it take turns. So a call that finds it alive can rely on that until the call is
 * done, and what a call sets aside in case the context ends is put back before any other call looks. No thread waits for memory
 * during its turn. Only the driver can say whether the context lives (cuDevicePrimaryCtxGetState), because the library cannot
 * know its count: a program may retain it without calling the library (unseen.c). When such a context is found, `booked`
 * changes, so a thread that saw the context dead looks again if that happened in between. */
#include "memory/primary.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/oom_retry.h"
#include "memory/api_memory.h"
#include "memory/context.h"
#include "memory/context_audit.h"
#include "memory/context_cost.h"
#include "memory/context_ends.h"
#include "memory/context_users.h"
#include "memory/eager.h"
#include "memory/green_records.h"
#include "memory/late_free.h"
#include "memory/loaded.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEVICES 64

struct primary {
    CUcontext context;
    int card;
    uint64_t bytes, booked;
    uint32_t holders, leaving;
    uint32_t calls; /* calls that make it or let go of it, until the ledger has what they changed; `ended` counts finished ones */
    uint32_t ended;
    bool charged;
};

static FR_LARGE struct primary primaries[DEVICES];
static FR_LARGE struct fr_mutex turns[DEVICES];
static struct fr_lock lock;
static uint32_t era;

static struct primary *enter(CUdevice device)
{
    fr_lock(&lock);
    if (era != atomic_load(&fr_era)) {
        for (int i = 0; i < DEVICES; i++) primaries[i] = (struct primary){0};
        era = atomic_load(&fr_era);
    }
    return &primaries[device];
}

/* It lives whatever other threads do: some thread holds it and is not releasing it. */
static bool is_sure(const struct primary *p) { return p->charged && p->holders > p->leaving; }

static bool lives(CUdevice device)
{
    struct primary *p = enter(device);
    bool sure = is_sure(p);
    if (sure) p->holders++;
    fr_unlock(&lock);
    return sure;
}

static bool is_held(CUdevice device)
{
    bool sure = is_sure(enter(device));
    fr_unlock(&lock);
    return sure;
}

static void not_held(CUdevice device)
{
    enter(device)->holders--;
    fr_unlock(&lock);
}

/* Sets the primary context's handle. If it was another one before, that context ended without the library, and what was
 * allocated in it is gone. */
static void renew(CUdevice device, CUcontext now)
{
    struct fr_op op;
    struct primary *p = enter(device);
    CUcontext old = p->charged ? p->context : NULL;
    int card = p->card;
    if (p->charged) p->context = now;
    fr_unlock(&lock);
    if (!old || old == now) return;
    fr_free_begin(&op, card);
    fr_free_end(&op, fr_context_reclaim(fr_context_retire(old), card));
}

/* Finds its handle, if a call did not return it. The context is held, or its cost is already charged: even if this call makes
 * it, it is paid for. */
static void learn(CUdevice device)
{
    CUcontext context = NULL;
    if (REAL(cuDevicePrimaryCtxRetain)(&context, device)) return;
    renew(device, context);
    REAL(cuDevicePrimaryCtxRelease_v2)(device);
}

static uint64_t book(CUdevice device, CUcontext context, const struct fr_cost *cost)
{
    struct primary *p = enter(device);
    bool new = !p->charged;
    p->booked++;
    p->holders++;
    if (context) p->context = context;
    if (new) p->charged = true, p->bytes = cost->bytes, p->card = cost->op.card;
    fr_unlock(&lock);
    if (new) fr_context_made(cost->op.card, context);
    if (!context) learn(device);
    return new ? cost->bytes : 0;
}

static CUresult hold_once_more(struct fr_context_call *c)
{
    CUresult r = c->go(c);
    if (r) not_held(c->device);
    else if (c->out) renew(c->device, *c->out);
    return r;
}

/* ---- calls that change what is charged ---- */

static void call_begins(CUdevice device)
{
    enter(device)->calls++;
    fr_unlock(&lock);
}

static void call_ends(CUdevice device)
{
    struct primary *p = enter(device);
    p->calls--;
    p->ended++;
    fr_unlock(&lock);
}

static uint32_t ended_so_far(CUdevice device)
{
    uint32_t ended = enter(device)->ended;
    fr_unlock(&lock);
    return ended;
}

/* Called when there was no room. True if a context exists, or is being made or let go of, or such a call has ended since: then
 * there may soon be room, or nothing to pay for. */
static bool may_change(CUdevice device, uint32_t ended)
{
    struct primary *p = enter(device);
    bool yes = p->charged || p->calls || p->ended != ended;
    fr_unlock(&lock);
    return yes;
}

/* False: more libraries are to be loaded into it than was reserved for, and the reservation was given back. */
static bool make(struct fr_context_call *c, CUresult (*undo)(struct fr_context_call *), struct fr_cost *cost, CUresult *r)
{
    struct fr_load libraries;
    if (!fr_eager_begin(&libraries, c->device, cost)) return false;
    if ((*r = c->go(c))) fr_eager_end(&libraries, NULL);
    bool fits = *r || fr_context_measure(cost);
    if (!fits) {
        undo(c);
        fr_eager_end(&libraries, NULL);
        *r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t booked = *r ? 0 : book(c->device, c->out ? *c->out : NULL, cost);
    fr_op_end(&cost->op, booked);
    if (!fits) fr_context_refused(c->device, 1);
    if (!*r) fr_eager_end(&libraries, booked ? fr_primary_context(c->device) : NULL);
    return true;
}

/* Called during the turn. False: the context has to be made, which must be paid for first. */
static bool hold_living(struct fr_context_call *c, CUresult *r)
{
    bool living = lives(c->device);
    if (living) *r = hold_once_more(c);
    return living;
}

/* Reserves what the call takes, as long as the primary context stays as it was found: costs[0] is for that context, costs[1]
 * for a green one. */
static CUresult reserve(struct fr_cost costs[2], CUdevice device, bool living, bool green, struct fr_retry *patience)
{
    costs[0] = costs[1] = (struct fr_cost){.op.card = FR_NO_CARD};
    if (living) return fr_context_reserve(&costs[1], 1, device, 0, patience);
    return fr_context_reserve(costs, green ? 2 : 1, device, fr_eager_bytes(device), patience);
}

/* Called during the turn, with what `reserve` got. False: the context is not as it was found, and the reservation does not
 * suffice. */
static bool make_or_hold(struct fr_context_call *c, CUresult (*undo)(struct fr_context_call *), struct fr_cost costs[2], bool was_living, CUresult *r)
{
    if (!hold_living(c, r)) return !was_living && make(c, undo, &costs[0], r);
    fr_op_end(&costs[0].op, 0);
    return true;
}

/* A green context needs no room for the primary one while that lives, so the function finds out whether it lives before waiting
 * for room. Nothing is held during the wait: a reservation that did not suffice is given back first. */
CUresult fr_primary_hold(struct fr_context_call *c, CUresult (*undo)(struct fr_context_call *), struct fr_cost *green)
{
    struct fr_cost costs[2];
    struct fr_retry patience = {0};
    CUresult r;
    if (green) *green = (struct fr_cost){.op.card = FR_NO_CARD};
    if (c->device < 0 || c->device >= DEVICES || !fr_device_exists(c->device)) return c->go(c);
    struct fr_mutex *turn = &turns[c->device];
    for (bool done = false, last = false; !done;) {
        uint32_t ended = ended_so_far(c->device);
        fr_mutex_lock(turn);
        bool living = green ? is_held(c->device) : hold_living(c, &r);
        fr_mutex_unlock(turn);
        if (living && !green) return r;
        if ((r = reserve(costs, c->device, living, green, &patience))) {
            if (living || r != CUDA_ERROR_OUT_OF_MEMORY || !may_change(c->device, ended) || last) return fr_context_refused(c->device, green && !living ? 2 : 1);
            last = !fr_retry_wait(&patience); /* looks once more whether it exists now */
            continue;
        }
        call_begins(c->device);
        fr_mutex_lock(turn);
        done = make_or_hold(c, undo, costs, living, &r);
        fr_mutex_unlock(turn);
        call_ends(c->device);
        if (!done || r) fr_op_end(&costs[1].op, 0);
    }
    if (green) *green = costs[1];
    return r;
}

static bool active(CUdevice device)
{
    unsigned flags;
    int on = 0;
    return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &on) == CUDA_SUCCESS && on;
}

/* Has it ended? Then the caller has to give back its charge. */
static bool died(CUdevice device, uint64_t *bytes)
{
    for (;;) {
        uint64_t booked = enter(device)->booked;
        fr_unlock(&lock);
        bool on = active(device);
        struct primary *p = enter(device);
        bool settled = p->booked == booked, gone = settled && !on && p->charged;
        *bytes = gone ? p->bytes : 0;
        if (gone) p->charged = false, p->holders = 0, p->context = NULL;
        fr_unlock(&lock);
        if (settled) return gone;
    }
}

static unsigned long long number_of(CUcontext context)
{
    unsigned long long id = 0;
    return context && fr_driver_has(FR_cuCtxGetId) && !REAL(cuCtxGetId)(context, &id) ? id : 0;
}

struct leaving {
    struct fr_op op;
    CUcontext context, doomed;
    int card;
    unsigned long long number;
};

static bool leave_begin(struct leaving *l, CUdevice device, bool all)
{
    struct primary *p = enter(device);
    bool charged = p->charged;
    *l = (struct leaving){.context = p->context, .card = p->card};
    p->leaving++;
    p->calls++;
    bool last = all || p->holders <= p->leaving;
    fr_unlock(&lock);
    if (!charged) return false;
    if (last && l->context) fr_late_frees_context_ends(l->context);
    fr_free_begin(&l->op, l->card);
    l->number = number_of(l->context);
    if (last && l->context) {
        l->doomed = fr_context_retire(l->context);
        fr_greens_follow(device, l->doomed, false);
        fr_context_end_begins(l->context);
    }
    return true;
}

static void left(CUdevice device, bool gone)
{
    struct primary *p = enter(device);
    p->leaving--;
    if (gone && p->holders) p->holders--;
    fr_unlock(&lock);
}

static CUresult leave(struct fr_context_call *c, bool all)
{
    struct leaving l;
    uint64_t bytes = 0;
    bool known = leave_begin(&l, c->device, all);
    CUresult r = c->go(c);
    if (known && l.doomed) fr_context_end_is_over(l.context);
    left(c->device, !r);
    if (!known) {
        call_ends(c->device);
        return r;
    }
    bool gone = !r && died(c->device, &bytes);
    bool another = !r && !gone && l.number && number_of(l.context) != l.number; /* ended, and was made again meanwhile */
    if (gone && !l.doomed) l.doomed = fr_context_retire(l.context);
    if (gone || (another && l.doomed)) {
        fr_users_wait(l.card);
        if (gone) fr_context_follow(l.context, l.doomed);
        fr_greens_follow(c->device, l.doomed, true);
        bytes += fr_context_reclaim(l.doomed, l.card);
    } else if (l.doomed) {
        fr_context_restore(l.doomed, l.context);
    }
    if (gone) bytes += fr_unseen_take(l.card), fr_contexts_add(l.card, -1);
    fr_free_end(&l.op, bytes);
    call_ends(c->device);
    return r;
}

CUresult fr_primary_leave(struct fr_context_call *c, bool all)
{
    if (c->device < 0 || c->device >= DEVICES) return c->go(c);
    fr_mutex_lock(&turns[c->device]);
    bool turn = fr_eager_ends();
    CUresult r = leave(c, all);
    fr_eager_ended(turn);
    fr_mutex_unlock(&turns[c->device]);
    return r;
}

/* ---- contexts made without the library: unseen.c ---- */

CUcontext fr_primary_context(CUdevice device)
{
    if (device < 0 || device >= DEVICES) return NULL;
    CUcontext context = enter(device)->context;
    fr_unlock(&lock);
    return context;
}

static bool charged(CUdevice device)
{
    bool on = enter(device)->charged;
    fr_unlock(&lock);
    return on;
}

bool fr_primary_unseen(CUdevice device) { return device >= 0 && device < DEVICES && !charged(device) && active(device); }

bool fr_primary_is(CUdevice device, CUcontext context)
{
    if (device < 0 || device >= DEVICES || !charged(device)) return false;
    if (fr_primary_context(device) == context) return true;
    learn(device);
    return fr_primary_context(device) == context;
}

/* The code that made it is counted as its holder. */
bool fr_primary_claim(CUdevice device, int card, uint64_t bytes)
{
    struct primary *p = enter(device);
    bool new = !p->charged;
    if (new) p->charged = true, p->bytes = bytes, p->card = card, p->holders = 1, p->context = NULL, p->booked++;
    fr_unlock(&lock);
    if (new) learn(device);
    return new;
}

/* ---- the calls ---- */

static CUresult retain(struct fr_context_call *c) { return REAL(cuDevicePrimaryCtxRetain)(c->out, c->device); }
static CUresult release(struct fr_context_call *c) { return REAL(cuDevicePrimaryCtxRelease)(c->device); }
static CUresult release_v2(struct fr_context_call *c) { return REAL(cuDevicePrimaryCtxRelease_v2)(c->device); }
static CUresult reset(struct fr_context_call *c) { return REAL(cuDevicePrimaryCtxReset)(c->device); }
static CUresult reset_v2(struct fr_context_call *c) { return REAL(cuDevicePrimaryCtxReset_v2)(c->device); }

HOOK CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    CUcontext held = NULL;
    struct fr_context_call c = {.go = retain, .out = out ? &held : NULL, .device = device};
    CUresult r = out ? fr_primary_hold(&c, release_v2, NULL) : retain(&c);
    if (!r && out) *out = held; /* another thread may change that */
    return r;
}
HOOK CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return fr_primary_leave(&(struct fr_context_call){.go = release, .device = device}, false); }
HOOK CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return fr_primary_leave(&(struct fr_context_call){.go = release_v2, .device = device}, false); }
HOOK CUresult cuDevicePrimaryCtxReset(CUdevice device) { return fr_primary_leave(&(struct fr_context_call){.go = reset, .device = device}, true); }
HOOK CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { return fr_primary_leave(&(struct fr_context_call){.go = reset_v2, .device = device}, true); }

/* The documentation says that a primary context ends with cuDevicePrimaryCtxRelease or a reset, but not what cuCtxDestroy answers
 * for one. If the driver destroys it, what was charged for it goes back. */
static CUresult end(struct fr_context_call *c)
{
    for (c->device = 0; c->context && c->device < DEVICES; c->device++)
        if (fr_primary_context(c->device) == c->context) return fr_primary_leave(c, true);
    return fr_context_end(c);
}

static CUresult destroy(struct fr_context_call *c) { return REAL(cuCtxDestroy)(c->context); }
static CUresult destroy_v2(struct fr_context_call *c) { return REAL(cuCtxDestroy_v2)(c->context); }
static CUresult detach(struct fr_context_call *c) { return REAL(cuCtxDetach)(c->context); }

HOOK CUresult cuCtxDestroy(CUcontext context) { return end(&(struct fr_context_call){.go = destroy, .context = context}); }
HOOK CUresult cuCtxDestroy_v2(CUcontext context) { return end(&(struct fr_context_call){.go = destroy_v2, .context = context}); }
HOOK CUresult cuCtxDetach(CUcontext context) { return end(&(struct fr_context_call){.go = detach, .context = context, .count = 1}); }
