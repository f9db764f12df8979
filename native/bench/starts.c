/* Measures what the library adds to the start of processes, alternating between runs with and without it, and the memory that it costs in each.
 * The driver is null_driver.c, so that only the library is measured.
 *
 *   initialisation  64 processes have reached main and wait at a gate. When it opens, each calls cuInit, makes a context and
 *                   allocates. The figure is the wall time from the opening until that is done: the 99th percentile of the 64
 *                   processes, which is the last one. Processes that are done wait until all are, so exits are not measured. The
 *                   driver was loaded before main, with the library and without.
 *   start           64 processes wait at a gate, and when it opens all of them exec the program. The figure is the time from exec to
 *                   the first allocation. It includes the work of the kernel and the loader, which is several times everything else.
 *   CPU             processor time of a process until its first allocation, and how often it slept, as it would if processes
 *                   waited for each other.
 *
 * On two CPUs the last process waits for 32 others, and for all other work of the machine. So of the wall times the best round is printed,
 * which is closest to an otherwise idle machine, and the median round, which shows how far the best is from the usual. The bar applies to the
 * best round. */
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

static const char *programs[2]; /* one that allocates, one that does not use the driver */
static char preload[4096];
static char *environments[2][64]; /* without, with the library */

static struct samples {
    struct record records[MOST + 1]; /* one more, which is removed again */
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

/* This process's own descriptors of the pipes are above END. */
static pid_t start_to_the_gate(int with, int gate, int end, int out)
{
    char *arguments[] = {(char *)programs[0], "gate", NULL};
    pid_t pid = fork();
    if (pid) return pid;
    if (dup2(out, 1) < 0 || dup2(gate, GATE) < 0 || dup2(end, END) < 0) _exit(126);
    execve(programs[0], arguments, environments[with]);
    _exit(127);
}

/* Other load on the machine would be measured, too. Wait for a short time until no other process runs. */
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

static void pipe_above(int ends[2])
{
    must(pipe2(ends, O_CLOEXEC), "pipe");
    for (int i = 0; i < 2; i++) {
        int high = fcntl(ends[i], F_DUPFD_CLOEXEC, END + 1);
        must(high < 0, "fcntl");
        close(ends[i]);
        ends[i] = high;
    }
}

static void collect(int from, int many, struct samples *s, double since)
{
    int status;
    for (int i = 0; i < many; i++) {
        struct record *r = &s->records[s->count++];
        must(read(from, r, sizeof *r) != sizeof *r, "a process did not tell its time;");
        r->done_ns -= since;
    }
    close(from);
    for (int i = 0; i < many; i++) must(wait(&status) < 0 || status, "a process");
}

/* Opens the gate when all processes wait in main. */
static void herd_in_main(int with)
{
    int ends[2], gate[2], end[2];
    char here;
    pipe_above(ends), pipe_above(gate), pipe_above(end);
    for (int i = 0; i < AT_ONCE; i++) must(start_to_the_gate(with, gate[0], end[0], ends[1]) < 0, "fork");
    close(gate[0]), close(end[0]), close(ends[1]);
    for (int i = 0; i < AT_ONCE; i++) must(read(ends[0], &here, 1) != 1, "a process did not come to the gate;");
    usleep(1000); /* the last ones have reported, and go to sleep */
    wait_for_quiet();
    double opened = now_ns();
    close(gate[1]);
    usleep(40000); /* many times the time needed */
    close(end[1]);
    collect(ends[0], AT_ONCE, &samples[with], opened);
}

/* Starts `many` processes at once. A record is small enough to be written to a pipe in one piece. */
static void herd(const char *program, int many, int with)
{
    int ends[2], gate[2];
    must(pipe2(ends, O_CLOEXEC) || pipe2(gate, O_CLOEXEC), "pipe");
    for (int i = 0; i < many; i++) must(start(program, with, gate, ends[1]) < 0, "fork");
    close(gate[0]);
    close(ends[1]);
    usleep(many > 1 ? 20000 : 1000); /* all are at the gate */
    if (many > 1) wait_for_quiet();
    close(gate[1]);
    collect(ends[0], many, &samples[with], 0);
}

static void run(const char *program, int many, int rounds)
{
    samples[0].count = samples[1].count = 0;
    herd(program, 1, 0);
    herd(program, 1, 1); /* so that the files are in memory */
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

/* The 99th percentile of a round: of the best round for a part of 0, of the median round for 0.5. */
static double round_at(int with, double part)
{
    static double values[AT_ONCE], rounds[MOST / AT_ONCE];
    int count = 0;
    for (int first = 0; first < samples[with].count; first += AT_ONCE) {
        for (int i = 0; i < AT_ONCE; i++) values[i] = samples[with].records[first + i].done_ns;
        rounds[count++] = at(values, AT_ONCE, 0.99);
    }
    return at(rounds, count, part);
}

static int tell_round(const char *what, double part, double bar, const char *others)
{
    double base = round_at(0, part), with = round_at(1, part);
    return report(what, "ns", base, with, with - base, bar, others);
}

static int in_main(const char *others)
{
    samples[0].count = samples[1].count = 0;
    for (int i = 0; i < 2 * ROUNDS; i++) {
        herd(programs[0], 1, 1);
        samples[1].count--; /* this one reaps the dead processes of the last round, which a new container does not have */
        herd_in_main((i + i / 2) & 1);
    }
    int ok = tell_round("64 processes initialise at once, wall time to the first allocation, p99, best round", 0, 5e6, others);
    tell_round("64 processes initialise at once, wall time to the first allocation, p99, median round", 0.5, 0, others);
    tell("64 processes initialise at once, CPU time of one, median", "ns", FIELD(cpu_ns), 0.5, 0, others);
    return !ok;
}

static int at_once(void)
{
    const char *hami = "HAMi-core: 20 processes 64.3 s, later 11.3 s (PR 159); p50 0.25 -> 5.6 ms from 1 to 64 processes (#252)";
    int missed = in_main(hami);
    run(programs[0], AT_ONCE, ROUNDS);
    tell_round("64 processes start at once, exec to the first allocation, p99, best round", 0, 0, hami);
    tell_round("64 processes start at once, exec to the first allocation, p99, median round", 0.5, 0, hami);
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
