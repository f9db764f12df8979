/* The region, with arbitrary contents that processes of the container may have written, before and between the calls. The library must stay
 * inside it and come to an end, and must grant nothing that makes the sum exceed the limit. */
#include "../../interposer/ledger/attach.c"

#include "base/lock.h"
#include "ledger/account.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "ledger/limits_page.h"
#include "ledger/objects.h"
#include "ledger/own_account.h"
#include "ledger/process.h"
#include "ledger/reap.h"
#include "ledger/slot_owner.h"

#include <stdlib.h>

#define CARDS 2
#define SLOTS 3
#define OBJECTS 4
#define UNITS 1000 /* the limit of a card */
#define STEP_NS 60000000ull /* the clock advances at every reading, so that no wait takes real time */

static struct fr_limits page;
static bool open_somewhere, playing;

int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    static uint64_t now = 1000000000000ull;
    if (!playing) return __real_clock_gettime(clock, t);
    now += STEP_NS;
    *t = (struct timespec){(time_t)(now / 1000000000), (long)(now % 1000000000)};
    return 0;
}

void fr_say(enum fr_topic topic, const char *format, ...) { (void)topic, (void)format; }
struct fr_region *fr_process_attach_slowly(struct fr_process_page *p) { (void)p; return fr_shared.region; }
bool fr_process_join_slowly(struct fr_process_page *p) { (void)p; return true; }
uint64_t fr_limits_may_hold(int card) { (void)card; return UNITS * FR_UNIT_BYTES; }
void fr_quota(int card, struct fr_quota *out) { (void)card, *out = (struct fr_quota){.memory = UNITS * FR_UNIT_BYTES, .may_hold = UNITS * FR_UNIT_BYTES}; }
bool fr_descriptor_open(struct fr_key key) { (void)key; return open_somewhere; }
void fr_descriptors_open(const struct fr_key *keys, bool *open, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) open[i] = fr_descriptor_open(keys[i]);
}

struct input {
    const uint8_t *at;
    size_t left;
};

static uint64_t take_number(struct input *in, size_t bytes)
{
    uint64_t value = 0;
    size_t n = bytes < in->left ? bytes : in->left;
    memcpy(&value, in->at, n);
    in->at += n, in->left -= n;
    return value;
}

static void scribble(struct fr_region *r, struct input *in)
{
    size_t at = take_number(in, 2) % fr_shared.region->size, n = in->left < 8 ? in->left : 8;
    n = n < fr_shared.region->size - at ? n : fr_shared.region->size - at;
    uint64_t size = r->size; /* for this test's own use */
    memcpy((char *)r + at, in->at, n);
    r->size = size;
    in->at += n, in->left -= n;
}

static void grant(int card, uint64_t bytes, uint64_t kept)
{
    struct fr_op op;
    if (fr_op_begin(&op, card, bytes) != CUDA_SUCCESS) return;
    bool granted = op.reserved != 0; /* an operation of zero bytes is granted even above the limit */
    if (granted && op.card >= 0 && !fr_isolation_is_off() && fr_used_units((uint32_t)op.card) > UNITS) abort();
    if (kept > bytes && fr_op_more(&op, kept - bytes) && op.card >= 0 && !fr_isolation_is_off() && fr_used_units((uint32_t)op.card) > UNITS) abort();
    fr_op_end(&op, kept);
}

static void give_back(int card, uint64_t bytes)
{
    struct fr_op op;
    fr_free_begin(&op, card);
    fr_free_end(&op, bytes);
}

static void call(struct input *in)
{
    uint8_t what = (uint8_t)take_number(in, 1);
    int card = (int)take_number(in, 1) % (CARDS + 1), object = (int)take_number(in, 1) % (OBJECTS + 2) - 1;
    uint64_t bytes = take_number(in, 3);
    struct fr_key key = {what & 0x40 ? FR_KEY_DESCRIPTOR : 7, bytes & 3};
    open_somewhere = what & 0x80;
    switch (what % 16) {
    case 0: scribble(fr_shared.region, in); break;
    case 1: grant(card, bytes, bytes / 2); break;
    case 2: grant(card, bytes / 2, bytes); break;
    case 3: give_back(card, bytes); break;
    case 4: fr_charge(card, bytes); break;
    case 5: fr_used(card), fr_used_here(card); break;
    case 6: fr_object_share(card, bytes, key); break;
    case 7: fr_object_join(key); break;
    case 8: give_back(card, fr_object_leave(object)); break;
    case 9: fr_object_also(object, key); break;
    case 10: fr_object_covers(object), fr_object_card(object), fr_object_resize(object, bytes); break;
    case 11: if (bytes % fr_shared.slot_count != fr_shared.slot) fr_reap_slot((uint32_t)(bytes % fr_shared.slot_count)); break;
    case 12: fr_reap(), fr_reap_if_dead((uint32_t)(bytes % fr_shared.slot_count)); break;
    case 13: fr_slot_over(fr_slot((uint32_t)(bytes % fr_shared.slot_count))); break;
    case 14: fr_objects_free_from((uint32_t)(bytes % fr_shared.slot_count)), fr_contexts_add(card, (int)bytes); break;
    default: page.flags ^= FR_FLAG_ISOLATION_OFF; break;
    }
}

static void play(struct fr_region *r, const struct stat *st, struct input *in)
{
    adopt(r, st);
    fr_shared.slot = (uint32_t)take_number(in, 1) % fr_shared.slot_count;
    atomic_store(&fr_slot(fr_shared.slot)->state, FR_SLOT_LIVE);
    playing = true;
    while (in->left) call(in);
    playing = false;
}

/* The first byte says whether the header is part of the input, too, or the rest is written over a new region. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct fr_region fresh = {.magic = FR_REGION_MAGIC, .version = FR_LAYOUT_VERSION, .header_size = sizeof fresh, .generation = 5,
        .card_count = CARDS, .slot_count = SLOTS, .object_count = OBJECTS, .account_size = sizeof(struct fr_account), .slot_high = 1};
    struct input in = {data, size};
    uint8_t first = (uint8_t)take_number(&in, 1);
    struct stat st = {.st_size = (off_t)size_for(&fresh)};
    struct fr_region *r = calloc(1, (size_t)st.st_size); /* separate memory, so that an access beyond it is detected */
    if (!r) return 0;
    memcpy(r, &fresh, sizeof fresh);
    r->size = (uint64_t)st.st_size;
    if (first & 1) {
        size_t n = in.left < sizeof *r ? in.left : sizeof *r;
        memcpy(r, in.at, n);
        in.at += n, in.left -= n;
    }
    page.region_generation = 5;
    static _Atomic uint32_t joined = 1;
    fr_shared = (struct fr_shared){.limits = &page, .card_count = CARDS, .directory = "/nowhere", .joined = &joined};
    page.flags = 0;
    atomic_fetch_add(&fr_era, 1); /* acts as a new process, so the records of the old one are dropped */
    if (!fault_of(r, &st)) play(r, &st, &in);
    free(r);
    return 0;
}
