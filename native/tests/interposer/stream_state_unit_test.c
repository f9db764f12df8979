/* The work in flight in each stream, and the events in the streams. Here the test acts as the driver: it decides how far a stream has got, and how
 * much of the card's time passes between two events. */
#include "check.h"

#include "resolve/real.h"
#include "ledger/process.h"
#include "ledger/shared.h"
#include "memory/streams.h"
#include "pacing/blocked_streams.h"
#include "pacing/paced_card.h"
#include "clock.h"
#include "pacing/predict.h"
#include "pacing/stream_state.h"
#include "pacing/stream_wait.h"
#include "pacing/timing_events.h"

#include "cuda_abi.h"

#include <pthread.h>
#include <stdatomic.h>

#define STREAMS 256
#define MS_NS 1000000ull
#define CONTEXT_A ((CUcontext)(uintptr_t)16)

struct event {
    uintptr_t stream;
    unsigned place; /* in its stream; 0: never recorded */
    float ms;       /* the card's time when it was reached */
};

static unsigned recorded[STREAMS], reached[STREAMS], waited;
static float card_ms;
static bool idle; /* the card is done with all work: recorded events are reached */
static CUcontext current = CONTEXT_A;

static struct event *event_at(CUevent e) { return (struct event *)e; }
static bool is_done(CUevent e) { return event_at(e)->place <= reached[event_at(e)->stream]; }
static CUresult create(CUevent *e, unsigned flags) { return (void)flags, *e = calloc(1, sizeof(struct event)), CUDA_SUCCESS; }
static CUresult destroy(CUevent e) { return free(e), CUDA_SUCCESS; }
static CUresult trouble; /* error of events that the program has interfered with */
static CUresult query(CUevent e) { return trouble ? trouble : is_done(e) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; }
static CUresult context_here(CUcontext *c) { return *c = current, CUDA_SUCCESS; }
static CUresult set_context(CUcontext c) { return current = c, CUDA_SUCCESS; }

static CUresult record(CUevent e, CUstream s)
{
    uintptr_t stream = (uintptr_t)s % STREAMS;
    if (trouble) return trouble;
    *event_at(e) = (struct event){stream, ++recorded[stream], card_ms};
    if (idle) reached[stream] = recorded[stream];
    return CUDA_SUCCESS;
}

static CUresult elapsed(float *ms, CUevent from, CUevent to)
{
    if (!is_done(from) || !is_done(to)) return CUDA_ERROR_NOT_READY;
    return *ms = event_at(to)->ms - event_at(from)->ms, CUDA_SUCCESS;
}

static CUresult wait(CUevent e)
{
    waited++;
    if (trouble) return trouble;
    if (!is_done(e)) reached[event_at(e)->stream] = event_at(e)->place;
    return CUDA_SUCCESS;
}

static unsigned waited_for_all;
static CUresult wait_for_all(void)
{
    waited_for_all++;
    for (int i = 0; i < STREAMS; i++) reached[i] = recorded[i];
    return CUDA_SUCCESS;
}

static CUresult captures_nothing(CUstream s, int *status) { return (void)s, *status = 0, CUDA_SUCCESS; }

static void be_the_driver(void)
{
    fr_real[FR_cuStreamIsCapturing] = captures_nothing;
    fr_real[FR_cuEventCreate] = create, fr_real[FR_cuEventDestroy_v2] = destroy, fr_real[FR_cuEventRecord] = record;
    fr_real[FR_cuEventQuery] = query, fr_real[FR_cuEventSynchronize] = wait, fr_real[FR_cuEventElapsedTime] = elapsed;
    fr_real[FR_cuCtxGetCurrent] = context_here, fr_real[FR_cuCtxSetCurrent] = set_context, fr_real[FR_cuCtxSynchronize] = wait_for_all;
}

/* ---- a launch ---- */

static struct fr_paced_card *card = &fr_paced_cards[0];
static uint64_t number = 1;

static CUstream fresh_stream(void)
{
    wait_for_all();
    fr_stream_states_drain(card);
    return (CUstream)(uintptr_t)number++;
}

static struct fr_stream_state *state_of(CUstream s)
{
    struct fr_stream_state *st = fr_stream_state_use(card, &(struct fr_work){.stream = s});
    fr_stream_state_done(st);
    return st;
}

