/* Compares the library's count with the memory that the driver holds: peaks at all times, everything else while all workers are paused. */
#include "watch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HANG_NS 10000000000ull

static struct board *board_of(const struct watch *w) { return w->herd->place->board; }

static void nap(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

void watch_open(struct watch *w, struct herd *h, struct sim_host *sim)
{
    char host[250];
    w->herd = h;
    w->sim = sim;
    snprintf(host, sizeof host, "%s/host", h->place->directory);
    for (int i = 0; i < (int)board_of(w)->containers; i++) judge_open(&w->judges[i], host, board_of(w), i);
}

/* ---- hangs ---- */

static uint32_t progress(const struct watch *w, int worker)
{
    uint32_t sum = 0;
    for (int i = 0; i < LANES_EACH; i++) sum += atomic_load(&board_of(w)->sequence[worker * LANES_EACH + i]);
    return sum;
}

static void show_stack(pid_t pid)
{
    char command[300];
    snprintf(command, sizeof command,
             "if command -v gdb >/dev/null; then timeout 20 gdb -p %d -batch -nx -ex 'thread apply all bt 20' 2>/dev/null | grep -E '^(#|Thread)'; "
             "else head -n 40 /proc/%d/wchan /proc/%d/stack /proc/%d/status; fi >&2", pid, pid, pid, pid);
    if (system(command) < 0) perror("system");
}

void watch_hangs(struct watch *w)
{
    uint64_t now = sim_now();
    for (int i = 0; i < (int)board_of(w)->workers; i++) {
        uint32_t at = progress(w, i);
        if (at != w->seen[i] || !w->since_ns[i] || !w->herd->pids[i]) {
            w->seen[i] = at;
            w->since_ns[i] = now;
        } else if (now - w->since_ns[i] > HANG_NS) {
            w->found.hangs++;
            fprintf(stderr, "hang: worker %d, process %d, did nothing for 10 s\n", i, (int)w->herd->pids[i]);
            place_show_waits(w->herd->place, container_of(board_of(w), i));
            show_stack(w->herd->pids[i]);
            kill(w->herd->pids[i], SIGKILL);
            w->herd->expected[i] = true;
            w->since_ns[i] = now;
        }
    }
}

/* ---- quiet points ---- */

static bool worker_is_still(const struct watch *w, int worker)
{
    const struct lane *lanes = &board_of(w)->lanes[worker * LANES_EACH];
    bool dying = !w->herd->pids[worker] || w->herd->expected[worker]; /* its lanes may still be marked as paused */
    if (dying || atomic_load(&lanes[LANE_MAIN].state) == LANE_OFF) return false;
    for (int i = 0; i < LANES_EACH; i++)
        if (atomic_load(&lanes[i].state) == LANE_RUNS) return false;
    /* It waits for a child that has not marked its lane yet, or has ended. */
    bool waits = atomic_load(&lanes[LANE_MAIN].state) == LANE_WAITS, others = false;
    for (int i = 1; i < LANES_EACH; i++) others |= atomic_load(&lanes[i].state) == LANE_PAUSED;
    return !waits || others;
}

static bool is_on_a_lane(const struct board *b, uint32_t pid)
{
    for (uint32_t i = 0; i < b->workers * LANES_EACH; i++)
        if (atomic_load(&b->lanes[i].pid) == pid) return true;
    return false;
}

/* The driver frees the memory of a process first when it ends, the library when it has ended: on a busy machine seconds later. */
static bool any_process_ends(const struct watch *w)
{
    for (uint32_t i = 0; i < SIM_PROCESSES; i++) {
        const struct sim_process *p = &w->sim->state->processes[i];
        bool used = atomic_load(&p->state) != SIM_SLOT_FREE && !p->is_nvml && i != w->sim->slot;
        if (used && !sim_process_gone(p) && !(sim_slot_alive(w->sim, i) && is_on_a_lane(board_of(w), p->pid))) return true;
    }
    return false;
}

static bool all_still(struct watch *w)
{
    uint64_t from = sim_now();
    for (;;) {
        bool still = true;
        herd_tend(w->herd, true);
        for (int i = 0; i < (int)board_of(w)->workers && still; i++) still = worker_is_still(w, i);
        if (still && !any_process_ends(w)) return true;
        if (sim_now() - from > HANG_NS) return false;
        nap();
    }
}

static void reap(struct watch *w)
{
    sim_lock(w->sim);
    sim_reap_all(w->sim);
    sim_unlock(w->sim);
}

static uint64_t held_by(const struct watch *w, uint32_t pid, int card)
{
    for (uint32_t i = 0; i < SIM_PROCESSES; i++) {
        const struct sim_process *p = &w->sim->state->processes[i];
        if (atomic_load(&p->state) == SIM_LIVE && p->pid == pid && !p->is_nvml) return p->usage[card].now;
    }
    return 0;
}

/* Prints each account that differs from the driver's ledger. */
static void show_accounts(const struct watch *w, int container, int card)
{
    uint32_t pid;
    uint64_t bytes;
    for (int slot = 0; (bytes = place_account(w->herd->place, container, card, slot, &pid)) != UINT64_MAX; slot++) {
        uint64_t held = pid ? held_by(w, pid, card) : 0;
        if (bytes != held)
            fprintf(stderr, "    account %d (process %u): counted %.3f MiB, held %.3f MiB\n", slot, pid, (double)bytes / MIB, (double)held / MIB);
    }
}

void watch_peaks(struct watch *w)
{
    for (int i = 0; i < (int)board_of(w)->containers; i++)
        for (int card = 0; card < CARDS; card++) {
            uint64_t peak = judge_peak(&w->judges[i], card), quota = board_of(w)->quota[card];
            uint64_t over = peak > quota ? peak - quota : 0;
            bool news = over > 2 * w->found.overcommit;
            if (over > w->found.overcommit) w->found.overcommit = over;
            if (!news) continue;
            fprintf(stderr, "overcommit: container %d held %.1f MiB of card %d, its quota is %.1f MiB\n", i, (double)peak / MIB, card,
                    (double)quota / MIB);
            show_accounts(w, i, card);
        }
}

/* Does what the node's audit does: writes into the limits page the bytes that the driver holds and the library does not count. */
void watch_audit(struct watch *w)
{
    for (int i = 0; i < (int)board_of(w)->containers && w->audits; i++)
        for (int card = 0; card < CARDS; card++) {
            uint64_t held = judge_held(&w->judges[i], card), used = place_used(w->herd->place, i, card);
            place_set_unaccounted(w->herd->place, i, card, held > used ? held - used : 0);
        }
}

static uint64_t counted_for(const struct watch *w, int container, int card)
{
    return place_used(w->herd->place, container, card) + place_unaccounted(w->herd->place, container, card);
}

static uint64_t outside(uint64_t n, uint64_t least, uint64_t most) { return n < least ? least - n : n > most ? n - most : 0; }

static uint64_t compare(struct watch *w, int container)
{
    uint64_t sum = 0;
    for (int card = 0; card < CARDS && w->herd->place->library; card++) {
        uint64_t counted = counted_for(w, container, card), held = judge_held(&w->judges[container], card);
        uint64_t most = board_of(w)->wild ? UINT64_MAX : judge_most(&w->judges[container], card), astray = outside(counted, held, most);
        if (!astray) continue;
        sum += astray;
        fprintf(stderr, "leak at a quiet point: container %d, card %d: the library counts %.3f MiB, the driver holds %.3f MiB and allows %.3f\n",
                container, card, (double)counted / MIB, (double)held / MIB, (double)most / MIB);
        show_accounts(w, container, card);
    }
    return sum;
}

static bool exam_reaches(struct watch *w, enum exam_step step, enum exam_step until)
{
    struct exam *e = &board_of(w)->exam;
    uint64_t from = sim_now();
    while (atomic_load(&e->step) == step && sim_now() - from < HANG_NS) nap();
    return atomic_load(&e->step) == until;
}

static bool exam_step(struct watch *w, enum exam_step step, enum exam_step until)
{
    atomic_store(&board_of(w)->exam.step, step);
    return exam_reaches(w, step, until);
}

static int someone(const struct watch *w, int container)
{
    uint32_t workers = board_of(w)->workers, from = dice(&w->herd->seed, workers);
    for (uint32_t i = 0; i < workers; i++) {
        int worker = (int)((from + i) % workers), lane = worker * LANES_EACH;
        bool ours = container_of(board_of(w), worker) == container;
        if (ours && atomic_load(&board_of(w)->lanes[lane].state) == LANE_PAUSED) return lane;
    }
    return -1;
}

static void examine(struct watch *w, int lane)
{
    struct exam *e = &board_of(w)->exam;
    int container = container_of(board_of(w), lane / LANES_EACH);
    atomic_store(&e->held, judge_held(&w->judges[container], (int)atomic_load(&e->card)));
    atomic_store(&e->most, judge_most(&w->judges[container], (int)atomic_load(&e->card)));
    atomic_store(&e->info_wrong, 0), atomic_store(&e->info_high, 0), atomic_store(&e->refused, 0), atomic_store(&e->passed_over, 0);
    if (!exam_step(w, EXAM_ASK, EXAM_DONE)) return;
    w->found.exams++;
    w->found.let_through += atomic_load(&e->passed_over) + atomic_load(&e->info_high);
    if (board_of(w)->wild && !atomic_load(&e->passed_over) && !atomic_load(&e->info_high)) return;
    w->found.false_oom += board_of(w)->wild ? 0 : atomic_load(&e->refused) + atomic_load(&e->info_wrong);
    if (atomic_load(&e->refused) + atomic_load(&e->info_wrong) + atomic_load(&e->passed_over))
        fprintf(stderr, "exam: container %d on card %u held %.1f of %.1f MiB; %s%s%s (cuMemGetInfo shows %.1f MiB free)\n", container,
                atomic_load(&e->card), (double)atomic_load(&e->held) / MIB, (double)board_of(w)->quota[atomic_load(&e->card)] / MIB,
                atomic_load(&e->refused) ? "what is left was refused; " : "", atomic_load(&e->info_wrong) ? "wrong free or total; " : "",
                atomic_load(&e->passed_over) ? "a granule more was given" : "", (double)atomic_load(&e->free_shown) / MIB);
}

/* The examined worker tidies up first, which also makes the library look for dead processes. A worker without a context declines. */
static int find_candidate(struct watch *w, int container)
{
    for (int tries = 0; tries < 20; tries++) {
        int lane = someone(w, container);
        if (lane < 0) return -1;
        atomic_store(&board_of(w)->exam.lane, (uint32_t)lane);
        if (exam_step(w, EXAM_TIDY, EXAM_TIDIED)) return lane;
    }
    return -1;
}

static void inspect(struct watch *w)
{
    w->found.quiet_points++;
    usleep(60000); /* the library looks for dead processes every 50 ms */
    for (int i = 0; i < (int)board_of(w)->containers; i++) {
        int lane = find_candidate(w, i);
        reap(w);
        if (lane < 0) continue;
        watch_audit(w);
        w->found.leaked += compare(w, i);
        if (w->audits || !board_of(w)->wild) examine(w, lane);
    }
}

void watch_quiet_point(struct watch *w)
{
    struct board *b = board_of(w);
    atomic_store(&b->exam.step, EXAM_NONE);
    atomic_store(&b->pause, 1);
    if (all_still(w)) inspect(w);
    else fprintf(stderr, "no quiet point: a worker did not pause within 10 s\n");
    atomic_store(&b->exam.step, EXAM_NONE);
    atomic_store(&b->pause, 0);
    for (int i = 0; i < WORKERS; i++) w->since_ns[i] = 0;
}

/* Only one process is left, which holds a context on each card: memory held or counted beyond that is leaked. A context may cost less than
 * reported, but never more. */
static void audit(struct watch *w, int container)
{
    atomic_store(&board_of(w)->exam.step, EXAM_NONE);
    pid_t pid = herd_auditor(w->herd, container);
    bool ready = exam_reaches(w, EXAM_NONE, EXAM_TIDIED);
    uint64_t context = board_of(w)->context_bytes;
    reap(w);
    watch_audit(w);
    for (int card = 0; card < CARDS; card++) {
        uint64_t held = judge_held(&w->judges[container], card), counted = counted_for(w, container, card);
        uint64_t most = judge_most(&w->judges[container], card), wild = board_of(w)->wild && held > context ? held - context : 0;
        if (!w->herd->place->library) counted = held;
        uint64_t astray = outside(most, context, context + wild) + outside(counted, held, most);
        if (!astray) continue;
        w->found.leaked += astray;
        fprintf(stderr, "leak at the end: container %d, card %d: the library counts %.3f MiB, the driver holds %.3f MiB and allows %.3f, one context is %.3f\n",
                container, card, (double)counted / MIB, (double)held / MIB, (double)most / MIB, (double)context / MIB);
    }
    if (!ready) fprintf(stderr, "hang: the auditor does not start\n"), w->found.hangs++, kill(pid, SIGKILL);
    atomic_store(&board_of(w)->exam.step, EXAM_DONE);
    int status = 0;
    waitpid(pid, &status, 0);
    if (ready && status) fprintf(stderr, "crash: the auditor ended with status %#x\n", status), w->herd->crashes++;
}

void watch_last(struct watch *w)
{
    for (uint64_t from = sim_now(); any_process_ends(w) && sim_now() - from < HANG_NS; nap()) herd_tend(w->herd, false);
    reap(w);
    watch_audit(w);
    for (int i = 0; i < (int)board_of(w)->containers; i++) {
        uint64_t escapes = place_escapes(w->herd->place, i);
        audit(w, i);
        if (escapes) fprintf(stderr, "container %d: the library saw %llu calls that it could not count\n", i, (unsigned long long)escapes);
    }
    watch_peaks(w);
}
