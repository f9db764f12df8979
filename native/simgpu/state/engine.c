/* Time on a simulated card.
 *
 * No process runs the card. Each process that looks at it first brings it up to date (sim_advance), event by event, by the shared monotonic
 * clock. So results do not depend on which process looks, or when. The rules are those published for real cards:
 *   - kernels of one context run together while their shares of the SMs fit, started by the priority of their streams, then in
 *     the order of their launch (the "leftover" rule); a stream is in order; the legacy stream is ordered with all blocking streams;
 *   - contexts take turns: one has the SMs for a time slice, then the next one that has work, at the cost of a switch;
 *     a context without work ends its turn at once; a kernel that loses its turn is resumed later;
 *   - copies run on one engine per direction, first come first served over all contexts, beside the kernels.
 *
 *      item:  QUEUED --may_start, room--> STARTED --its time is over--> DONE --all before it done--> retired (below tail)
 */
#include "noise.h"
#include "state.h"

#include <string.h>

#define FULL_SHARE 1000
#define NEVER UINT64_MAX

static struct sim_item *item_at(struct sim_state *s, uint32_t context, uint64_t seq)
{
    return &s->rings[context][seq % SIM_RING];
}

static bool seq_done(const struct sim_state *s, uint32_t context, uint64_t seq)
{
    return seq < s->contexts[context].tail || s->rings[context][seq % SIM_RING].state == SIM_DONE;
}

bool sim_item_done(const struct sim_host *host, uint32_t context, uint32_t generation, uint64_t seq)
{
    const struct sim_context *c = &host->state->contexts[context];
    if (atomic_load(&c->state) != SIM_HELD || c->generation != generation) return true;
    return seq_done(host->state, context, seq);
}

bool sim_context_idle(const struct sim_host *host, uint32_t context)
{
    const struct sim_context *c = &host->state->contexts[context];
    return c->tail == c->head;
}

bool sim_ring_full(const struct sim_host *host, uint32_t context)
{
    const struct sim_context *c = &host->state->contexts[context];
    return c->head - c->tail >= SIM_RING - 1;
}

/* ---- what may start ---- */

static bool blocking_done_before(const struct sim_context *c, uint64_t seq)
{
    for (uint32_t q = 0; q < c->queues; q++)
        if ((c->blocking >> q & 1) && c->queue_head[q] && c->queue_head[q] < seq) return false;
    return true;
}

static bool dependency_done(const struct sim_state *s, const struct sim_item *it)
{
    const struct sim_context *c = &s->contexts[it->depends_context];
    if (atomic_load(&c->state) != SIM_HELD || c->generation != it->depends_generation) return true;
    return seq_done(s, it->depends_context, it->depends_seq);
}

static bool may_start(const struct sim_state *s, uint32_t context, const struct sim_item *it)
{
    if (it->after && !seq_done(s, context, it->after)) return false;
    if (it->barrier && !blocking_done_before(&s->contexts[context], it->seq)) return false;
    return it->kind != SIM_WAIT || dependency_done(s, it);
}

static bool crosses(const struct sim_item *it, uint32_t context)
{
    return it->kind == SIM_WAIT && it->depends_context != context;
}

/* ---- completion ---- */

static void mark_event(struct sim_state *s, uint32_t context, const struct sim_item *it, uint64_t t)
{
    if (!it->event) return;
    struct sim_event *e = &s->events[it->event - 1];
    if (e->generation != it->event_generation || e->context != context || e->seq != it->seq) return; /* re-recorded */
    e->end_ns = sim_noise_stamp(t, context, it->seq);
    e->done = 1;
}

static void retire(struct sim_state *s, uint32_t context)
{
    struct sim_context *c = &s->contexts[context];
    while (c->tail < c->head && item_at(s, context, c->tail)->state == SIM_DONE) c->tail++;
}