static struct fr_prediction *kernel(void) { return fr_prediction_of(1000 + number++, 1); }

/* Predicted to take `ns`; the card takes `ms`. */
static struct fr_stream_state *launch_of(CUstream s, struct fr_prediction *g, uint64_t ns, float ms)
{
    struct fr_stream_state *st = fr_stream_state_use(card, &(struct fr_work){.stream = s});
    fr_stream_state_add(st, ns);
    fr_timing_before_launch(st, false);
    card_ms += ms;
    fr_timing_after_launch(st, g, 1, ns, false);
    fr_stream_state_done(st);
    return st;
}

static void all_of(CUstream s) { reached[(uintptr_t)s % STREAMS] = recorded[(uintptr_t)s % STREAMS]; }
static void begin_of(CUstream s) { reached[(uintptr_t)s % STREAMS]++; }
static uint64_t in_flight(struct fr_stream_state *st) { return fr_stream_state_backlog(st, 1).in_flight; }

/* The program makes the stream wait before the next launch. */
static void tell_to_wait(CUstream s)
{
    atomic_store(&fr_blocked_by_host, 1);
    state_of(s)->told = true;
}

/* ---- tests ---- */

static void a_stream_has_one_state_and_another_stream_another(void)
{
    CUstream a = fresh_stream(), b = fresh_stream();
    EXPECT(state_of(a) == state_of(a));
    EXPECT(state_of(a) != state_of(b));
}

static void a_launch_is_in_flight_until_the_event_behind_it_is_reached(void)
{
    CUstream s = fresh_stream();
    struct fr_prediction *g = kernel();
    struct fr_stream_state *st = launch_of(s, g, 3 * MS_NS, 3);
    EXPECT_EQ(in_flight(st), 3 * MS_NS);
    begin_of(s);
    EXPECT(!fr_stream_state_poll(st));
    EXPECT_EQ(in_flight(st), 3 * MS_NS);
    all_of(s);
    EXPECT(fr_stream_state_poll(st));
    EXPECT_EQ(in_flight(st), 0);
    EXPECT(!fr_stream_states_in_flight(card));
}

static void the_time_between_two_events_teaches_how_long_a_kernel_takes(void)
{
    CUstream s = fresh_stream();
    struct fr_prediction *g = kernel();
    struct fr_stream_state *st = launch_of(s, g, FR_UNKNOWN_NS, 7);
    EXPECT_EQ(atomic_load(&g->pending), 1);
    all_of(s);
    fr_stream_state_poll(st);
    EXPECT_EQ(atomic_load(&g->pending), 0);
    EXPECT_EQ(atomic_load(&g->samples), 1);
    EXPECT(fr_prediction_ns(g) > 6900000 && fr_prediction_ns(g) < 7100000);
}

static void what_is_launched_behind_the_turn_before_begins_when_that_is_over(void)
{
    CUstream s = fresh_stream();
    struct fr_stream_state *st = state_of(s);
    atomic_store(&card->queue_end, 0);
    atomic_store(&card->alone_at, MS_NS);
    fr_stream_state_queue(st, MS_NS / 2, 100);
    EXPECT_EQ(atomic_load(&card->queue_end), MS_NS + 100);
    fr_stream_state_queue(st, 2 * MS_NS, 100);
    EXPECT_EQ(atomic_load(&card->queue_end), 2 * MS_NS + 100);
    atomic_store(&card->alone_at, 0);
}

static void known_kernels_share_a_batch_of_about_a_millisecond(void)
{
    CUstream s = fresh_stream();
    struct fr_prediction *g = kernel();
    fr_prediction_learn(g, 100, 200000, false);
    for (int i = 0; i < 10; i++) launch_of(s, g, 200000, 0.2f);
    EXPECT_EQ(recorded[(uintptr_t)s % STREAMS], 4); /* two batches of five, two events each */
}

static void a_batch_in_which_the_stream_ran_dry_teaches_nothing(void)
{
    CUstream s = fresh_stream();
    struct fr_prediction *g = kernel();
    fr_prediction_learn(g, 100, 200000, false);
    struct fr_stream_state *st = launch_of(s, g, 200000, 0.2f);
    card_ms += 500;
    fr_timing_before_launch(st, true);
    all_of(s);
    fr_stream_state_poll(st);
    EXPECT(fr_prediction_ns(g) < 300000);
}

