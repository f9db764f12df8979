/* Entry to and exit from the simulated driver: initialisation, fork, the process's mutex. */
#include "clock.h"
#include "local.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

struct sim_local sim;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread bool slack_set;
static __thread int cancel_state;

void sim_complain(const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (n < 0) return;
    size_t length = strnlen(line, sizeof line - 2);
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0) return;
}

/* A real driver refuses all work in a child that was forked after its initialisation. */
static void in_child(void)
{
    bool was = sim.initialised;
    clock_after_fork();
    sim_after_fork(&sim.host);
    memset(&sim, 0, sizeof sim);
    sim.forked = was;
    pthread_mutex_init(&mutex, NULL);
}

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void in_parent(void) { pthread_mutex_unlock(&mutex); }

/* A thread that is cancelled in the middle of a call would leave the locks held, so it is cancelled after the call. */
static void begin_call(void) { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state); }
static void end_call(void) { pthread_setcancelstate(cancel_state, NULL); }

CUresult sim_enter(void)
{
    if (!sim.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    begin_call();
    sim_disturb();
    pthread_mutex_lock(&mutex);
    return CUDA_SUCCESS;
}

CUresult sim_enter_context(struct sim_ctx **ctx)
{
    CUresult r = sim_enter();
    if (r) return r;
    *ctx = sim_current();
    r = sim_context_check(*ctx);
    return r ? sim_leave(r) : CUDA_SUCCESS;
}

CUresult sim_leave(CUresult result)
{
    sim_late_look();
    sim_pools_between_calls();
    pthread_mutex_unlock(&mutex);
    sim_disturb();
    end_call();
    return result;
}

void sim_pause(void) { pthread_mutex_unlock(&mutex); }
void sim_resume(void) { pthread_mutex_lock(&mutex); }

/* The result of a driver that lacks the feature. */
CUresult sim_stub(const char *name)
{
    if (getenv("SIMGPU_TRACE")) sim_complain("simgpu: %s is not modelled", name);
    return sim.initialised ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_INITIALIZED;
}

/* Under the virtual clock, waking up takes WAKE_NS, about the time on a real machine. Under the real clock nothing is added. */
#define WAKE_NS 10000

void sim_nap_until(uint64_t when)
{
    if (clock_is_virtual()) return clock_sleep_until(when + WAKE_NS);
    uint64_t now = sim_now();
    if (when <= now + 30000) { /* a sleep would take longer than this */
        sched_yield();
        return;
    }
    if (!slack_set) { /* the default slack of 50 us would be part of every kernel's time */
        prctl(PR_SET_TIMERSLACK, 1000UL);
        slack_set = true;
    }
    struct timespec t = {(time_t)(when / 1000000000ull), (long)(when % 1000000000ull)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

bool sim_device_valid(int device) { return device >= 0 && device < sim.device_count; }

struct sim_card *sim_card_of(int device) { return &sim.host.state->cards[sim.devices[device].card]; }

/* ---- which cards does this process see? ---- */

static bool names_card(const char *word, const struct sim_card *c, int position)
{
    char *end;
    long number = strtol(word, &end, 10);
    if (*word && !*end) return number == position;
    return strlen(word) > 4 && !strncasecmp(c->uuid, word, strlen(word)); /* a unique prefix is enough */
}

/* Keeps the cards that the list names, in its order. As with the real lists, the first unknown name ends either list. */
static int choose(const char *list, uint32_t *cards, int count)
{
    uint32_t chosen[SIM_CARDS];
    int found = 0;
    char *copy = strdup(list), *rest = copy;
    for (char *word = strsep(&rest, ","); word && found < SIM_CARDS; word = strsep(&rest, ",")) {
        int at = -1;
        for (int i = 0; i < count; i++)
            if (names_card(word, &sim.host.state->cards[cards[i]], i)) at = i;
        if (at < 0) break;
        bool twice = false;
        for (int i = 0; i < found; i++) twice |= chosen[i] == cards[at];
        if (twice) break;
        chosen[found++] = cards[at];
    }
    free(copy);
    memcpy(cards, chosen, (size_t)found * sizeof *cards);
    return found;
}

static void find_devices(void)
{
    uint32_t cards[SIM_CARDS];
    int count = 0;
    const char *container = getenv("NVIDIA_VISIBLE_DEVICES"), *process = getenv("CUDA_VISIBLE_DEVICES");
    for (uint32_t i = 0; i < sim.host.state->card_count; i++)
        if (sim.host.state->cards[i].present && !sim.host.state->cards[i].lost) cards[count++] = i;
    if (container && *container && strcmp(container, "all") != 0) count = choose(container, cards, count);
    if (process) count = choose(process, cards, count);
    for (int i = 0; i < count; i++) sim.devices[i].card = cards[i];
    sim.device_count = count;
}

static bool read_settings(void)
{
    const char *granule = getenv("SIMGPU_GRANULE"), *limit = getenv("SIMGPU_CONTENTS_MIB"), *again = getenv("SIMGPU_STREAMS_AGAIN");
    sim.pack = !(granule && *granule);
    sim.granule = sim.pack ? SIM_GRANULE : strtoull(granule, NULL, 10);
    if (sim.granule < 1) sim.granule = 1;
    sim.contents_limit = (limit && *limit ? strtoull(limit, NULL, 10) : 1024) * SIM_MIB;
    sim.streams_again = again && strtoul(again, NULL, 10);
    return sim_policy_read(getenv("SIMGPU_POLICY"), &sim.policy);
}

static CUresult initialise(void)
{
    if (!sim_open(&sim.host, false)) {
        sim_complain("simgpu: %s", sim.host.error);
        return CUDA_ERROR_NO_DEVICE;
    }
    if (!read_settings()) {
        sim_complain("simgpu: SIMGPU_POLICY is neither a number nor wild[:number]: %s", getenv("SIMGPU_POLICY"));
        sim_close(&sim.host);
        return CUDA_ERROR_NO_DEVICE;
    }
    find_devices();
    if (sim.device_count == 0) {
        sim_close(&sim.host);
        return CUDA_ERROR_NO_DEVICE;
    }
    static bool handlers;
    if (!handlers) pthread_atfork(before_fork, in_parent, in_child);
    handlers = true;
    sim.initialised = true;
    return CUDA_SUCCESS;
}

API CUresult cuInit(unsigned flags)
{
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (sim.forked) return CUDA_ERROR_NOT_INITIALIZED;
    begin_call();
    pthread_mutex_lock(&mutex);
    return sim_leave(sim.initialised ? CUDA_SUCCESS : initialise());
}

/* A program that ends normally frees its slot itself. */
__attribute__((destructor)) static void leave_host(void)
{
    if (!sim.initialised || pthread_mutex_trylock(&mutex) != 0) return;
    sim.initialised = false;
    sim_lock(&sim.host); /* the mapping stays: other threads may still be in it */
    sim_reap_slot(&sim.host, sim.host.slot);
    sim_unlock(&sim.host);
    pthread_mutex_unlock(&mutex);
}