static void finish(struct sim_state *s, uint32_t context, struct sim_item *it, uint64_t t)
{
    struct sim_context *c = &s->contexts[context];
    it->state = SIM_DONE;
    SIM_POINT();
    it->end_ns = t;
    mark_event(s, context, it, t);
    c->queue_head[it->queue] = it->next;
    SIM_POINT();
    if (!it->next) c->queue_tail[it->queue] = 0;
    SIM_POINT();
    if (it->kind == SIM_COPY) s->cards[c->card].copies--;
    if (crosses(it, context)) {
        c->cross_waits--;
        s->cross_waits--;
    }
    if (s->cross_waits) s->must_rescan = 1;
    retire(s, context);
}

/* Performs all items of this context that take no time and may happen now, and counts the kernels that could start. */
static void scan(struct sim_state *s, uint32_t context, uint64_t t)
{
    struct sim_context *c = &s->contexts[context];
    bool moved;
    do {
        moved = false;
        c->ready = 0;
        for (uint32_t q = 0; q < c->queues; q++) {
            struct sim_item *it = c->queue_head[q] ? item_at(s, context, c->queue_head[q]) : NULL;
            if (!it || it->state != SIM_QUEUED || !may_start(s, context, it)) continue;
            if (!it->ready_ns) it->ready_ns = t;
            if (it->kind == SIM_KERNEL) c->ready++;
            if (it->kind == SIM_HOST) it->state = SIM_STARTED; /* its process runs the callback and completes it */
            if (it->kind == SIM_MARK || it->kind == SIM_WAIT) {
                finish(s, context, it, t);
                moved = true;
            }
        }
    } while (moved);
}

static bool wants(const struct sim_context *c)
{
    return c->running_count || c->ready;
}

/* ---- the SMs ---- */

static struct sim_item *oldest_ready_kernel(struct sim_state *s, uint32_t context)
{
    struct sim_context *c = &s->contexts[context];
    struct sim_item *best = NULL;
    for (uint32_t q = 0; q < c->queues; q++) {
        struct sim_item *it = c->queue_head[q] ? item_at(s, context, c->queue_head[q]) : NULL;
        if (!it || it->kind != SIM_KERNEL || it->state != SIM_QUEUED || !may_start(s, context, it)) continue;
        bool first = !best || it->priority < best->priority || (it->priority == best->priority && it->seq < best->seq);
        if (first) best = it;
    }
    return best;
}

/* Kernels that are bound by memory share its bandwidth: one that starts beside others is slower by their number. (Kernels that already run
 * are not made slower.) */
static void contend(struct sim_state *s, uint32_t context, struct sim_item *it)
{
    struct sim_context *c = &s->contexts[context];
    uint64_t beside = 1;
    if (!it->memory_bound || !sim_noisy()) return;
    for (uint32_t i = 0; i < c->running_count; i++) beside += item_at(s, context, c->running[i])->memory_bound;
    it->left_ns *= beside;
}

/* ---- kernels that spin until their peers have begun ---- */

static struct sim_meeting *meeting_of(struct sim_state *s, uint32_t number)
{
    for (uint32_t i = 0; i < SIM_MEETINGS; i++)
        if (s->meetings[i].number == number) return &s->meetings[i];
    struct sim_meeting *oldest = &s->meetings[s->next_meeting++ % SIM_MEETINGS];
    *oldest = (struct sim_meeting){number, 0};
    return oldest;
}

static bool has_met(struct sim_state *s, const struct sim_item *it)
{
    return !it->meet || meeting_of(s, it->meet)->arrived >= it->peers;
}

/* When the last peer begins, the others that run at present continue. One that has lost its turn notices it when it gets it back. */
static void let_peers_go(struct sim_state *s, uint32_t number, uint64_t t)
{
    for (uint32_t i = 0; i < s->card_count; i++) {
        struct sim_card *card = &s->cards[i];
        struct sim_context *c = card->current == SIM_NO_CONTEXT ? NULL : &s->contexts[card->current];
        for (uint32_t k = 0; c && k < c->running_count; k++) {
            struct sim_item *it = item_at(s, card->current, c->running[k]);
            if (it->meet != number || it->end_ns != NEVER) continue;
            it->end_ns = (t > card->begin_ns ? t : card->begin_ns) + it->left_ns;
            if (it->end_ns < card->next_ns) card->next_ns = it->end_ns;
        }
    }
}

