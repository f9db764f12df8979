/* The program of which starts.c starts many processes: reports when its first allocation was done, the CPU time until then, and its memory.
 * With `gate` it first reports that it has reached main, and waits there. After its work it waits until the other processes are done, too.
 * Built with IDLE it is a program that does not use the driver. */
#include "bench.h"
#include "record.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

int cuInit(unsigned);
int cuCtxCreate_v2(void **, unsigned, int);
int cuMemAlloc_v2(unsigned long long *, size_t);

static double cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double kib(const char *text, const char *name)
{
    const char *p = strstr(text, name);
    return p ? strtod(p + strlen(name), NULL) : 0;
}

static void memory(struct record *out)
{
    char text[4096] = {0};
    int fd = open("/proc/self/smaps_rollup", O_RDONLY);
    if (fd < 0 || read(fd, text, sizeof text - 1) < 0) return;
    close(fd);
    out->private_bytes = 1024 * (kib(text, "Private_Clean:") + kib(text, "Private_Dirty:"));
    memset(text, 0, sizeof text);
    fd = open("/proc/self/status", O_RDONLY);
    if (fd >= 0 && read(fd, text, sizeof text - 1) > 0) out->peak_bytes = 1024 * kib(text, "VmHWM:");
    if (fd >= 0) close(fd);
}

#ifdef IDLE
static void work(void) {}
#else
static void work(void)
{
    void *context;
    unsigned long long pointer;
    must(cuInit(0), "cuInit");
    must(cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate");
    must(cuMemAlloc_v2(&pointer, 1 << 20), "cuMemAlloc");
}
#endif

static double times_slept(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_nvcsw;
}

static void wait_for_end_of(int pipe)
{
    char byte;
    while (read(pipe, &byte, 1) > 0) {}
}

static void measured(struct record *r)
{
    r->main_ns = now_ns();
    work();
    r->done_ns = now_ns();
    r->cpu_ns += cpu_ns();
    r->slept += times_slept();
}

static void at_the_gate(struct record *r)
{
    char here = 1;
    must(write(1, &here, 1) != 1, "write");
    wait_for_end_of(GATE);
    r->cpu_ns = -cpu_ns();
    r->slept = -times_slept();
    measured(r);
    wait_for_end_of(END);
}

int main(int count, char **arguments) /* the time when it was started, or `gate` */
{
    struct record r = {0};
    if (count != 2) return 2;
    if (!strcmp(arguments[1], "gate")) at_the_gate(&r);
    else measured(&r);
    memory(&r);
    double started = strtod(arguments[1], NULL); /* `gate` gives 0 */
    r.done_ns -= started, r.main_ns -= started;
    return write(1, &r, sizeof r) == sizeof r ? 0 : 1;
}
