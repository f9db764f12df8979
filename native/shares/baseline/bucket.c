/* The baseline with which the shares are compared: a token bucket controlled by utilisation, as in widely used limiters. It is used only here,
 * to be measured beside the arbiter, and is preloaded into a tenant in place of Fractile's library.
 *
 *   - A launch takes as many tokens as its grid has blocks, whatever their size and time. It waits, in naps of 10 ms, only
 *     while the bucket is already below zero: one launch always passes, however large.
 *   - Every 120 ms a thread reads from NVML the utilisation of the container's processes over the last second, and changes the
 *     refill by a step that grows with the square of the number of SMs and with the distance from the target, at least 5 points.
 *     The refill is added to the bucket, up to its capacity; the bucket is never drained.
 *   - A soft limit's target rises by a tenth every 30 rounds while the card has idle time, and falls back when a new process starts.
 *   - Graphs, cooperative launches and copies are not limited.
 *
 * Each process has a bucket of its own, controlled by the utilisation of its whole container. In the directory FRACTILE_DIR the file `bucket`
 * contains "CORES LIMIT" in percent (LIMIT 0: hard), and the container's processes write their pids to the file `pids`. */
#include "cuda_abi.h"
#include "nvml_abi.h"

#include "clock.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUND_NS 120000000ull
#define NAP_NS 10000000ull
#define THREADS_PER_SM 2048ll
#define MOST 64
#define SMS 108ll /* of the simulated card */

typedef CUresult launch_call(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
__attribute__((visibility("default"))) launch_call cuLaunchKernel;

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t, nvmlUtilization_t *);

static _Atomic int64_t bucket;
static int64_t refill, full;
static int cores, soft_limit, target;
static nvmlDevice_t card;
static _Atomic bool steering;
static launch_call *real;

static FILE *open_file(const char *name, const char *how)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", getenv("FRACTILE_DIR") ? getenv("FRACTILE_DIR") : "", name);
    return fopen(path, how);
}

/* ---- the sensor ---- */

static unsigned of_container(unsigned *pids)
{
    FILE *f = open_file("pids", "r");
    unsigned n = 0;
    while (f && n < MOST && fscanf(f, "%u", &pids[n]) == 1) n++;
    if (f) fclose(f);
    return n;
}

static void register_pid(void)
{
    FILE *f = open_file("pids", "a");
    if (!f) return;
    fprintf(f, "%d\n", (int)getpid());
    fclose(f);
}

static int utilisation(unsigned *processes)
{
    nvmlProcessUtilizationSample_t samples[MOST];
    unsigned pids[MOST], known = of_container(pids), count = MOST;
    int sum = 0;
    if (nvmlDeviceGetProcessUtilization(card, samples, &count, 0)) count = 0;
    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < known; k++) sum += samples[i].pid == pids[k] ? (int)samples[i].smUtil : 0;
    *processes = count;
    return sum;
}

/* ---- the controller ---- */

static int64_t step(int used)
{
    int64_t apart = llabs((long long)target - used), least = apart < 5 ? 5 : apart;
    int64_t by = SMS * SMS * THREADS_PER_SM * least / 2560;
    return apart > target / 2 ? by * 2 * apart / (target + 1) : by;
}

static void raise_target(unsigned round, unsigned processes)
{
    static unsigned before;
    nvmlUtilization_t all = {0};
    if (processes > before || !soft_limit) target = cores;
    before = processes;
    if (!soft_limit || round % 30 || nvmlDeviceGetUtilizationRates(card, &all) || all.gpu >= 95) return;
    target += soft_limit / 10;
    if (target > soft_limit) target = soft_limit;
}

static void steer(unsigned round)
{
    unsigned processes;
    int used = utilisation(&processes);
    raise_target(round, processes);
    refill += used <= target ? step(used) : -step(used);
    if (refill > full) refill = full;
    if (refill < 0) refill = 0;
    int64_t now = atomic_load(&bucket), then;
    do then = now + refill > full ? full : now + refill;
    while (!atomic_compare_exchange_weak(&bucket, &now, then));
}

static void *controller(void *unused)
{
    uint64_t next = clock_now();
    atomic_store(&steering, true);
    for (unsigned round = 1;; round++) {
        next += ROUND_NS;
        clock_sleep_until(next);
        steer(round);
    }
    return unused;
}

static void begin(void)
{
    pthread_t thread;
    real = (launch_call *)dlsym(RTLD_NEXT, "cuLaunchKernel");
    FILE *terms = open_file("bucket", "r");
    if (terms && fscanf(terms, "%d %d", &cores, &soft_limit) != 2) cores = 0;
    if (terms) fclose(terms);
    target = cores;
    full = SMS * THREADS_PER_SM * 32;
    if (!cores || cores >= 100) return;
    if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &card)) return;
    register_pid();
    if (pthread_create(&thread, NULL, controller, NULL)) return;
    while (!atomic_load(&steering)) sched_yield(); /* the clock stands still until the thread takes part */
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s,
                        void **parameters, void **extra)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin);
    if (cores && cores < 100) {
        while (atomic_load(&bucket) < 0) clock_sleep_until(clock_now() + NAP_NS);
        atomic_fetch_sub(&bucket, (int64_t)gx * gy * gz);
    }
    return real(f, gx, gy, gz, bx, by, bz, shared, s, parameters, extra);
}