static void arrive(struct sim_state *s, struct sim_item *it, uint64_t t)
{
    if (!it->arrived) it->arrived = 1, meeting_of(s, it->meet)->arrived++;
    if (has_met(s, it)) let_peers_go(s, it->meet, t);
    else it->end_ns = NEVER;
}

static void start_kernels(struct sim_state *s, struct sim_card *card, uint64_t t)
{
    struct sim_context *c = &s->contexts[card->current];
    while (c->ready && c->running_count < SIM_RUNNING) {
        struct sim_item *it = oldest_ready_kernel(s, card->current);
        if (!it || (c->running_count && c->share_used + it->share > FULL_SHARE)) return;
        contend(s, card->current, it);
        it->state = SIM_STARTED;
        it->end_ns = (t > card->begin_ns ? t : card->begin_ns) + it->left_ns;
        if (it->meet) arrive(s, it, t);
        c->running[c->running_count++] = it->seq;
        SIM_POINT();
        c->share_used += it->share;
        c->ready--;
        c->launches++;
    }
}

static void finish_kernels(struct sim_state *s, uint32_t context, uint64_t t)
{
    struct sim_context *c = &s->contexts[context];
    for (uint32_t i = 0; i < c->running_count;) {
        struct sim_item *it = item_at(s, context, c->running[i]);
        if (it->end_ns > t) {
            i++;
            continue;
        }
        c->share_used -= it->share;
        c->running[i] = c->running[--c->running_count];
        SIM_POINT();
        finish(s, context, it, it->end_ns);
    }
}

static void switch_out(struct sim_state *s, struct sim_card *card, uint64_t t)
{
    struct sim_context *c = &s->contexts[card->current];
    for (uint32_t i = 0; i < c->running_count; i++) {
        struct sim_item *it = item_at(s, card->current, c->running[i]);
        uint64_t from = t > card->begin_ns ? t : card->begin_ns;
        if (it->end_ns == NEVER) continue; /* it spins */
        it->left_ns = it->end_ns > from ? it->end_ns - from : 0;
    }
    card->current = SIM_NO_CONTEXT;
}

static void switch_in(struct sim_state *s, struct sim_card *card, uint32_t context, uint64_t t)
{
    struct sim_context *c = &s->contexts[context];
    bool other = card->last != context && card->last != SIM_NO_CONTEXT;
    card->begin_ns = t + (other ? card->switch_ns : 0);
    card->slice_end_ns = card->begin_ns + card->slice_ns;
    card->switches += other;
    card->current = card->last = context;
    for (uint32_t i = 0; i < c->running_count; i++) {
        struct sim_item *it = item_at(s, context, c->running[i]);
        it->end_ns = has_met(s, it) ? card->begin_ns + it->left_ns : NEVER;
    }
}

/* The next context, after the one that ran last, with work for the SMs. */
static uint32_t next_in_turn(const struct sim_state *s, const struct sim_card *card)
{
    uint32_t start = 0;
    for (uint32_t i = 0; i < card->context_count; i++)
        if (card->contexts[i] == card->last) start = i + 1;
    for (uint32_t i = 0; i < card->context_count; i++) {
        uint32_t candidate = card->contexts[(start + i) % card->context_count];
        if (candidate != card->current && wants(&s->contexts[candidate])) return candidate;
    }
    return SIM_NO_CONTEXT;
}

static void take_turns(struct sim_state *s, struct sim_card *card, uint64_t t)
{
    if (card->current != SIM_NO_CONTEXT && !wants(&s->contexts[card->current])) card->current = SIM_NO_CONTEXT;
    uint32_t next = next_in_turn(s, card);
    if (card->current != SIM_NO_CONTEXT && t >= card->slice_end_ns) {
        if (next != SIM_NO_CONTEXT) switch_out(s, card, t);
        else card->slice_end_ns += (1 + (t - card->slice_end_ns) / card->slice_ns) * card->slice_ns;
    }
    if (card->current == SIM_NO_CONTEXT && next != SIM_NO_CONTEXT) switch_in(s, card, next, t);
    if (card->current != SIM_NO_CONTEXT) start_kernels(s, card, t);
}

