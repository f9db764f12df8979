/* Processes die at every instruction between two writes to the shared region, alone and in chains, while others continue to work. After every
 * round the accounts must add up to the sum, the quota must not have been exceeded, and living processes must have exactly the memory that they
 * have recorded. KILLS is the number of processes that must die. */
#include "ledger_check.h"

#include "base/point.h"
#include "ledger/account.h"
#include "ledger/descriptor.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/process.h"
#include "ledger/reap.h"
#include "ledger/shared.h"

#include "cuda_abi.h"
#include "region.h"

#include <stdatomic.h>
#include <sys/prctl.h>

#define CARDS 2
#define QUOTA (256 * MIB)
#define WORKERS 3      /* continue to work, and are killed at random moments */
#define VICTIMS 3      /* die at a chosen point of their work */
#define BLOCKS 16
#define KEYS 8

extern _Atomic long fr_points_left;
extern const struct fr_site *_Atomic *fr_died_at, *fr_only_at;
extern const struct fr_site __start_fr_points[], __stop_fr_points[];

static struct board {
    _Atomic uint32_t pause, paused, mistakes, above_quota;
    _Atomic uint64_t keys[KEYS];
    const struct fr_site *_Atomic died_at[VICTIMS];
    uint32_t deaths_at[256];
} *board;

/* ---- the work of a process ---- */

struct block { uint64_t bytes; int card, object; };
struct life {
    struct block blocks[BLOCKS]; /* bytes 0: no block */
    int joined[BLOCKS];
    unsigned seed, number;
};

static unsigned dice(struct life *l, unsigned sides)
{
    l->seed = l->seed * 1664525u + 1013904223u;
    return (l->seed >> 8) % sides;
}

static void allocate(struct life *l, struct block *b)
{
    struct fr_op op;
    uint64_t worst = (dice(l, 40) ? dice(l, 24) + 1ull : 250) * MIB, kept = dice(l, 3) ? worst : worst * dice(l, 8) / 8;
    b->card = (int)dice(l, CARDS);
    if (fr_op_begin(&op, b->card, worst) != CUDA_SUCCESS) return;
    if (dice(l, 8) == 0 && fr_op_more(&op, MIB)) kept += MIB;
    fr_op_end(&op, kept);
    b->bytes = kept;
    b->object = FR_NO_OBJECT;
}

static void release(struct block *b)
{
    struct fr_op op;
    fr_free_begin(&op, b->card);
    fr_free_end(&op, b->object == FR_NO_OBJECT ? b->bytes : fr_object_leave(b->object));
    b->bytes = 0;
    b->object = FR_NO_OBJECT;
}

static void share(struct life *l, struct block *b)
{
    uint64_t key = (uint64_t)getpid() << 32 | ++l->number;
    b->object = fr_object_share(b->card, b->bytes, (struct fr_key){key, 1});
    if (b->object >= 0 && dice(l, 4) == 0) fr_object_also(b->object, (struct fr_key){key, 2});
    atomic_store(&board->keys[dice(l, KEYS)], key);
}

static void join(struct life *l, int *place)
{
    struct fr_op op;
    if (*place >= 0) {
        fr_free_begin(&op, fr_object_card(*place));
        fr_free_end(&op, fr_object_leave(*place));
        *place = -1;
    } else {
        *place = fr_object_join((struct fr_key){atomic_load(&board->keys[dice(l, KEYS)]), dice(l, 4) ? 1 : 2});
    }
}

static void one_thing(struct life *l)
{
    struct block *b = &l->blocks[dice(l, BLOCKS)];
    switch (dice(l, 8)) {
    case 0: case 1: case 2: case 3:
        if (b->bytes) release(b);
        else allocate(l, b);
        break;
    case 4:
        if (b->bytes && b->object == FR_NO_OBJECT) share(l, b);
        break;
    case 5: case 6:
        join(l, &l->joined[dice(l, BLOCKS)]);
        break;
    default:
        if (dice(l, 8)) fr_used((int)dice(l, CARDS));
        else fr_reap();
    }
    for (uint32_t card = 0; card < CARDS; card++)
        if (fr_used_units(card) * FR_UNIT_BYTES > QUOTA) atomic_fetch_add(&board->above_quota, 1);
}