static void kernels_that_ran_together_are_corrected_by_what_all_took(void)
{
    CUstream s = fresh_stream();
    struct fr_prediction *g = kernel(), *h = kernel();
    fr_prediction_learn(g, 1, 300000, false), fr_prediction_learn(h, 1, 800000, false);
    launch_of(s, g, 300000, 0.6f);
    struct fr_stream_state *st = launch_of(s, h, 800000, 1.6f); /* twice as long as predicted */
    all_of(s);
    fr_stream_state_poll(st);
    EXPECT(fr_prediction_ns(g) > 300000 && fr_prediction_ns(h) > 800000);
    EXPECT_EQ(in_flight(st), 0);
}

static void without_events_left_the_state_says_that_it_is_full(void)
{
    CUstream s = fresh_stream();
    struct fr_prediction *g = kernel();
    struct fr_stream_state *st = NULL;
    for (int i = 0; i < BATCHES; i++) st = launch_of(s, g, MS_NS, 1);
    EXPECT(fr_stream_state_backlog(st, 1).full);
    all_of(s);
    fr_stream_state_poll(st);
    EXPECT(!fr_stream_state_backlog(st, 1).full);
}

static void the_end_of_a_turn_waits_for_what_is_on_the_card(void)
{
    CUstream s = fresh_stream(), other = fresh_stream();
    struct fr_prediction *g = kernel();
    struct fr_stream_state *st = launch_of(s, g, MS_NS, 1), *m = launch_of(other, g, MS_NS, 1);
    begin_of(s), begin_of(other);
    waited = 0;
    fr_stream_states_drain(card);
    EXPECT_EQ(waited, 2);
    EXPECT_EQ(in_flight(st) + in_flight(m), 0);
    EXPECT(!fr_stream_states_in_flight(card));
}

/* The driver's slices are longer than a millisecond. */
static void a_slice_of_another_container_is_not_counted_as_our_time(void)
{
    struct fr_prediction *g = kernel();
    CUstream s = fresh_stream();
    fr_prediction_learn(g, 100, 1200000, false);
    atomic_store(&card->alone_at, clock_now() + 1000 * MS_NS);
    uint64_t before = atomic_load(&card->gpu_ns);
    struct fr_stream_state *st = launch_of(s, g, 1200000, 4.0f);
    all_of(s);
    fr_stream_state_poll(st);
    EXPECT_EQ(atomic_load(&card->gpu_ns) - before, 1200000);
    EXPECT(fr_prediction_ns(g) < 1400000);
    atomic_store(&card->alone_at, 0);
}

/* Even if the program has made streams wait, and could have done so with this one. */
static void an_open_batch_that_takes_longer_than_was_thought_is_waited_for_and_measured(void)
{
    struct fr_prediction *g = kernel();
    CUstream s = fresh_stream();
    fr_prediction_learn(g, 100, 300000, false);
    uint64_t before = atomic_load(&card->gpu_ns);
    struct fr_stream_state *st = launch_of(s, g, 300000, 30.0f);
    fr_stream_states_drain(card);
    EXPECT_EQ(in_flight(st), 0);
    EXPECT(atomic_load(&card->gpu_ns) - before > 29 * MS_NS);
    EXPECT(fr_prediction_ns(g) > 5 * MS_NS);
}

/* Time counted beyond the turn would be charged once more, as if the work had run outside of it. */
static void open_batches_of_several_streams_that_ran_together_count_once(void)
{
    struct fr_prediction *g = kernel();
    fr_prediction_learn(g, 100, 400000, false);
    CUstream streams[8];
    for (int i = 0; i < 8; i++) streams[i] = fresh_stream();
    for (int i = 0; i < 8; i++) launch_of(streams[i], g, 400000, 0.4f);
    uint64_t before = atomic_load(&card->gpu_ns), granted = clock_now() - 500000;
    atomic_store(&card->granted, granted);
    atomic_store(&card->open_done, 0);
    idle = true;
    fr_stream_states_drain(card);
    idle = false;
    uint64_t counted = atomic_load(&card->gpu_ns) - before, passed = clock_now() - granted;
    EXPECT(counted >= 400000 && counted <= passed);
    atomic_store(&card->granted, 0);
}

