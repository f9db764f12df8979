/* The sum of a card, and which requests are granted. */
#include "ledger_check.h"

#include "ledger/account.h"
#include "ledger/descriptor.h"
#include "ledger/frees.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/oom_retry.h"
#include "ledger/own_account.h"
#include "ledger/process.h"
#include "ledger/reap.h"
#include "ledger/shared.h"

#include "cuda_abi.h"
#include "region.h"
#include "slice.h"

#include <pthread.h>
#include <stdatomic.h>

static void what_fits_exactly_is_granted_and_one_byte_more_is_not(void)
{
    make_container(64 * MIB, 1, 16);
    EXPECT(take(0, 63 * MIB));
    EXPECT(!take(0, MIB + 1));
    EXPECT(take(0, MIB));
    EXPECT_EQ(fr_used(0), 64 * MIB);
    EXPECT(!take(0, 1));
    give(0, 64 * MIB);
    EXPECT_EQ(fr_used(0), 0);
    EXPECT(take(0, 64 * MIB));
}

static void what_was_reserved_and_not_taken_goes_back(void)
{
    struct fr_op op;
    make_container(64 * MIB, 1, 16);
    EXPECT_EQ(fr_op_begin(&op, 0, 32 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(fr_used(0), 32 * MIB);
    fr_op_end(&op, 2 * MIB);
    EXPECT_EQ(fr_used(0), 2 * MIB);
    EXPECT_EQ(fr_used_here(0), 2 * MIB);
    EXPECT_EQ(fr_op_begin(&op, 0, 62 * MIB), CUDA_SUCCESS);
    fr_op_end(&op, 0);
    EXPECT_EQ(fr_used(0), 2 * MIB);
    EXPECT_EQ(atomic_load(&fr_own_account(0)->slack), 0);
}

static void more_can_be_reserved_inside_an_operation(void)
{
    struct fr_op op;
    make_container(64 * MIB, 1, 16);
    EXPECT_EQ(fr_op_begin(&op, 0, 32 * MIB), CUDA_SUCCESS);
    EXPECT(fr_op_more(&op, 32 * MIB));
    EXPECT(!fr_op_more(&op, 1));
    fr_op_end(&op, 40 * MIB);
    EXPECT_EQ(fr_used(0), 40 * MIB);
}

static void a_reservation_is_split_into_operations_of_their_own(void)
{
    struct fr_op op, part, rest;
    make_container(64 * MIB, 1, 16);
    EXPECT_EQ(fr_op_bytes(0), 0);
    EXPECT_EQ(fr_op_bytes(513), 1024);
    EXPECT_EQ(fr_op_begin(&op, 0, 48 * MIB), CUDA_SUCCESS);
    fr_op_split(&op, &part, 16 * MIB - 1);
    EXPECT_EQ(part.reserved, 16 * MIB);
    EXPECT_EQ(op.reserved, 32 * MIB);
    EXPECT_EQ(fr_used(0), 48 * MIB);
    fr_op_split(&op, &rest, 40 * MIB); /* no more than there is */
    EXPECT_EQ(rest.reserved, 32 * MIB);
    EXPECT_EQ(op.reserved, 0);
    fr_op_end(&part, 10 * MIB);
    EXPECT_EQ(fr_used(0), 42 * MIB);
    EXPECT(fr_op_more(&op, 22 * MIB));
    fr_op_end(&rest, 0);
    fr_op_end(&op, 22 * MIB);
    EXPECT_EQ(fr_used(0), 32 * MIB);
    EXPECT_EQ(atomic_load(&fr_own_account(0)->slack), 0);
}

static void bytes_are_rounded_up_to_units(void)
{
    make_container(4 * KIB, 1, 16);
    EXPECT(take(0, 1));
    EXPECT_EQ(fr_used(0), 512);
    EXPECT(take(0, 513));
    EXPECT_EQ(fr_used(0), 3 * 512);
    give(0, 1);
    give(0, 513);
    EXPECT_EQ(fr_used(0), 0);
}

static void a_request_beyond_every_card_is_refused_at_once(void)
{
    make_container(1ull << 40, 1, 16);
    double start = seconds();
    EXPECT(!take(0, UINT64_MAX));
    EXPECT(!take(0, 1ull << 63));
    EXPECT(!take(0, (1ull << 40) + 1));
    EXPECT(seconds() - start < 0.08); /* it does not wait for other calls */
    EXPECT(take(0, 1ull << 40));
    EXPECT_EQ(atomic_load(&fr_shared.cards[0].refusals), 3);
}

static void giving_back_what_was_never_taken_makes_no_sum_negative(void)
{
    make_container(64 * MIB, 1, 16);
    EXPECT(take(0, MIB));
    give(0, 2 * MIB);
    EXPECT_EQ(fr_used(0), MIB);
    EXPECT_EQ(atomic_load(&fr_shared.region->escapes), 1);
    EXPECT(take(0, 63 * MIB));
}

static void a_card_that_is_not_the_containers_gives_nothing(void)
{
    struct fr_op op;
    make_container(64 * MIB, 2, 16);
    EXPECT(!take(2, 1));
    EXPECT(!take(FR_NO_CARD, 1));
    fr_free_begin(&op, FR_NO_CARD);
    fr_free_end(&op, 1);
    fr_charge(7, MIB);
    EXPECT_EQ(fr_used(2) + fr_used(-1) + fr_used_here(9), 0);
    EXPECT(take(1, 64 * MIB));
    EXPECT_EQ(fr_used(0), 0);
}

static void a_quota_of_nothing_gives_nothing(void)
{
    make_container(0, 1, 16);
    EXPECT(!take(0, 1));
    EXPECT(take(0, 0));
}

static void what_cannot_be_undone_is_counted_above_the_quota_too(void)
{
    make_container(4 * MIB, 1, 16);
    EXPECT(take(0, 3 * MIB));
    fr_charge(0, 3 * MIB);
    EXPECT_EQ(fr_used(0), 6 * MIB);
    EXPECT(!take(0, 1));
    give(0, 4 * MIB);
    EXPECT(take(0, 2 * MIB));
}

/* The bytes that the node's audit found beyond the ledger. */
static void what_is_held_beyond_the_ledger_is_taken_off_the_quota(void)
{
    struct slice_request *r = make_container(64 * MIB, 1, 16);
    EXPECT(take(0, 16 * MIB));
    r->cards[0] = (struct slice_card){.uuid = "GPU-0", .unaccounted = 40 * MIB, .given = GIVEN_UNACCOUNTED};
    EXPECT_EQ(slice_set(r), 0);
    EXPECT(!take(0, 9 * MIB));
    EXPECT(take(0, 8 * MIB));
    EXPECT(!take(0, 1));
    EXPECT_EQ(fr_used(0), 24 * MIB); /* the ledger itself has only the bytes that the library saw */
    r->cards[0].unaccounted = 1ull << 60;
    EXPECT_EQ(slice_set(r), 0);
    EXPECT(!take(0, 1));
    give(0, 24 * MIB);
    EXPECT(!take(0, 1));
    r->cards[0].unaccounted = 0;
    EXPECT_EQ(slice_set(r), 0);
    EXPECT(take(0, 64 * MIB));
}

static void a_new_quota_holds_for_the_next_call(void)
{
    struct slice_request *r = make_container(4 * MIB, 1, 16);
    EXPECT(take(0, 4 * MIB));
    set_memory(r, 8 * MIB);
    EXPECT(take(0, 4 * MIB));
    set_memory(r, 2 * MIB);
    EXPECT(!take(0, 1));
    give(0, 7 * MIB);
    EXPECT(take(0, MIB));
    EXPECT(!take(0, 1));
}

static void switched_off_it_counts_and_refuses_nothing(void)
{
    struct slice_request *r = make_container(4 * MIB, 1, 16);
    EXPECT_EQ(fr_process_state(), FR_ENFORCE);
    r->off = 1;
    EXPECT_EQ(slice_set(r), 0);
    EXPECT_EQ(fr_process_state(), FR_OFF);
    EXPECT(take(0, 100 * MIB));
    EXPECT_EQ(fr_used(0), 100 * MIB);
    EXPECT(take(FR_NO_CARD, MIB));
    r->off = 0;
    EXPECT_EQ(slice_set(r), 0);
    EXPECT(!take(0, 1));
}

static void the_peak_is_what_was_kept(void)
{
    struct fr_op op;
    make_container(64 * MIB, 1, 16);
    EXPECT(take(0, 8 * MIB));
    EXPECT_EQ(fr_op_begin(&op, 0, 50 * MIB), CUDA_SUCCESS);
    fr_op_end(&op, MIB);
    give(0, 9 * MIB);
    EXPECT_EQ(atomic_load(&fr_shared.cards[0].peak) * FR_UNIT_BYTES, 9 * MIB);
}

/* ---- before out of memory is returned ---- */

static struct fr_op on_its_way;

static void *end_soon(void *kept)
{
    usleep(3000);
    fr_op_end(&on_its_way, (uint64_t)(uintptr_t)kept);
    return NULL;
}

static void *free_soon(void *bytes)
{
    usleep(3000);
    fr_free_end(&on_its_way, (uint64_t)(uintptr_t)bytes);
    return NULL;
}

static void a_refusal_waits_for_what_a_call_on_its_way_will_not_need(void)
{
    pthread_t t;
    make_container(64 * MIB, 1, 16);
    EXPECT_EQ(fr_op_begin(&on_its_way, 0, 64 * MIB), CUDA_SUCCESS);
    pthread_create(&t, NULL, end_soon, (void *)(uintptr_t)(4 * MIB));
    EXPECT(take(0, 60 * MIB));
    pthread_join(t, NULL);
    EXPECT_EQ(fr_used(0), 64 * MIB);
}

static void a_refusal_waits_for_a_free_that_had_begun(void)
{
    pthread_t t;
    make_container(64 * MIB, 1, 16);
    EXPECT(take(0, 64 * MIB));
    fr_free_begin(&on_its_way, 0);
    pthread_create(&t, NULL, free_soon, (void *)(uintptr_t)(64 * MIB));
    EXPECT(take(0, 60 * MIB));
    pthread_join(t, NULL);
}

/* The first two frees refund nothing. The last one began after the request had looked for frees once more, and the driver has already freed its
 * memory. */
static void *free_one_within_the_other(void *unused)
{
    struct fr_op second, last;
    usleep(20000);
    fr_free_begin(&second, 0);
    fr_free_end(&on_its_way, 0);
    usleep(40000);
    fr_free_begin(&last, 0);
    fr_free_most(&last, 64 * MIB);
    fr_free_end(&second, 0);
    usleep(40000);
    fr_free_end(&last, 64 * MIB);
    return unused;
}

static void a_refusal_waits_for_every_free_that_says_how_much_it_gives_back(void)
{
    pthread_t t;
    make_container(64 * MIB, 1, 16);
    EXPECT(take(0, 64 * MIB));
    for (int i = 0; i < 5; i++) {
        fr_free_begin(&on_its_way, 0);
        pthread_create(&t, NULL, free_one_within_the_other, NULL);
        EXPECT(take(0, 64 * MIB));
        pthread_join(t, NULL);
    }
    EXPECT_EQ(atomic_load(&fr_own_account(0)->slack), 0);
}

static _Atomic bool done;

static void *free_nothing_again_and_again(void *none)
{
    struct fr_op op[2];
    unsigned i = 0;
    fr_free_begin(&op[0], 0);
    while (!atomic_load(&done)) { /* each begins before the previous one ends, so one is in progress at any time */
        i ^= 1;
        fr_free_begin(&op[i], 0);
        fr_free_end(&op[i ^ 1], 0);
    }
    fr_free_end(&op[i], 0);
    return none;
}

/* Frees that begin and end meanwhile are not the one that the refusal waits for, and it need not wait for them. */
static void a_refusal_waits_for_that_free_and_not_for_later_ones(void)
{
    pthread_t t, others[2];
    make_container(64 * MIB, 1, 16);
    EXPECT(take(0, 64 * MIB));
    for (int i = 0; i < 2; i++) pthread_create(&others[i], NULL, free_nothing_again_and_again, NULL);
    for (int i = 0; i < 20; i++) {
        fr_free_begin(&on_its_way, 0);
        pthread_create(&t, NULL, free_soon, (void *)(uintptr_t)(64 * MIB));
        EXPECT(take(0, 64 * MIB));
        pthread_join(t, NULL);
    }
    double start = seconds();
    EXPECT(!take(0, MIB));
    EXPECT(seconds() - start < 1);
    atomic_store(&done, true);
    for (int i = 0; i < 2; i++) pthread_join(others[i], NULL);
    EXPECT(!fr_frees_any(atomic_load(&fr_own_account(0)->frees)));
}

static void a_refusal_waits_no_longer_than_that(void)
{
    make_container(64 * MIB, 1, 16);
    EXPECT(take(0, 64 * MIB));
    fr_free_begin(&on_its_way, 0); /* and never ends */
    double start = seconds();
    EXPECT(!take(0, MIB));
    EXPECT(seconds() - start > 0.09 && seconds() - start < 5);
}

static void patience_outlasts_a_wait_for_a_processor_and_ends(void)
{
    struct fr_retry patience = {0};
    double start = seconds();
    while (fr_retry_wait(&patience)) {}
    EXPECT(seconds() - start > 1); /* at a load of 50 the awaited process ran again after 0.3 s */
    EXPECT(seconds() - start < 5);
}

static void a_refusal_that_nothing_on_its_way_can_change_comes_at_once(void)
{
    make_container(64 * MIB, 1, 16);
    EXPECT(take(0, 62 * MIB));
    EXPECT_EQ(fr_op_begin(&on_its_way, 0, MIB), CUDA_SUCCESS); /* even without its slack it would not fit */
    double fastest = 1;
    for (int i = 0; i < 10; i++) {
        double start = seconds();
        EXPECT(!take(0, 3 * MIB));
        if (seconds() - start < fastest) fastest = seconds() - start;
    }
    EXPECT(fastest < 0.01);
}

static void a_refusal_counts_what_the_dead_held_as_free(void)
{
    make_container(64 * MIB, 1, 16);
    EXPECT(take(0, MIB));
    int status = wait_for(IN_CHILD(EXPECT(take(0, 63 * MIB)); raise(SIGKILL)));
    EXPECT(WIFSIGNALED(status));
    EXPECT_EQ(fr_used_units(0) * FR_UNIT_BYTES, 64 * MIB);
    EXPECT(take(0, 63 * MIB));
    EXPECT_EQ(sum_of_charges(0), 64 * MIB);
}

/* ---- sequences and damage ---- */

static void sequences_come_round(void)
{
    make_container(64 * MIB, 1, 16);
    for (unsigned i = 0; i < 1200000; i++) {
        EXPECT(take(0, MIB));
        give(0, MIB);
    }
    EXPECT_EQ(fr_used(0), 0);
    EXPECT_EQ(sum_of_charges(0), 0);
}

/* Another account saw operation q applied. 2^19 operations later the sequence is q again, the operation is begun, and its process dies. */
static void an_old_record_of_a_sequence_is_not_believed_when_it_comes_round(void)
{
    make_container(64 * MIB, 1, 16);
    EXPECT(take(0, MIB));
    struct fr_account *a = fr_own_account(0);
    uint64_t q = atomic_load(&a->charged) & FR_SEQUENCE_MASK;
    atomic_store(&a->applied, q);
    while ((atomic_load(&a->charged) & FR_SEQUENCE_MASK) != ((q - 1) & FR_SEQUENCE_MASK)) {
        fr_account_add(fr_shared.slot, 0, 1, FR_UNITS_MOST);
        if ((atomic_load(&a->charged) & FR_SEQUENCE_MASK) == ((q - 1) & FR_SEQUENCE_MASK)) break;
        fr_account_add(fr_shared.slot, 0, -1, FR_UNITS_MOST);
    }
    uint64_t value = fr_charged_units(a);
    atomic_store(&a->intent, 8ull << FR_SEQUENCE_BITS | q); /* + 8 units, begun */
    fr_account_recover(fr_shared.slot, 0);
    EXPECT_EQ(fr_charged_units(a), value);
}

static void a_scribbled_sum_refuses_and_neither_crashes_nor_hangs(void)
{
    static const uint64_t scribbles[] = {UINT64_MAX, 1ull << 63, 0x7FFull << 19, (64ull + 1024) << 19, 20ull << 19, 0x3FFFFFFFFull << 30};
    make_container(64 * MIB, 1, 16);
    EXPECT(take(0, MIB));
    uint64_t sound = atomic_load(&fr_shared.cards[0].used);
    for (size_t i = 0; i < sizeof scribbles / sizeof *scribbles; i++) {
        atomic_store(&fr_shared.cards[0].used, scribbles[i]);
        EXPECT(!take(0, MIB));
        give(0, MIB);
        fr_used(0);
        fr_charge(0, 1);
        atomic_store(&fr_shared.cards[0].used, sound);
    }
}

static void overwritten_slots_and_objects_cause_no_crash_and_no_hang(void)
{
    unsigned char *p;
    make_container(64 * MIB, 2, 16);
    EXPECT(take(0, MIB));
    for (unsigned round = 0; round < 20; round++) {
        srand(round);
        size_t from = sizeof(struct fr_region), size = fr_shared.region->size;
        for (p = (unsigned char *)fr_shared.region + from; p < (unsigned char *)fr_shared.region + size; p++) *p = (unsigned char)(round < 2 ? 255 * (int)round : rand());
        atomic_store(&fr_shared.region->object_lock, (uint32_t)rand());
        atomic_store(&fr_shared.region->slot_high, (uint32_t)rand());
        take(0, MIB), give(0, MIB), fr_used(1);
        int o = fr_object_share(0, MIB, (struct fr_key){round, 1});
        fr_object_join((struct fr_key){0, 0});
        fr_object_leave(o);
        fr_reap();
    }
    EXPECT(fr_shared.region->size > 0);
}

/* ---- many at once ---- */

#define CROWD 8
#define CROWD_OPERATIONS 40000
static _Atomic uint64_t *most_seen;

static void churn(unsigned seed)
{
    uint64_t held = 0;
    EXPECT_EQ(fr_process_state(), FR_ENFORCE);
    for (unsigned i = 0; i < CROWD_OPERATIONS; i++) {
        uint64_t bytes = ((uint64_t)rand_r(&seed) % 16 + 1) * MIB;
        struct fr_op op;
        if (rand_r(&seed) % 2 && held >= bytes) give(0, bytes), held -= bytes;
        else if (fr_reserve(0, bytes / FR_UNIT_BYTES)) {
            op.card = 0;
            op.reserved = bytes;
            uint64_t kept = rand_r(&seed) % 3 ? bytes : bytes / 2;
            fr_op_end(&op, kept);
            held += kept;
        }
        uint64_t used = fr_used_units(0), seen = atomic_load(most_seen);
        while (seen < used && !atomic_compare_exchange_weak(most_seen, &seen, used)) {}
        if (i % 1000 == 0) EXPECT_EQ(fr_used_here(0), held);
    }
    EXPECT_EQ(fr_used_here(0), held);
    give(0, held);
    EXPECT_EQ(fr_used_here(0), 0);
}

static void a_crowd_of_processes_never_passes_the_quota_and_loses_no_charge(void)
{
    pid_t crowd[CROWD];
    make_container(100 * MIB, 1, 16);
    most_seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fr_process_attach();
    for (unsigned i = 0; i < CROWD; i++) crowd[i] = IN_CHILD(churn(i + 1));
    for (unsigned i = 0; i < CROWD; i++) EXPECT_EQ(wait_for(crowd[i]), 0);
    EXPECT(atomic_load(most_seen) * FR_UNIT_BYTES > 90 * MIB);
    EXPECT(atomic_load(most_seen) * FR_UNIT_BYTES <= 100 * MIB);
    EXPECT_EQ(fr_used_units(0), 0);
}

static void *churn_thread(void *seed)
{
    unsigned s = (unsigned)(uintptr_t)seed;
    uint64_t held = 0;
    for (unsigned i = 0; i < CROWD_OPERATIONS / 4; i++) {
        uint64_t bytes = ((uint64_t)rand_r(&s) % 16 + 1) * MIB;
        if (rand_r(&s) % 2 && held >= bytes) give((int)(s % 2), 0), give(0, bytes), held -= bytes;
        else if (fr_reserve(0, bytes / FR_UNIT_BYTES)) {
            struct fr_op op = {.card = 0, .reserved = bytes};
            fr_op_end(&op, bytes);
            held += bytes;
        }
        if (i % 64 == 0) fr_used(0);
    }
    give(0, held);
    return NULL;
}

static void threads_of_a_process_lose_no_charge(void)
{
    pthread_t t[6];
    make_container(100 * MIB, 2, 16);
    EXPECT_EQ(fr_process_state(), FR_ENFORCE);
    for (unsigned i = 0; i < 6; i++) pthread_create(&t[i], NULL, churn_thread, (void *)(uintptr_t)(i + 1));
    for (unsigned i = 0; i < 6; i++) pthread_join(t[i], NULL);
    EXPECT_EQ(fr_used(0), 0);
    EXPECT_EQ(sum_of_charges(0), 0);
    EXPECT_EQ(atomic_load(&fr_own_account(0)->slack), 0);
    EXPECT(!fr_frees_any(atomic_load(&fr_own_account(0)->frees)));
}

static double nanoseconds_each(double start, unsigned times)
{
    return (seconds() - start) * 1e9 / times;
}

static void costs(void)
{
    enum { TIMES = 1000000 };
    struct fr_op op;
    make_container(64 * MIB, 1, 16);
    EXPECT(take(0, MIB));
    double start = seconds();
    for (unsigned i = 0; i < TIMES; i++) fr_op_begin(&op, 0, 0), fr_op_end(&op, 0);
    double empty = nanoseconds_each(start, TIMES);
    start = seconds();
    for (unsigned i = 0; i < TIMES; i++) take(0, MIB), give(0, MIB);
    double pair = nanoseconds_each(start, TIMES);
    start = seconds();
    uint64_t sum = 0;
    for (unsigned i = 0; i < TIMES; i++) sum += fr_used(0);
    EXPECT_EQ(sum, TIMES * MIB);
    printf("     fr_op_begin + fr_op_end of nothing %.0f ns; of 1 MiB with its free %.0f ns; fr_used %.1f ns\n", empty, pair, nanoseconds_each(start, TIMES));
#ifndef __SANITIZE_THREAD__
    EXPECT(pair < 2000 && nanoseconds_each(start, TIMES) < 1000);
#endif
}

static int tests(void)
{
    RUN_ALONE(what_fits_exactly_is_granted_and_one_byte_more_is_not);
    RUN_ALONE(what_was_reserved_and_not_taken_goes_back);
    RUN_ALONE(more_can_be_reserved_inside_an_operation);
    RUN_ALONE(a_reservation_is_split_into_operations_of_their_own);
    RUN_ALONE(bytes_are_rounded_up_to_units);
    RUN_ALONE(a_request_beyond_every_card_is_refused_at_once);
    RUN_ALONE(giving_back_what_was_never_taken_makes_no_sum_negative);
    RUN_ALONE(a_card_that_is_not_the_containers_gives_nothing);
    RUN_ALONE(a_quota_of_nothing_gives_nothing);
    RUN_ALONE(what_cannot_be_undone_is_counted_above_the_quota_too);
    RUN_ALONE(what_is_held_beyond_the_ledger_is_taken_off_the_quota);
    RUN_ALONE(a_new_quota_holds_for_the_next_call);
    RUN_ALONE(switched_off_it_counts_and_refuses_nothing);
    RUN_ALONE(the_peak_is_what_was_kept);
    RUN_ALONE(a_refusal_waits_for_what_a_call_on_its_way_will_not_need);
    RUN_ALONE(a_refusal_waits_for_a_free_that_had_begun);
    RUN_ALONE(a_refusal_waits_for_every_free_that_says_how_much_it_gives_back);
    RUN_ALONE(a_refusal_waits_for_that_free_and_not_for_later_ones);
    RUN_ALONE(a_refusal_waits_no_longer_than_that);
    RUN_ALONE(patience_outlasts_a_wait_for_a_processor_and_ends);
    RUN_ALONE(a_refusal_that_nothing_on_its_way_can_change_comes_at_once);
    RUN_ALONE(a_refusal_counts_what_the_dead_held_as_free);
    RUN_ALONE(sequences_come_round);
    RUN_ALONE(an_old_record_of_a_sequence_is_not_believed_when_it_comes_round);
    RUN_ALONE(a_scribbled_sum_refuses_and_neither_crashes_nor_hangs);
    RUN_ALONE(overwritten_slots_and_objects_cause_no_crash_and_no_hang);
    RUN_ALONE(a_crowd_of_processes_never_passes_the_quota_and_loses_no_charge);
    RUN_ALONE(threads_of_a_process_lose_no_charge);
    RUN_ALONE(costs);
    FINISH;
}

int main(void)
{
    return with_directory(tests);
}