/* ---- the copy engines ---- */

static struct sim_item *oldest_ready_copy(struct sim_state *s, const struct sim_card *card, uint8_t engine,
                                          uint32_t *context)
{
    struct sim_item *best = NULL;
    for (uint32_t i = 0; i < card->context_count; i++) {
        struct sim_context *c = &s->contexts[card->contexts[i]];
        for (uint32_t q = 0; q < c->queues; q++) {
            struct sim_item *it = c->queue_head[q] ? item_at(s, card->contexts[i], c->queue_head[q]) : NULL;
            if (!it || it->kind != SIM_COPY || it->state != SIM_QUEUED || it->engine != engine || !it->ready_ns) continue;
            if (best && it->ready_ns >= best->ready_ns) continue;
            best = it;
            *context = card->contexts[i];
        }
    }
    return best;
}

static void start_copies(struct sim_state *s, struct sim_card *card, uint64_t t)
{
    for (uint8_t e = 0; card->copies && e < SIM_COPY_ENGINES; e++) {
        struct sim_copy_engine *engine = &card->engines[e];
        uint32_t context = SIM_NO_CONTEXT;
        if (engine->context != SIM_NO_CONTEXT) continue;
        struct sim_item *it = oldest_ready_copy(s, card, e, &context);
        if (!it) continue;
        if (sim_noisy() && card->engines[!e].context != SIM_NO_CONTEXT) it->left_ns = it->left_ns * SIM_BUS_PERCENT / 100;
        it->state = SIM_STARTED;
        it->end_ns = t + it->left_ns;
        SIM_POINT();
        engine->context = context;
        SIM_POINT();
        engine->seq = it->seq;
        engine->end_ns = it->end_ns;
        engine->busy_ns += it->left_ns;
    }
}

static bool finish_copies(struct sim_state *s, struct sim_card *card, uint64_t t)
{
    bool any = false;
    for (uint32_t e = 0; e < SIM_COPY_ENGINES; e++) {
        struct sim_copy_engine *engine = &card->engines[e];
        if (engine->context == SIM_NO_CONTEXT || engine->end_ns > t) continue;
        uint32_t context = engine->context;
        engine->context = SIM_NO_CONTEXT;
        finish(s, context, item_at(s, context, engine->seq), engine->end_ns);
        scan(s, context, t);
        any = true;
    }
    return any;
}

/* ---- accounting ---- */

static void fill_buckets(uint32_t *ring, uint32_t buckets, uint64_t *newest, uint64_t from, uint64_t to)
{
    while (from < to) {
        uint64_t bucket = from / SIM_BUCKET_NS, end = (bucket + 1) * SIM_BUCKET_NS;
        if (end > to) end = to;
        if (bucket > *newest + buckets) *newest = bucket - buckets;
        while (*newest < bucket) ring[++*newest % buckets] = 0;
        ring[bucket % buckets] += (uint32_t)(end - from);
        from = end;
    }
}

/* Charges the time since the last call to the context that had the SMs. */
static void account(struct sim_state *s, struct sim_card *card, uint64_t t)
{
    uint64_t from = card->accounted_ns;
    if (t <= from) return;
    card->accounted_ns = t;
    if (card->current == SIM_NO_CONTEXT || !s->contexts[card->current].running_count) return;
    struct sim_context *c = &s->contexts[card->current];
    struct sim_process *p = &s->processes[c->process];
    uint32_t index = (uint32_t)(card - s->cards);
    if (t - from > SIM_BUCKETS * SIM_BUCKET_NS) from = t - SIM_BUCKETS * SIM_BUCKET_NS;
    card->busy_ns += t - from;
    p->gpu_ns[index] += t - from;
    c->gpu_ns += t - from;
    fill_buckets(card->bucket_ns, SIM_BUCKETS, &card->bucket_at, from, t);
    fill_buckets(p->bucket_ns[index], SIM_BUCKETS / 4, &p->bucket_at[index], from, t);
}