/* Units of shared objects that are in this process's account, however it holds them. */
static uint64_t covered_units(uint32_t card)
{
    uint64_t units = 0;
    for (uint32_t n = 0; n < fr_shared.object_count; n++) {
        struct fr_object *o = &fr_shared.objects[n];
        if (atomic_load(&o->state) == FR_OBJECT_COVERED && o->origin == fr_shared.slot && o->card == card) units += o->units;
    }
    return units;
}

static void mistake(const char *what)
{
    fprintf(stderr, "%s\n", what);
    atomic_fetch_add(&board->mistakes, 1);
}

static bool is_counted(int object)
{
    struct fr_object *o = &fr_shared.objects[object];
    uint32_t state = atomic_load(&o->state);
    bool ours = atomic_load(&o->holders[fr_shared.slot / 64]) >> fr_shared.slot % 64 & 1;
    return ours && (state == FR_OBJECT_COVERED || state == FR_OBJECT_OWN);
}

static void look_at_oneself(struct life *l)
{
    for (int i = 0; i < BLOCKS; i++)
        if (l->joined[i] >= 0 && !is_counted(l->joined[i])) mistake("what we joined is in nobody's account");
    for (uint32_t card = 0; card < CARDS; card++) {
        uint64_t held = covered_units(card) * FR_UNIT_BYTES;
        for (struct block *b = l->blocks; b < l->blocks + BLOCKS; b++)
            if (b->card == (int)card && b->object == FR_NO_OBJECT) held += (b->bytes + FR_UNIT_BYTES - 1) / FR_UNIT_BYTES * FR_UNIT_BYTES;
        if (fr_used_here((int)card) == held) continue;
        fprintf(stderr, "card %u: %llu charged, %llu held\n", card, (unsigned long long)fr_used_here((int)card), (unsigned long long)held);
        mistake("its account is not what a process holds");
    }
}

static void begin_life(struct life *l, unsigned seed)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    memset(l, 0, sizeof *l);
    for (int i = 0; i < BLOCKS; i++) l->joined[i] = l->blocks[i].object = FR_NO_OBJECT;
    l->seed = seed;
}

static void work(unsigned seed)
{
    static struct life l;
    begin_life(&l, seed);
    for (;;) {
        for (int i = 0; i < 20; i++) one_thing(&l);
        uint32_t pause = atomic_load(&board->pause); /* odd: pause */
        if (!(pause & 1)) {
            usleep(dice(&l, 200)); /* all share two processors */
            continue;
        }
        look_at_oneself(&l);
        atomic_fetch_add(&board->paused, 1);
        while (atomic_load(&board->pause) == pause) usleep(50);
    }
}

/* The process dies at its N-th point, or when it reaches one point for the N-th time. */
struct fate { long points; const struct fr_site *only_at; bool reaps_first; };

static void be_victim(unsigned seed, struct fate fate, const struct fr_site *_Atomic *died_at)
{
    static struct life l;
    begin_life(&l, seed);
    fr_died_at = died_at;
    fr_only_at = fate.only_at;
    atomic_store(&fr_points_left, fate.points);
    if (fate.reaps_first) fr_reap();
    for (int i = 0; i < 600; i++) one_thing(&l);
}

/* ---- the parent ---- */

static pid_t start_worker(unsigned seed)
{
    return IN_CHILD(work(seed));
}

static bool note_death(int status, unsigned victim)
{
    if (!WIFSIGNALED(status)) return false;
    const struct fr_site *site = atomic_exchange(&board->died_at[victim], NULL);
    if (site) board->deaths_at[site - __start_fr_points]++;
    return true;
}

static struct fate fate_of(unsigned round, unsigned victim)
{
    unsigned sites = (unsigned)(__stop_fr_points - __start_fr_points);
    if (victim == 0) return (struct fate){1 + round % 120, NULL, true}; /* reaps the dead processes of the round before, and dies while it does so */
    if (round % 3 == 0) return (struct fate){1 + (round * 7 + victim) % 400, NULL, false};
    return (struct fate){1 + round / sites % 3, &__start_fr_points[(round + victim * 5) % sites], victim == 1};
}

static unsigned let_die(unsigned seed, const struct fate *fates)
{
    pid_t pids[VICTIMS];
    unsigned kills = 0;
    for (unsigned v = 0; v < VICTIMS; v++) pids[v] = IN_CHILD(be_victim(seed + v, fates[v], &board->died_at[v]));
    for (unsigned v = 0; v < VICTIMS; v++) {
        int status = wait_for(pids[v]);
        EXPECT(status != -1); /* hung */
        kills += note_death(status, v);
    }
    return kills;
}