/* Other processes are on the card, so it means nothing that the stream has not begun. */
static void a_stream_that_was_not_told_to_wait_is_waited_for_before_it_begins(void)
{
    CUstream s = fresh_stream();
    struct fr_stream_state *st = launch_of(s, kernel(), MS_NS, 1);
    waited = 0;
    fr_stream_states_drain(card);
    EXPECT_EQ(waited, 1);
    EXPECT_EQ(in_flight(st), 0);
}

static void it_does_not_wait_for_a_stream_that_is_held_back(void)
{
    CUstream s = fresh_stream();
    struct fr_prediction *g = kernel();
    tell_to_wait(s);
    struct fr_stream_state *st = launch_of(s, g, MS_NS, 1);
    waited = 0;
    fr_stream_states_drain(card);
    EXPECT_EQ(waited, 0);
    EXPECT(fr_blocked_may_launch(st) && fr_blocked_any(card) && !fr_blocked_resumed(card, true));
    EXPECT_EQ(in_flight(st), MS_NS); /* not begun yet */
    begin_of(s);
    EXPECT(!fr_blocked_may_launch(st) || fr_blocked_resumed(card, true));
    fr_stream_states_drain(card);
    EXPECT_EQ(in_flight(st), 0);
}

static void what_is_let_go_asks_for_a_turn_once(void)
{
    CUstream s = fresh_stream();
    tell_to_wait(s);
    struct fr_stream_state *st = launch_of(s, kernel(), 5 * MS_NS, 5);
    fr_stream_states_drain(card);
    begin_of(s);
    EXPECT(fr_blocked_resumed(card, true));
    EXPECT(!fr_blocked_resumed(card, true) && !fr_blocked_any(card));
    EXPECT(atomic_load(&card->queue_end) > 5 * MS_NS);
    fr_stream_states_drain(card);
    EXPECT_EQ(in_flight(st), 0);
}

/* Otherwise, for a program that makes a stream wait in each round, the stream would be taken for blocked for a long time in each round. */
static void what_is_let_go_teaches_how_long_its_kernels_take(void)
{
    CUstream s = fresh_stream();
    struct fr_prediction *g = kernel();
    tell_to_wait(s);
    struct fr_stream_state *st = launch_of(s, g, FR_UNKNOWN_NS, 5);
    fr_stream_states_drain(card);
    for (int i = 0; i < 3; i++) launch_of(s, g, FR_UNKNOWN_NS, 5);
    begin_of(s);
    EXPECT(fr_blocked_resumed(card, false));
    all_of(s);
    EXPECT(!fr_blocked_resumed(card, false));
    EXPECT_EQ(in_flight(st), 0);
    EXPECT(fr_prediction_ns(g) > 4 * MS_NS && fr_prediction_ns(g) < 6 * MS_NS);
    EXPECT(atomic_load(&g->samples) >= 4);
}

static void behind_a_stream_that_is_held_back_events_are_few(void)
{
    CUstream s = fresh_stream();
    struct fr_prediction *g[20];
    tell_to_wait(s);
    struct fr_stream_state *st = launch_of(s, kernel(), MS_NS, 1);
    fr_stream_states_drain(card);
    for (int i = 0; i < 20; i++) g[i] = kernel();
    for (int i = 0; i < 5000; i++) st = launch_of(s, g[i % 20], MS_NS, 1);
    EXPECT(recorded[(uintptr_t)s % STREAMS] < 200);
    EXPECT_EQ(in_flight(st), 5001 * MS_NS);
    uint64_t before = atomic_load(&card->gpu_ns);
    all_of(s);
    fr_stream_states_drain(card);
    EXPECT(atomic_load(&card->gpu_ns) > before); /* it was not seen to run, so it is charged now */
    EXPECT_EQ(in_flight(st), 0);
    for (int i = 0; i < 20; i++) EXPECT_EQ(atomic_load(&g[i]->pending), 0);
}