static uint32_t percent(const uint32_t *ring, uint32_t buckets, uint64_t newest, uint64_t now, uint64_t window_ns)
{
    uint64_t last = now / SIM_BUCKET_NS, count = window_ns / SIM_BUCKET_NS, sum = 0;
    for (uint64_t b = last - count; b < last; b++) /* whole buckets only */
        if (b <= newest && b + buckets > newest) sum += ring[b % buckets];
    uint64_t value = count ? (sum * 100 + count * SIM_BUCKET_NS / 2) / (count * SIM_BUCKET_NS) : 0;
    return value > 100 ? 100 : (uint32_t)value;
}

uint32_t sim_busy_percent(const struct sim_card *card, uint64_t now, uint64_t window_ns)
{
    return percent(card->bucket_ns, SIM_BUCKETS, card->bucket_at, now, window_ns);
}

uint32_t sim_process_busy_percent(const struct sim_process *p, uint32_t card, uint64_t now, uint64_t window_ns)
{
    return percent(p->bucket_ns[card], SIM_BUCKETS / 4, p->bucket_at[card], now, window_ns);
}

/* ---- the card as a whole ---- */

static void find_next(struct sim_state *s, struct sim_card *card)
{
    uint64_t next = NEVER;
    if (card->current != SIM_NO_CONTEXT) {
        struct sim_context *c = &s->contexts[card->current];
        for (uint32_t i = 0; i < c->running_count; i++) {
            uint64_t end = item_at(s, card->current, c->running[i])->end_ns;
            if (end < next) next = end;
        }
        if (card->slice_end_ns < next && next_in_turn(s, card) != SIM_NO_CONTEXT) next = card->slice_end_ns;
    }
    for (uint32_t e = 0; e < SIM_COPY_ENGINES; e++)
        if (card->engines[e].context != SIM_NO_CONTEXT && card->engines[e].end_ns < next) next = card->engines[e].end_ns;
    card->next_ns = next;
}

static void settle(struct sim_state *s, struct sim_card *card, uint64_t t)
{
    take_turns(s, card, t);
    start_copies(s, card, t);
    find_next(s, card);
}

static void step(struct sim_state *s, struct sim_card *card, uint64_t t)
{
    account(s, card, t);
    if (card->current != SIM_NO_CONTEXT) {
        finish_kernels(s, card->current, t);
        scan(s, card->current, t);
    }
    finish_copies(s, card, t);
    settle(s, card, t);
}

/* An item completed for which a stream of another context may be waiting. */
static void rescan_waiters(struct sim_state *s, uint64_t t)
{
    while (s->must_rescan) {
        s->must_rescan = 0;
        for (uint32_t i = 0; i < s->context_high; i++) {
            struct sim_context *c = &s->contexts[i];
            if (atomic_load(&c->state) != SIM_HELD || !c->cross_waits) continue;
            account(s, &s->cards[c->card], t);
            scan(s, i, t);
            settle(s, &s->cards[c->card], t);
        }
    }
}

static uint64_t next_of_all(const struct sim_state *s)
{
    uint64_t next = NEVER;
    for (uint32_t i = 0; i < s->card_count; i++)
        if (s->cards[i].next_ns < next) next = s->cards[i].next_ns;
    return next;
}

void sim_advance(struct sim_host *host, uint64_t now)
{
    struct sim_state *s = host->state;
    if (now < s->clock_ns) now = s->clock_ns;
    for (uint64_t t = next_of_all(s); t <= now; t = next_of_all(s)) {
        s->clock_ns = t > s->clock_ns ? t : s->clock_ns;
        for (uint32_t i = 0; i < s->card_count; i++)
            if (s->cards[i].next_ns <= t) step(s, &s->cards[i], t);
        rescan_waiters(s, t);
    }
    s->clock_ns = now;
    for (uint32_t i = 0; i < s->card_count; i++) account(s, &s->cards[i], now);
}

/* ---- work ---- */