static unsigned round_of_victims(unsigned round)
{
    struct fate fates[VICTIMS];
    for (unsigned v = 0; v < VICTIMS; v++) fates[v] = fate_of(round, v);
    return let_die(round * 31, fates);
}

/* Some points are reached only while another process is halfway through a change of the same card: these victims die only there. */
static unsigned die_at_points_not_reached_yet(unsigned round)
{
    struct fate fates[VICTIMS];
    unsigned kills = 0;
    for (const struct fr_site *site = __start_fr_points; site < __stop_fr_points; site++) {
        for (unsigned v = 0; v < VICTIMS; v++) fates[v] = (struct fate){1, site, false};
        for (unsigned i = 0; i < 500 && !board->deaths_at[site - __start_fr_points]; i++) kills += let_die((round + i) * 31, fates);
    }
    return kills;
}

static void say_where_all_are(void)
{
    fprintf(stderr, "lock of objects %u, paused %u\n", atomic_load(&fr_shared.region->object_lock), atomic_load(&board->paused));
    for (uint32_t n = 0; n < fr_shared.slot_count; n++) {
        struct fr_slot *s = fr_slot(n);
        if (atomic_load(&s->state) == FR_SLOT_FREE) continue;
        char command[128];
        fprintf(stderr, "slot %u: state %u, pid %u, reaping %u\n", n, atomic_load(&s->state), s->pid, atomic_load(&s->reaping));
        snprintf(command, sizeof command, "cut -c1-60 /proc/%u/stat; cat /proc/%u/wchan; echo; cat /proc/%u/syscall", s->pid, s->pid, s->pid);
        if (system(command)) fprintf(stderr, "is gone\n");
    }
}

static bool pause_workers(void)
{
    atomic_store(&board->paused, 0);
    atomic_fetch_add(&board->pause, 1);
    for (double end = seconds() + 10; atomic_load(&board->paused) < WORKERS; usleep(50))
        if (seconds() > end) return say_where_all_are(), false;
    return true;
}

static bool has_holders(struct fr_object *o)
{
    for (uint32_t i = 0; i < FR_MAX_SLOTS / 64; i++)
        if (atomic_load(&o->holders[i])) return true;
    return false;
}

/* Shared memory is in the account of its living maker, or in its own account. */
static void check_objects(void)
{
    for (uint32_t n = 0; n < fr_shared.object_count; n++) {
        struct fr_object *o = &fr_shared.objects[n];
        uint32_t state = atomic_load(&o->state);
        EXPECT(state != FR_OBJECT_MADE);
        if (state == FR_OBJECT_COVERED) EXPECT(o->origin_generation == atomic_load(&fr_slot(o->origin)->generation));
        if (state == FR_OBJECT_COVERED) EXPECT_EQ(atomic_load(&fr_slot(o->origin)->state), FR_SLOT_LIVE);
        if (state == FR_OBJECT_OWN) EXPECT_EQ(fr_charged_units(&o->own), o->units);
        if (state == FR_OBJECT_COVERED || state == FR_OBJECT_OWN) EXPECT(has_holders(o));
    }
}

/* When all processes pause and the dead ones are reaped: is every unit in exactly one account? */
static void check_sums(uint32_t alive)
{
    check_objects();
    for (uint32_t card = 0; card < CARDS; card++) {
        EXPECT_EQ(fr_used_units(card) * FR_UNIT_BYTES, sum_of_charges(card));
        EXPECT(fr_used_units(card) * FR_UNIT_BYTES <= QUOTA);
    }
    uint32_t live = 0;
    for (uint32_t n = 0; n < fr_shared.slot_count; n++) live += atomic_load(&fr_slot(n)->state) != FR_SLOT_FREE;
    EXPECT_EQ(live, alive);
    EXPECT_EQ(atomic_load(&fr_shared.region->object_lock), 0);
}

/* True: an account of a slot whose process is gone still has a charge. */
static bool dead_hold_something(const pid_t *workers)
{
    for (uint32_t n = 0; n < fr_shared.slot_count; n++) {
        bool lives = false;
        for (int w = 0; w < WORKERS; w++) lives |= fr_slot(n)->pid == (uint32_t)workers[w];
        if (!lives && (fr_charged_units(fr_slot_account(n, 0)) || fr_charged_units(fr_slot_account(n, 1)))) return true;
    }
    return false;
}

