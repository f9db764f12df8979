/* Libraries that are loaded into every context: a list of them, for contexts that are made later.
 *
 * If a library is being loaded while a context is being made, each would miss the other, and a context that is being destroyed
 * still holds what the driver loads into it. So these calls take turns. A thread that makes a context does not wait for memory
 * during its turn: the threads that free memory may be waiting for the turn. */
#include "memory/eager.h"

#include "base/lock.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "memory/api_memory.h"
#include "memory/code_room.h"
#include "memory/context_cost.h"
#include "memory/devices.h"
#include "memory/granules.h"
#include "memory/image.h"
#include "memory/loaded.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

static const struct fr_count everything = {0, true};

static struct fr_mutex turn;
static struct fr_lock lock;
static struct { uint64_t *at; size_t count, room; uint32_t era; } eager;

static void enter(void)
{
    fr_lock(&lock);
    if (eager.era != atomic_load(&fr_era)) eager.count = 0, eager.era = atomic_load(&fr_era);
}

bool fr_eager_remember(uint64_t library)
{
    enter();
    if (eager.count == eager.room) {
        size_t room = eager.room ? 2 * eager.room : 512;
        uint64_t *more = mmap(NULL, room * sizeof *more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (more == MAP_FAILED) return fr_unlock(&lock), false;
        for (size_t i = 0; i < eager.count; i++) more[i] = eager.at[i];
        if (eager.room) munmap(eager.at, eager.room * sizeof *more);
        eager.at = more;
        eager.room = room;
    }
    eager.at[eager.count++] = library;
    return fr_unlock(&lock), true;
}

void fr_eager_forget(uint64_t library)
{
    enter();
    for (size_t i = 0; i < eager.count; i++)
        if (eager.at[i] == library) eager.at[i--] = eager.at[--eager.count];
    fr_unlock(&lock);
}

/* 0: no more libraries. */
static uint64_t library_number(size_t i)
{
    enter();
    uint64_t library = i < eager.count ? eager.at[i] : 0;
    fr_unlock(&lock);
    return library;
}

bool fr_loads_eagerly(void)
{
    int mode = 0;
    return fr_driver_has(FR_cuModuleGetLoadingMode) && !REAL(cuModuleGetLoadingMode)(&mode) && mode == 1;
}

void fr_eager_enter(void) { fr_mutex_lock(&turn); }
void fr_eager_leave(void) { fr_mutex_unlock(&turn); }

bool fr_eager_ends(void)
{
    bool eagerly = fr_loads_eagerly();
    if (eagerly) fr_eager_enter();
    return eagerly;
}

void fr_eager_ended(bool taken)
{
    if (taken) fr_eager_leave();
}

uint64_t fr_eager_bytes(CUdevice device)
{
    struct fr_image image;
    uint64_t bytes = 0, library;
    for (size_t i = 0; (library = library_number(i)) && fr_card_of(device) != FR_NO_CARD; i++) {
        if (!fr_module_image(library, &image)) continue;
        struct fr_code code = fr_code_of(&image, everything);
        bytes += code.pieces * FR_GRANULE + code.own + image.globals; /* an upper bound, however the pieces are packed */
    }
    return bytes;
}

bool fr_eager_begin(struct fr_load *l, CUdevice device, struct fr_cost *context)
{
    *l = (struct fr_load){.op.card = FR_NO_CARD};
    fr_eager_enter();
    uint64_t bytes = fr_eager_bytes(device), reserved = context->libraries;
    if (bytes > reserved && !fr_op_more(&context->op, bytes - reserved)) {
        fr_eager_leave();
        fr_op_end(&context->op, 0);
        return false;
    }
    if (bytes < reserved) bytes = reserved;
    if (!bytes) return true;
    l->at = (struct fr_place){.card = fr_card_of(device), .device = device};
    l->counts = true;
    fr_op_split(&context->op, &l->op, bytes);
    return true;
}

void fr_eager_end(struct fr_load *l, CUcontext made)
{
    uint64_t bytes = 0, library;
    if (l->counts) {
        l->at.context = made;
        for (size_t i = 0; made && (library = library_number(i)); i++) bytes += fr_load_note(library, &l->at, FR_CODE | FR_GLOBALS, everything);
        fr_op_end(&l->op, bytes);
    }
    fr_eager_leave();
}