static void append(struct sim_state *s, uint32_t context, struct sim_item *it)
{
    struct sim_context *c = &s->contexts[context];
    uint64_t last = c->queue_tail[it->queue];
    if (last) item_at(s, context, last)->next = it->seq;
    else c->queue_head[it->queue] = it->seq;
    c->queue_tail[it->queue] = it->seq;
    if (it->queue >= c->queues) c->queues = it->queue + 1u;
    if (it->kind == SIM_COPY) s->cards[c->card].copies++;
    if (crosses(it, context)) {
        c->cross_waits++;
        s->cross_waits++;
    }
}

/* A kernel's length varies, and an event before it in its queue takes a moment. */
static uint64_t noisy_length(struct sim_state *s, uint32_t context, const struct sim_item *item)
{
    uint64_t last = s->contexts[context].queue_tail[item->queue];
    bool behind_mark = last && item_at(s, context, last)->kind == SIM_MARK;
    return sim_noise_kernel(item->left_ns, context, s->contexts[context].head) + (behind_mark ? SIM_MARK_NS : 0);
}

uint64_t sim_enqueue(struct sim_host *host, uint32_t context, struct sim_item item, uint64_t now)
{
    struct sim_state *s = host->state;
    struct sim_context *c = &s->contexts[context];
    struct sim_item *it = item_at(s, context, c->head);
    uint64_t t = now > s->clock_ns ? now : s->clock_ns;
    item.seq = c->head;
    item.next = item.ready_ns = 0;
    item.state = SIM_QUEUED;
    if (item.kind == SIM_KERNEL && sim_noisy()) item.left_ns = noisy_length(s, context, &item);
    *it = item;
    if (item.event) { /* from now on the event stands for this item */
        struct sim_event *e = &s->events[item.event - 1];
        e->context = context;
        e->context_generation = c->generation;
        e->seq = item.seq;
        e->done = 0;
    }
    SIM_POINT();
    atomic_thread_fence(memory_order_release);
    c->head++;
    SIM_POINT();
    append(s, context, it);
    if (c->queue_head[item.queue] == item.seq) {
        account(s, &s->cards[c->card], t);
        scan(s, context, t);
        settle(s, &s->cards[c->card], t);
        rescan_waiters(s, t);
    }
    return item.seq;
}

/* A host callback has returned. */
void sim_complete(struct sim_host *host, uint32_t context, uint64_t seq, uint64_t now)
{
    struct sim_state *s = host->state;
    struct sim_card *card = &s->cards[s->contexts[context].card];
    sim_advance(host, now);
    if (seq_done(s, context, seq)) return;
    account(s, card, s->clock_ns);
    finish(s, context, item_at(s, context, seq), s->clock_ns);
    scan(s, context, s->clock_ns);
    settle(s, card, s->clock_ns);
    rescan_waiters(s, s->clock_ns);
}

/* ---- when to look again ---- */

static uint64_t turn_of(const struct sim_state *s, uint32_t context)
{
    const struct sim_context *c = &s->contexts[context];
    uint64_t most = 0;
    for (uint32_t i = 0; i < c->running_count; i++) {
        uint64_t left = s->rings[context][c->running[i] % SIM_RING].left_ns;
        if (left > most) most = left;
    }
    for (uint32_t q = 0; q < c->queues && !most; q++)
        if (c->queue_head[q]) most = s->rings[context][c->queue_head[q] % SIM_RING].left_ns;
    return most;
}

/* The earliest time at which the context can have the SMs again if the other contexts do all the work that is known now. */
static uint64_t earliest_turn(const struct sim_state *s, uint32_t context, uint64_t now)
{
    const struct sim_card *card = &s->cards[s->contexts[context].card];
    if (card->current == context || card->current == SIM_NO_CONTEXT || !card->context_count) return now;
    const struct sim_context *running = &s->contexts[card->current];
    uint64_t at = now, start = 0;
    for (uint32_t i = 0; i < running->running_count; i++) {
        uint64_t end = s->rings[card->current][running->running[i] % SIM_RING].end_ns;
        if (end > at) at = end;
    }
    if (card->slice_end_ns < at) at = card->slice_end_ns;
    for (uint32_t i = 0; i < card->context_count; i++)
        if (card->contexts[i] == card->current) start = i + 1;
    for (uint32_t i = 0; i < card->context_count; i++) {
        uint32_t other = card->contexts[(start + i) % card->context_count];
        if (other == context) break;
        if (!wants(&s->contexts[other])) continue;
        uint64_t turn = turn_of(s, other);
        at += card->switch_ns + (turn < card->slice_ns ? turn : card->slice_ns);
    }
    return at + card->switch_ns;
}

