/* What the library adds to the start of processes: 64 at once up to their first allocation, and one that does not touch the
 * driver; with and without it in turns. Also what it costs each in memory. The driver is null_driver.c.
 *
 * At once means: 64 processes wait at a gate, and when it opens all become the program. On two CPUs the last one then waits
 * for 32 others, and for whatever else the machine does: so the time on the wall is told (the 99th percentile of the best
 * round), and the bar is held against the CPU time of a process, together with how often it slept, which it would where
 * processes wait for each other in line. */
#include "bench.h"
#include "record.h"

#include <fcntl.h>
#include <stddef.h>
#include <sched.h>
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

static pid_t start(const char *program, int with, const int gate[2], int out)
{
    char at_text[32], byte;
    char *arguments[] = {(char *)program, at_text, NULL};
    pid_t pid = fork();
    if (pid) return pid;
    dup2(out, 1);
    close(gate[1]);
    while (read(gate[0], &byte, 1) > 0) {} /* until its other end is closed */
    snprintf(at_text, sizeof at_text, "%.0f", now_ns());
    execve(program, arguments, environments[with]);
    _exit(127);
}

/* Other load of the machine would be measured too: wait, not for long, until nobody else runs. */
static void wait_for_quiet(void)
{
    for (int i = 0, running = 9; i < 25 && running > 1; i++) {
        char text[64] = {0};
        int fd = open("/proc/loadavg", O_RDONLY);
        if (fd < 0 || read(fd, text, sizeof text - 1) < 0 || sscanf(text, "%*s %*s %*s %d", &running) != 1) running = 0;
        close(fd);
        if (running > 1) usleep(2000);
    }
}

/* So many at once; their records are smaller than what a pipe takes in one piece. */
static void herd(const char *program, int many, int with)
{
    int ends[2], gate[2], status;
    struct samples *s = &samples[with];
    must(pipe2(ends, O_CLOEXEC) || pipe2(gate, O_CLOEXEC), "pipe");
    for (int i = 0; i < many; i++) must(start(program, with, gate, ends[1]) < 0, "fork");
    close(gate[0]);
    close(ends[1]);
    usleep(many > 1 ? 20000 : 1000); /* all are at the gate */
    if (many > 1) wait_for_quiet();
    close(gate[1]);
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