static double slowest_return;
static unsigned returns, late_returns; /* on a busy machine the looking process does not always run */

static void wait_until_charges_are_back(const pid_t *workers, double died)
{
    while (dead_hold_something(workers) && seconds() - died < 5) {
        fr_used(0); /* the look that reaps */
        usleep(500);
    }
    double took = seconds() - died;
    if (took > slowest_return) slowest_return = took;
    late_returns += took > 0.1;
    returns++;
}

static void replace_one(pid_t *worker, unsigned seed)
{
    kill(*worker, SIGKILL);
    EXPECT(wait_for(*worker) != -1);
    *worker = start_worker(seed);
}

static unsigned kill_at(const struct fr_site *site, unsigned seed)
{
    int status = wait_for(IN_CHILD(be_victim(seed, (struct fate){1, site, false}, &board->died_at[0])));
    EXPECT(status != -1);
    return note_death(status, 0);
}

/* One process dies at one point, the next one at another point while it cleans up after the first; then a third must clean up after both. */
static void killed_at_every_pair_of_points_one_after_the_other_nothing_is_left(void)
{
    unsigned kills = 0, sites = (unsigned)(__stop_fr_points - __start_fr_points);
    for (unsigned pair = 0; pair < sites * sites && ok_so_far; pair++) {
        kills += kill_at(&__start_fr_points[pair / sites], pair) + kill_at(&__start_fr_points[pair % sites], pair + 1);
        fr_reap();
        check_sums(0);
        EXPECT_EQ(fr_used_units(0) + fr_used_units(1), 0);
    }
    printf("     %u kills at %u pairs of points\n", kills, sites * sites);
}

static void killed_anywhere_no_byte_is_lost_or_kept(void)
{
    unsigned wanted = getenv("KILLS") ? (unsigned)atoi(getenv("KILLS")) : 1000, kills = 0, round = 0;
    pid_t workers[WORKERS];
    for (unsigned w = 0; w < WORKERS; w++) workers[w] = start_worker(w);
    for (; kills < wanted && ok_so_far; round++) {
        kills += round_of_victims(round);
        if (round % 4 == 0) replace_one(&workers[round / 4 % WORKERS], round), kills++;
        if (round % 3) continue; /* the victims of the next round reap these dead processes */
        double died = seconds();
        EXPECT(pause_workers());
        if (round % 30 == 0) wait_until_charges_are_back(workers, died);
        fr_reap();
        check_sums(WORKERS);
        atomic_fetch_add(&board->pause, 1);
    }
    kills += die_at_points_not_reached_yet(round);
    EXPECT(pause_workers());
    fr_reap();
    check_sums(WORKERS);
    for (unsigned w = 0; w < WORKERS; w++) kill(workers[w], SIGKILL), wait_for(workers[w]);
    fr_reap();
    EXPECT_EQ(fr_used_units(0) + fr_used_units(1), 0);
    EXPECT_EQ(board->mistakes, 0);
    EXPECT_EQ(board->above_quota, 0);
    EXPECT(late_returns <= returns / 4 && slowest_return < 5);
    printf("     %u kills in %u rounds; charges were back after %.0f ms at most\n", kills, round, slowest_return * 1e3);
}

static void every_point_was_died_at(void)
{
    unsigned least = ~0u, sites = 0;
    for (const struct fr_site *s = __start_fr_points; s < __stop_fr_points; s++, sites++) {
        unsigned deaths = board->deaths_at[s - __start_fr_points];
        if (deaths < least) least = deaths;
        if (deaths == 0) fprintf(stderr, "nobody died at %s:%d\n", s->file, s->line);
    }
    EXPECT(least > 0);
    printf("     %u points, each died at %u times or more\n", sites, least);
}

static int tests(void)
{
    make_container(QUOTA, CARDS, 32);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!fr_process_attach()) return 1;
    RUN(killed_at_every_pair_of_points_one_after_the_other_nothing_is_left);
    RUN(killed_anywhere_no_byte_is_lost_or_kept);
    RUN(every_point_was_died_at);
    FINISH;
}

int main(void)
{
    return with_directory(tests);
}