uint64_t sim_earliest(const struct sim_host *host, uint32_t context, uint64_t seq, uint64_t now)
{
    const struct sim_state *s = host->state;
    const struct sim_context *c = &s->contexts[context];
    if (seq >= c->head || seq < c->tail) return now;
    const struct sim_item *target = &s->rings[context][seq % SIM_RING];
    uint64_t work = 0, at = now;
    bool needs_turn = false;
    for (uint64_t q = c->queue_head[target->queue]; q && q <= seq;) {
        const struct sim_item *it = &s->rings[context][q % SIM_RING];
        bool on_card = it->state == SIM_STARTED && (it->kind == SIM_COPY || s->cards[c->card].current == context);
        if (on_card && it->end_ns == NEVER) return now; /* unknown */
        if (on_card) at = it->end_ns > at ? it->end_ns : at;
        else if (it->kind == SIM_KERNEL || it->kind == SIM_COPY) work += it->left_ns;
        needs_turn |= it->kind == SIM_KERNEL && !on_card;
        q = it->next;
    }
    uint64_t turn = needs_turn ? earliest_turn(s, context, now) : now;
    return (turn > at ? turn : at) + work;
}

/* ---- contexts ---- */

static void reset_context(struct sim_context *c, uint32_t process, uint32_t card, uint32_t generation)
{
    c->process = process;
    c->card = card;
    c->generation = generation;
    c->head = c->tail = 1;
    memset(c->queue_head, 0, sizeof c->queue_head);
    memset(c->queue_tail, 0, sizeof c->queue_tail);
    c->queues = c->blocking = c->running_count = c->share_used = c->ready = c->cross_waits = 0;
    c->gpu_ns = c->launches = 0;
}

uint32_t sim_context_new(struct sim_host *host, uint32_t card)
{
    struct sim_state *s = host->state;
    struct sim_card *k = &s->cards[card];
    if (k->context_count == SIM_CONTEXTS_PER_CARD) sim_reap(host);
    if (k->context_count == SIM_CONTEXTS_PER_CARD) return SIM_NO_CONTEXT;
    for (uint32_t i = 0; i < SIM_CONTEXTS; i++) {
        struct sim_context *c = &s->contexts[i];
        if (atomic_load(&c->state) == SIM_HELD) continue;
        if (i >= s->context_high) s->context_high = i + 1;
        reset_context(c, host->slot, card, ++s->generation);
        atomic_store(&c->state, SIM_HELD);
        SIM_POINT();
        k->contexts[k->context_count++] = (uint16_t)i;
        SIM_POINT();
        s->processes[host->slot].contexts[card]++;
        return i;
    }
    return SIM_NO_CONTEXT;
}

static void forget_work(struct sim_state *s, struct sim_card *card, uint32_t context)
{
    struct sim_context *c = &s->contexts[context];
    s->cross_waits -= c->cross_waits;
    for (uint64_t q = c->tail; q < c->head; q++) {
        struct sim_item *it = item_at(s, context, q);
        if (it->kind == SIM_COPY && it->state != SIM_DONE) card->copies--;
        if (it->kind == SIM_MARK && it->state != SIM_DONE) mark_event(s, context, it, s->clock_ns);
    }
    for (uint32_t e = 0; e < SIM_COPY_ENGINES; e++)
        if (card->engines[e].context == context) card->engines[e].context = SIM_NO_CONTEXT;
    if (card->current == context) card->current = SIM_NO_CONTEXT;
    if (s->cross_waits) s->must_rescan = 1;
}