static void before_a_stream_is_destroyed_its_open_batch_gets_its_event(void)
{
    CUstream s = fresh_stream();
    struct fr_prediction *g = kernel();
    fr_prediction_learn(g, 100, 100000, false);
    for (int i = 0; i < 3; i++) launch_of(s, g, 100000, 0.1f);
    struct fr_stream_state *st = launch_of(s, g, 100000, 0.1f);
    EXPECT(atomic_load(&st->open));
    fr_stream_states_close(s);
    EXPECT(!atomic_load(&st->open));
    unsigned before = recorded[(uintptr_t)s % STREAMS];
    fr_stream_states_drain(card);
    EXPECT_EQ(recorded[(uintptr_t)s % STREAMS], before); /* no thread uses the stream any more */
    EXPECT_EQ(in_flight(st), 0);
}

static void an_event_that_answers_with_an_error_does_not_say_that_its_batch_is_done(void)
{
    CUstream s = fresh_stream();
    struct fr_stream_state *st = launch_of(s, kernel(), MS_NS, 1);
    trouble = CUDA_ERROR_CAPTURED_EVENT;
    EXPECT(!fr_stream_state_poll(st));
    EXPECT_EQ(in_flight(st), MS_NS);
    waited_for_all = 0;
    fr_stream_states_drain(card); /* waits for the whole context instead */
    EXPECT_EQ(waited_for_all, 1);
    EXPECT_EQ(in_flight(st), 0);
    trouble = CUDA_SUCCESS;
}

static void after_an_error_that_ends_the_context_nothing_is_in_flight(void)
{
    CUstream s = fresh_stream();
    struct fr_stream_state *st = launch_of(s, kernel(), MS_NS, 1);
    trouble = (CUresult)700; /* CUDA_ERROR_ILLEGAL_ADDRESS */
    EXPECT(fr_stream_state_poll(st));
    EXPECT_EQ(in_flight(st), 0);
    trouble = CUDA_SUCCESS;
}

static void a_launch_beside_which_no_event_can_be_recorded_is_in_flight_all_the_same(void)
{
    CUstream s = fresh_stream();
    trouble = CUDA_ERROR_OUT_OF_MEMORY;
    struct fr_stream_state *st = launch_of(s, kernel(), MS_NS, 1);
    trouble = CUDA_SUCCESS;
    EXPECT(!fr_stream_state_poll(st));
    EXPECT_EQ(in_flight(st), MS_NS);
    waited_for_all = 0;
    fr_stream_states_drain(card);
    EXPECT_EQ(waited_for_all, 1);
    EXPECT_EQ(in_flight(st), 0);
}

/* Another thread closes the batch between the launch and the event before it. */
static void a_launch_whose_batch_another_thread_closed_is_in_flight(void)
{
    CUstream s = fresh_stream();
    struct fr_stream_state *st = fr_stream_state_use(card, &(struct fr_work){.stream = s});
    fr_stream_state_add(st, MS_NS);
    fr_timing_before_launch(st, false);
    fr_timing_close(st);
    all_of(s);
    fr_stream_state_poll(st);
    fr_timing_after_launch(st, kernel(), 1, MS_NS, false);
    fr_stream_state_done(st);
    EXPECT_EQ(in_flight(st), MS_NS);
    EXPECT(!fr_stream_state_poll(st));
    all_of(s);
    EXPECT(fr_stream_state_poll(st));
    EXPECT_EQ(in_flight(st), 0);
}

static void no_batch_stays_open_in_a_threads_own_stream_or_beside_a_capture(void)
{
    struct fr_prediction *g = kernel();
    fr_prediction_learn(g, 100, 100000, false);
    for (int i = 0; i < 2; i++) {
        CUstream s = i ? fresh_stream() : CU_STREAM_PER_THREAD;
        fresh_stream();
        atomic_store(&fr_capture_count, i);
        unsigned before = recorded[(uintptr_t)s % STREAMS];
        struct fr_stream_state *st = NULL;
        for (int k = 0; k < 3; k++) {
            st = launch_of(s, g, 100000, 0.1f);
            EXPECT(!atomic_load(&st->open));
        }
        EXPECT_EQ(st->count, 1); /* the batch grows */
        EXPECT_EQ(recorded[(uintptr_t)s % STREAMS] - before, 4);
        atomic_store(&fr_capture_count, 0);
        fr_stream_states_drain(card);
        EXPECT_EQ(in_flight(st), 0);
    }
}

