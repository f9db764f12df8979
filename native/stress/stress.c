/* stress: many processes use a card's memory in every way, at random, and are killed at random. The simulated driver's own ledger is the
 * judge. The last line shows the result; status 0: no error was found.
 *
 *     stress WORKER-PROGRAM [LIBRARY]         PROCS, OPS, SEED, QUOTA (MiB per card and container), THREADS (of a process at a time), CONTAINERS, KILLS and
 *                                             POLICY (of the driver: a number, wild, wild:NUMBER; else one drawn from SEED) and KINDS
 *                                             (of memory and work, with commas between; else all) from the environment
 *
 * overcommit_bytes  the most by which a container's peak, including context overhead, was above its quota on a card
 * false_oom         refusals of requests that would have fitted (judge.c), and wrong answers at quiet points
 * leaked_bytes      how far the library's count is outside of [held, held + slack], summed over cards, containers and quiet points, and
 *                   once more at the end, when only one context per card may remain. `held` is the memory that the driver holds at that
 *                   moment. `slack` is the amount that a library that knows only the table of bounds (docs/develop/simgpu.md) may still
 *                   count: for a context, the reported size less its cost; for linear memory passed to cuMemFreeAsync and already
 *                   freed, its size rounded up to 2 MiB until its stream or its context is synchronised; for memory that a pool gave
 *                   back in a call that is neither on that pool nor a synchronisation, those bytes until the next such call; for
 *                   modules, the sum of their rounded sizes less the saving by packing. The driver's ledger keeps the slack (state.h).
 * hangs             workers without progress for ten seconds
 * kills             processes that were killed; KILLS is the number of times, not of processes (stress.mk)
 *
 * A wild policy makes the driver take more than any bound. Memory whose size the driver reports (pools, graphs) is counted even so. Only the
 * node sees the rest: the run then does what the node's audit does, and every few milliseconds writes into the limits page the bytes that are
 * held and not counted (AUDIT=0: it does not). The library must fulfil this: its count and the audit's figure together cover the held memory
 * (leaked_bytes; more may be counted until the library has compared its figure with the driver's); at quiet points nothing is granted or
 * shown as free beyond what is left; and no process hangs or crashes. overcommit_bytes is printed but is not a failure; refusals are not
 * judged. */
#include "../simgpu/state/policy.h"
#include "watch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    if (!text || !*text) return otherwise;
    if (strspn(text, "0123456789") == strlen(text) && strlen(text) < 19) return strtoull(text, NULL, 10);
    fprintf(stderr, "stress: %s=%s is not a number of 0 or more%s\n", name, text, strcmp(name, "QUOTA") ? "" : " (of MiB, without a unit)");
    exit(2);
}

static const char memory_kinds[] = ",small,large,pitched,managed,array,mipmap,module,kernels,async,pooled,graph,nested,handle,";
static const char work_kinds[] = ",info,settle,share,ipc,churn,threads,child,reset,";

#define INNER(list) (int)sizeof list - 3, list + 1 /* without the commas at both ends */

static void check_kinds(const char *list)
{
    char word[42];
    bool memory = !list || !*list;
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',') {
        snprintf(word, sizeof word, ",%.*s,", (int)strcspn(at, ","), at);
        bool known = word[1] != ',' && (strstr(memory_kinds, word) || strstr(work_kinds, word));
        memory |= known && strstr(memory_kinds, word);
        if (!known) fprintf(stderr, "stress: KINDS=%s: unknown kind %.*s; of memory: %.*s; other: %.*s\n", list, (int)strlen(word) - 2, word + 1,
                            INNER(memory_kinds), INNER(work_kinds)), exit(2);
    }
    if (!memory) fprintf(stderr, "stress: KINDS=%s has no kind of memory: one of %.*s is needed\n", list, INNER(memory_kinds)), exit(2);
}

static void settle(struct board *b)
{
    b->workers = (uint32_t)setting("PROCS", 64);
    b->containers = (uint32_t)setting("CONTAINERS", 1);
    b->ops_wanted = setting("OPS", 1000000);
    b->threads = (uint32_t)setting("THREADS", 0);
    if (b->threads > THREADS_MOST) fprintf(stderr, "stress: THREADS=%u: from 1 to %d threads a process, or 0 for a number by chance\n", b->threads, THREADS_MOST), exit(2);
    if (!b->ops_wanted) fprintf(stderr, "stress: OPS is at least 1\n"), exit(2);
    check_kinds(getenv("KINDS"));
    b->seed = setting("SEED", 1);
    setting("KILLS", 0); /* so that a wrong value is reported before anything begins */
    if (setting("AUDIT", 1) > 1) fprintf(stderr, "stress: AUDIT is 0 or 1\n"), exit(2);
    if (b->workers < 1 || b->workers > WORKERS || b->containers < 1 || b->containers > CONTAINERS_MOST || b->containers > b->workers ||
        b->workers % b->containers) {
        fprintf(stderr, "stress: PROCS=%u CONTAINERS=%u: PROCS is from 1 to %d and a multiple of CONTAINERS, which is from 1 to %d\n", b->workers, b->containers,
                WORKERS, CONTAINERS_MOST);
        exit(2);
    }
    uint64_t each = b->workers / b->containers, quota = setting("QUOTA", 16 * each + 64) * MIB;
    if (quota < 32 * MIB) fprintf(stderr, "stress: QUOTA is at least 32 (MiB): with less there is no room for contexts, and no operation can succeed\n"), exit(2);
    for (int card = 0; card < CARDS; card++) b->quota[card] = quota + (uint64_t)card * 32 * MIB;
}

