/* What the library adds to the start of processes: 64 at once up to their first allocation, and one that does not touch the
 * driver; with and without it in turns. Also what it costs each in memory.
 *
 * 64 processes on a few CPUs wait for each other mostly: what one takes of the CPU, the 64th waits 64 / CPUs times for.
 * So the bar is held against the CPU time of a process, together with how often it had to sleep (which would be a
 * lock that processes wait for in line); the time on the wall is that of the best round, and is told. */
#include "bench.h"
#include "record.h"

#include <fcntl.h>
#include <stddef.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT_ONCE 64
#define ROUNDS 16
#define ALONE 400
#define MOST (AT_ONCE * ROUNDS)

static const char *programs[2]; /* one that allocates, one that does not touch the driver */
static char preload[4096];
static char *environments[2][64]; /* without, with the library */

static struct samples {
    struct record records[MOST];
    int count;
} samples[2];

static void make_environments(const char *library)
{
    extern char **environ;
    int n = 0;
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", library);
    for (char **e = environ; *e && n < 62; e++)
        if (strncmp(*e, "LD_PRELOAD=", 11) != 0) environments[0][n] = environments[1][n] = *e, n++;
    environments[1][n] = preload;
}

static void start(const char *program, int with, int out)
{
    char at_text[32];
    char *arguments[] = {(char *)program, at_text, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out, 1);
    snprintf(at_text, sizeof at_text, "%.0f", now_ns());
    must(posix_spawn(&pid, program, &actions, NULL, arguments, environments[with]), "posix_spawn");
    posix_spawn_file_actions_destroy(&actions);
}

/* So many at once; their records are smaller than what a pipe takes in one piece. */
static void herd(const char *program, int many, int with)
{
    int ends[2], status;
    struct samples *s = &samples[with];
    must(pipe2(ends, O_CLOEXEC), "pipe");
    for (int i = 0; i < many; i++) start(program, with, ends[1]);
    close(ends[1]);
    for (int i = 0; i < many; i++) {
        must(read(ends[0], &s->records[s->count], sizeof(struct record)) != sizeof(struct record), "a process did not tell its time;");
        s->count++;
    }
    close(ends[0]);
    for (int i = 0; i < many; i++) must(wait(&status) < 0 || status, "a process");
}

static void run(const char *program, int many, int rounds)
{
    samples[0].count = samples[1].count = 0;
    herd(program, 1, 0);
    herd(program, 1, 1); /* what is read from disk is read */
    samples[0].count = samples[1].count = 0;
    for (int i = 0; i < rounds; i++)
        for (int k = 0; k < 2; k++) herd(program, many, (i + k) & 1);
}

static double values_at(int with, size_t field, double part)
{
    static double values[MOST];
    for (int i = 0; i < samples[with].count; i++) {
        const char *r = (const char *)&samples[with].records[i];
        values[i] = *(const double *)(const void *)(r + field);
    }
    return at(values, samples[with].count, part);
}

static int tell(const char *what, const char *unit, size_t field, double part, double bar, const char *others)
{
    double base = values_at(0, field, part), with = values_at(1, field, part);
    return report(what, unit, base, with, with - base, bar, others);
}
#define FIELD(name) offsetof(struct record, name)

/* The 99th percentile of the best round. */
static double best_round(int with)
{
    static double values[AT_ONCE];
    double best = 0;
    for (int first = 0; first < samples[with].count; first += AT_ONCE) {
        for (int i = 0; i < AT_ONCE; i++) values[i] = samples[with].records[first + i].done_ns;
        double worst = at(values, AT_ONCE, 0.99);
        if (!best || worst < best) best = worst;
    }
    return best;
}

static int at_once(void)
{
    const char *hami = "HAMi-core: 20 processes 64.3 s, later 11.3 s (PR 159); p50 0.25 -> 5.6 ms from 1 to 64 processes (#252)";
    int missed = 0;
    run(programs[0], AT_ONCE, ROUNDS);
    double base = best_round(0), with = best_round(1);
    report("64 processes at once, exec to first allocation, p99 of the best round", "ns", base, with, with - base, 0, hami);
    tell("64 processes at once, CPU time to the first allocation, median", "ns", FIELD(cpu_ns), 0.5, 0, "HAMi: 83 ms to create a context (GPU-Virt-Bench)");
    missed += !tell("64 processes at once, CPU time to the first allocation, p99", "ns", FIELD(cpu_ns), 0.99, 5e6, hami);
    missed += !tell("64 processes at once, times that one slept, median", "times", FIELD(slept), 0.5, 1, hami);
    tell("memory of a process that allocated, private", "bytes", FIELD(private_bytes), 0.5, 0, "none published");
    tell("memory of a process that allocated, peak resident", "bytes", FIELD(peak_bytes), 0.5, 0, "none published");
    return missed;
}

static void alone(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    run(programs[1], 1, ALONE);
    tell("start of a program that does not touch the driver, median", "ns", FIELD(done_ns), 0.5, 0, "none published");
    tell("memory of a program that does not touch the driver, private", "bytes", FIELD(private_bytes), 0.5, 0, "none published");
}

int main(int count, char **arguments) /* the two programs, library */
{
    if (count != 4) return 2;
    programs[0] = arguments[1], programs[1] = arguments[2];
    make_environments(arguments[3]);
    int missed = at_once();
    alone();
    return missed ? 3 : 0;
}