static void before_a_capture_every_open_batch_gets_its_event(void)
{
    CUstream s = fresh_stream();
    struct fr_prediction *g = kernel();
    fr_prediction_learn(g, 100, 100000, false);
    struct fr_stream_state *st = launch_of(s, g, 100000, 0.1f);
    EXPECT(atomic_load(&st->open));
    fr_stream_states_close_all();
    EXPECT(!atomic_load(&st->open));
    EXPECT_EQ(in_flight(st), 100000);
    fr_stream_states_drain(card);
}

static void a_context_that_ends_takes_its_events_with_it(void)
{
    CUstream s = fresh_stream();
    struct fr_prediction *g = kernel();
    struct fr_stream_state *st = launch_of(s, g, MS_NS, 1);
    fr_stream_states_forget(CONTEXT_A);
    EXPECT_EQ(atomic_load(&g->pending), 0);
    EXPECT_EQ(in_flight(st), 0);
    EXPECT(!fr_stream_states_in_flight(card));
    EXPECT_EQ(atomic_load(&card->inside), 1); /* the driver may wait for that work, so no turn ends */
    fr_stream_states_forgotten();
    EXPECT_EQ(atomic_load(&card->inside), 0);
}

static void a_context_with_nothing_in_flight_ends_without_holding_a_turn(void)
{
    launch_of(fresh_stream(), kernel(), MS_NS, 1);
    wait_for_all();
    fr_stream_states_drain(card);
    fr_stream_states_forget(CONTEXT_A);
    EXPECT_EQ(atomic_load(&card->inside), 0);
    fr_stream_states_forgotten();
}

static void each_of_many_streams_with_work_in_flight_has_a_state_of_its_own(void)
{
    struct fr_prediction *g = kernel();
    struct fr_stream_state *state[200];
    fresh_stream();
    for (uintptr_t i = 1; i < 200; i++) state[i] = launch_of((CUstream)(i * 16 + 7), g, MS_NS, 1);
    for (uintptr_t i = 1; i < 200; i++) EXPECT(state[i] == state_of((CUstream)(i * 16 + 7)) && in_flight(state[i]) == MS_NS);
    wait_for_all();
    fr_stream_states_drain(card);
    EXPECT(!fr_stream_states_in_flight(card));
    EXPECT_EQ(atomic_load(&g->pending), 0);
}

/* Otherwise the stream would count as working, and its container would be charged as long as it waits. */
static void a_stream_that_was_told_to_wait_keeps_that_while_others_need_states(void)
{
    fresh_stream();
    CUstream s = (CUstream)(uintptr_t)(9999 * 16);
    tell_to_wait(s);
    struct fr_stream_state *st = state_of(s);
    for (uintptr_t i = 1; i < 1000; i++) state_of((CUstream)(i * 16 + 9));
    EXPECT(state_of(s) == st && st->told);
    st->told = false;
}

/* ---- without the lock ---- */

/* Sets up this process like one of a container, as far as the states need that. */
static void join_a_container(void)
{
    static struct fr_limits limits;
    limits.sequence = 2;
    fr_shared.limits = &limits;
    atomic_store(&fr_process_page()->joined, 1);
}

static struct fr_stream_state *known(CUstream s)
{
    struct fr_stream_place place;
    struct fr_stream_state *st = fr_stream_state_known(&(struct fr_work){.stream = s}, &place);
    return st ? st : fr_stream_state_found(&place, card);
}

static void a_state_that_went_to_another_stream_is_not_found_for_the_first_one(void)
{
    join_a_container();
    for (int round = 0; round < 3; round++)
        for (uintptr_t i = 1; i < 1000; i++) {
            CUstream s = (CUstream)(i % 300 * 16 + 7);
            struct fr_stream_state *st = known(s);
            EXPECT(st->stream == (uintptr_t)s && st->handle == s && st->card == card);
            fr_stream_state_done(st);
            EXPECT(known(s) == st);
            fr_stream_state_done(st);
        }
}

static void while_the_limits_are_written_its_card_is_looked_up(void)
{
    CUstream s = (CUstream)(uintptr_t)(23 + 16 * 5000);
    struct fr_stream_place place;
    join_a_container();
    for (uint32_t sequence = 1; sequence < 6; sequence++) {
        fr_shared.limits->sequence = sequence;
        EXPECT(!fr_stream_state_known(&(struct fr_work){.stream = s}, &place));
        fr_stream_state_done(fr_stream_state_found(&place, card));
        struct fr_stream_state *st = fr_stream_state_known(&(struct fr_work){.stream = s}, &place);
        EXPECT((st != NULL) == !(sequence & 1));
        if (st) fr_stream_state_done(st);
    }
    join_a_container();
}