/* Every seed chooses another driver policy. */
static void choose_policy(struct place *p)
{
    struct sim_policy policy;
    const char *text = getenv("POLICY"), *not_here = getenv("SIMGPU_POLICY");
    if (not_here && *not_here) fprintf(stderr, "stress: SIMGPU_POLICY=%s changes nothing here: POLICY= names the driver's policy\n", not_here), exit(2);
    if (text && *text) snprintf(p->policy, sizeof p->policy, "%s", text);
    else snprintf(p->policy, sizeof p->policy, "%llu", 1 + (unsigned long long)(sim_policy_hash(p->board->seed, 0) % 1000));
    if (!sim_policy_read(p->policy, &policy)) fprintf(stderr, "stress: POLICY=%s: it is a number, wild or wild:NUMBER\n", text), exit(2);
    p->board->wild = policy.wild;
    sim_policy_print(&policy, stderr);
}

static void report(const struct watch *w, double seconds)
{
    const struct board *b = w->herd->place->board;
    bool terminal = isatty(STDERR_FILENO);
    fprintf(stderr, "%s%.0f s: %llu operations, %llu refusals, %llu kills, %llu quiet points, %llu exams%s", terminal ? "\r" : "", seconds,
            (unsigned long long)herd_ops(w->herd), (unsigned long long)atomic_load(&b->refusals), (unsigned long long)w->herd->kills,
            (unsigned long long)w->found.quiet_points, (unsigned long long)w->found.exams, terminal ? " " : "\n");
}

/* Kills and quiet points are timed by the number of operations, so that a slow machine has as many of them. */
static void run(struct watch *w)
{
    struct herd *h = w->herd;
    uint64_t wanted = h->place->board->ops_wanted, kills = setting("KILLS", wanted / 500), quiet_points = 20, from = sim_now(), second = 1;
    uint64_t next_kill = 0, next_quiet = wanted / (quiet_points + 1);
    for (uint64_t ops; (ops = herd_ops(h)) < wanted;) {
        herd_tend(h, true);
        if (kills && ops >= next_kill) {
            herd_kill_some(h);
            next_kill = ops + dice(&h->seed, (uint32_t)(2 * wanted / kills + 2) * 2);
        }
        if (ops >= next_quiet) {
            watch_quiet_point(w);
            next_quiet += wanted / (quiet_points + 1);
        }
        watch_peaks(w);
        watch_audit(w);
        watch_hangs(w);
        if (sim_now() - from >= second * 1000000000ull) report(w, (double)second), second = (sim_now() - from) / 1000000000ull + 1;
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    herd_end(h);
    report(w, (double)(sim_now() - from) / 1e9);
    if (isatty(STDERR_FILENO)) fputc('\n', stderr);
}

static int verdict(struct watch *w)
{
    const struct board *b = w->herd->place->board;
    struct findings *f = &w->found;
    f->false_oom += atomic_load(&b->false_oom);
    if (atomic_load(&b->judged_late)) fprintf(stderr, "%llu refusals were judged late\n", (unsigned long long)atomic_load(&b->judged_late));
    if (atomic_load(&b->ending)) fprintf(stderr, "%llu refusals came while a process was ending\n", (unsigned long long)atomic_load(&b->ending));
    printf("overcommit_bytes=%llu false_oom=%llu leaked_bytes=%llu hangs=%llu kills=%llu ops=%llu seed=%llu policy=%s\n",
           (unsigned long long)f->overcommit, (unsigned long long)f->false_oom, (unsigned long long)f->leaked, (unsigned long long)f->hangs,
           (unsigned long long)w->herd->kills, (unsigned long long)herd_ops(w->herd), (unsigned long long)b->seed, w->herd->place->policy);
    bool strange = atomic_load(&b->unexpected) || w->herd->crashes;
    if (strange) fprintf(stderr, "%llu unexpected answers, %llu crashes\n", (unsigned long long)atomic_load(&b->unexpected), (unsigned long long)w->herd->crashes);
    if (f->let_through) fprintf(stderr, "in %llu cases more was granted than was left\n", (unsigned long long)f->let_through);
    return (f->overcommit && !b->wild) || f->let_through || f->false_oom || f->leaked || f->hangs || strange;
}

int main(int argc, char **argv)
{
    static struct board settings;
    static struct place place = {.board = &settings};
    static struct herd herd = {.place = &place};
    static struct watch watch;
    static struct sim_host sim;
    if (argc < 2) return fprintf(stderr, "usage: stress WORKER-PROGRAM [LIBRARY], with settings in the environment: see stress.c\n"), 2;
    herd.program = argv[1];
    place.library = argc > 2 && *argv[2] ? argv[2] : NULL;
    for (int i = 1; i < argc && *argv[i]; i++)
        if (access(argv[i], R_OK)) return fprintf(stderr, "stress: %s cannot be read\n", argv[i]), 2;
    settle(&settings);
    choose_policy(&place);
    uint64_t quotas = settings.quota[CARDS - 1] * settings.containers;
    place_make(&place, quotas / MIB * 4 + 16384, setting("CONTEXT", 8));
    place_environment(&place, 0);
    unsetenv("LD_PRELOAD");
    herd.seed = settings.seed;
    watch.audits = settings.wild && place.library && setting("AUDIT", 1);
    if (!sim_open(&sim, true)) return fprintf(stderr, "stress: %s\n", sim.error), 3;
    watch_open(&watch, &herd, &sim);
    setpriority(PRIO_PROCESS, 0, -10); /* if allowed: kills and peaks should not wait behind all the workers */
    herd_start_all(&herd);
    run(&watch);
    watch_last(&watch);
    int status = verdict(&watch);
    sim_close(&sim);
    return status;
}