void sim_context_drop(struct sim_host *host, uint32_t context)
{
    struct sim_state *s = host->state;
    struct sim_context *c = &s->contexts[context];
    struct sim_card *card = &s->cards[c->card];
    sim_advance(host, sim_now());
    forget_work(s, card, context);
    SIM_POINT();
    atomic_store(&c->state, SIM_FREE);
    SIM_POINT();
    for (uint32_t i = 0; i < card->context_count; i++)
        if (card->contexts[i] == context) {
            memmove(&card->contexts[i], &card->contexts[i + 1], (card->context_count - i - 1) * sizeof(uint16_t));
            card->context_count--;
            break;
        }
    SIM_POINT();
    s->processes[c->process].contexts[c->card]--;
    settle(s, card, s->clock_ns);
    rescan_waiters(s, s->clock_ns);
}

/* ---- after a death inside the lock ---- */

static void rebuild_item(struct sim_state *s, uint32_t context, uint64_t seq)
{
    struct sim_context *c = &s->contexts[context];
    struct sim_item *it = item_at(s, context, seq);
    it->next = 0;
    if (it->state == SIM_DONE) return;
    append(s, context, it);
    if (it->state != SIM_STARTED) return;
    if (it->kind == SIM_KERNEL && c->running_count < SIM_RUNNING) {
        c->running[c->running_count++] = seq;
        c->share_used += it->share;
    } else if (it->kind == SIM_COPY) {
        struct sim_copy_engine *e = &s->cards[c->card].engines[it->engine];
        if (e->context == SIM_NO_CONTEXT) *e = (struct sim_copy_engine){context, seq, it->end_ns, e->busy_ns};
        else it->state = SIM_QUEUED;
    }
}

static void rebuild_context(struct sim_state *s, uint32_t context)
{
    struct sim_context *c = &s->contexts[context];
    struct sim_card *card = &s->cards[c->card];
    uint32_t queues = c->queues;
    memset(c->queue_head, 0, sizeof c->queue_head);
    memset(c->queue_tail, 0, sizeof c->queue_tail);
    c->running_count = c->share_used = c->cross_waits = 0;
    retire(s, context);
    for (uint64_t q = c->tail; q < c->head; q++) rebuild_item(s, context, q);
    if (queues > c->queues) c->queues = queues;
    card->contexts[card->context_count++] = (uint16_t)context;
    s->processes[c->process].contexts[c->card]++;
}

static void clear_cards(struct sim_state *s)
{
    for (uint32_t i = 0; i < SIM_CARDS; i++) {
        struct sim_card *card = &s->cards[i];
        card->context_count = card->copies = 0;
        for (uint32_t e = 0; e < SIM_COPY_ENGINES; e++) card->engines[e].context = SIM_NO_CONTEXT;
        for (uint32_t p = 0; p < s->process_high; p++) s->processes[p].contexts[i] = 0;
    }
}

void sim_engine_rebuild(struct sim_host *host)
{
    struct sim_state *s = host->state;
    clear_cards(s);
    s->cross_waits = 0;
    s->context_high = SIM_CONTEXTS;
    for (uint32_t i = 0; i < SIM_CONTEXTS; i++)
        if (atomic_load(&s->contexts[i].state) == SIM_HELD) rebuild_context(s, i);
    uint64_t now = sim_now();
    if (s->clock_ns > now) s->clock_ns = now;
    for (uint32_t i = 0; i < s->card_count; i++) {
        struct sim_card *card = &s->cards[i];
        if (card->current != SIM_NO_CONTEXT && atomic_load(&s->contexts[card->current].state) != SIM_HELD)
            card->current = SIM_NO_CONTEXT;
        if (card->current != SIM_NO_CONTEXT)
            for (uint32_t k = 0; k < s->contexts[card->current].running_count; k++) {
                struct sim_item *it = item_at(s, card->current, s->contexts[card->current].running[k]);
                if (it->end_ns < s->clock_ns) it->end_ns = s->clock_ns;
            }
    }
    for (uint32_t i = 0; i < s->context_high; i++)
        if (atomic_load(&s->contexts[i].state) == SIM_HELD) scan(s, i, s->clock_ns);
    for (uint32_t i = 0; i < s->card_count; i++) settle(s, &s->cards[i], s->clock_ns);
    rescan_waiters(s, s->clock_ns);
}