/* Of this many contexts, some have the same hint as the first one. */
static void the_states_of_one_context_are_not_those_of_another(void)
{
    CUstream s = (CUstream)(uintptr_t)23;
    join_a_container();
    for (uintptr_t other = 2; other < 4000; other++) {
        current = CONTEXT_A;
        struct fr_stream_state *a = known(s);
        EXPECT(a->context == CONTEXT_A);
        current = (CUcontext)(other * 16);
        struct fr_stream_state *b = known(s);
        EXPECT(a != b && b->context == current);
        fr_stream_state_done(a);
        fr_stream_state_done(b);
    }
    current = CONTEXT_A;
}

static _Atomic uint32_t taken_away;

static void *use_many_streams(void *seed)
{
    uint64_t random = (uintptr_t)seed;
    for (int i = 0; i < 300000; i++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        CUstream s = (CUstream)((random >> 33) % 160 * 16 + 7);
        struct fr_stream_state *st = known(s);
        for (int look = 0; look < 3; look++)
            if (st->stream != (uintptr_t)s || !st->used) atomic_fetch_add(&taken_away, 1);
        fr_stream_state_done(st);
    }
    return NULL;
}

/* There are more streams than states, and fewer threads. */
static void no_thread_loses_a_state_while_it_is_used(void)
{
    pthread_t threads[4];
    join_a_container();
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, use_many_streams, (void *)(i + 1));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    EXPECT_EQ(taken_away, 0);
}

int main(void)
{
    be_the_driver();
    RUN(a_stream_has_one_state_and_another_stream_another);
    RUN(a_launch_is_in_flight_until_the_event_behind_it_is_reached);
    RUN(the_time_between_two_events_teaches_how_long_a_kernel_takes);
    RUN(what_is_launched_behind_the_turn_before_begins_when_that_is_over);
    RUN(known_kernels_share_a_batch_of_about_a_millisecond);
    RUN(a_batch_in_which_the_stream_ran_dry_teaches_nothing);
    RUN(kernels_that_ran_together_are_corrected_by_what_all_took);
    RUN(without_events_left_the_state_says_that_it_is_full);
    RUN(the_end_of_a_turn_waits_for_what_is_on_the_card);
    RUN(a_slice_of_another_container_is_not_counted_as_our_time);
    RUN(an_open_batch_that_takes_longer_than_was_thought_is_waited_for_and_measured);
    RUN(open_batches_of_several_streams_that_ran_together_count_once);
    RUN(a_stream_that_was_not_told_to_wait_is_waited_for_before_it_begins);
    RUN(it_does_not_wait_for_a_stream_that_is_held_back);
    RUN(what_is_let_go_asks_for_a_turn_once);
    RUN(what_is_let_go_teaches_how_long_its_kernels_take);
    RUN(behind_a_stream_that_is_held_back_events_are_few);
    RUN(before_a_stream_is_destroyed_its_open_batch_gets_its_event);
    RUN(an_event_that_answers_with_an_error_does_not_say_that_its_batch_is_done);
    RUN(after_an_error_that_ends_the_context_nothing_is_in_flight);
    RUN(a_launch_beside_which_no_event_can_be_recorded_is_in_flight_all_the_same);
    RUN(a_launch_whose_batch_another_thread_closed_is_in_flight);
    RUN(no_batch_stays_open_in_a_threads_own_stream_or_beside_a_capture);
    RUN(before_a_capture_every_open_batch_gets_its_event);
    RUN(a_context_that_ends_takes_its_events_with_it);
    RUN(a_context_with_nothing_in_flight_ends_without_holding_a_turn);
    RUN(each_of_many_streams_with_work_in_flight_has_a_state_of_its_own);
    RUN(a_stream_that_was_told_to_wait_keeps_that_while_others_need_states);
    RUN(a_state_that_went_to_another_stream_is_not_found_for_the_first_one);
    RUN(while_the_limits_are_written_its_card_is_looked_up);
    RUN(the_states_of_one_context_are_not_those_of_another);
    RUN(no_thread_loses_a_state_while_it_is_used);
    FINISH;
}
