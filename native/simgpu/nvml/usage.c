/* NVML: memory, processes, utilisation, errors and events. */
#include "nvml.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NONE 0xffffffffu
#define WINDOW_NS 1000000000ull

static struct sim_state *state(void) { return sim_nvml_host.state; }

/* Takes the lock and brings ledger and clocks up to date. */
uint64_t sim_nvml_look(void)
{
    uint64_t now = sim_now();
    sim_lock(&sim_nvml_host);
    sim_reap_sometimes(&sim_nvml_host, now);
    sim_advance(&sim_nvml_host, now);
    return now;
}

void sim_nvml_done(void) { sim_unlock(&sim_nvml_host); }

uint32_t sim_nvml_index(nvmlDevice_t d) { return (uint32_t)(d - state()->cards); }

/* ---- memory ---- */

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    sim_nvml_look();
    *out = (nvmlMemory_t){d->total, sim_free_bytes(d), d->total - sim_free_bytes(d)}; /* the old form counts the reserve as used */
    sim_nvml_done();
    return OK;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    if (out->version != (sizeof *out | 2u << 24)) return ARGUMENT_VERSION_MISMATCH;
    sim_nvml_look();
    *out = (nvmlMemory_v2_t){out->version, d->total, d->reserved, sim_free_bytes(d), d->used};
    sim_nvml_done();
    return OK;
}

/* Every context uses a window of 2 MiB. */
API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t d, nvmlBAR1Memory_t *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    uint64_t used = 0;
    sim_nvml_look();
    SIM_EACH_LIVE(state(), i) {
        const struct sim_process *p = &state()->processes[i];
        if (sim_nvml_uses(p, sim_nvml_index(d))) used += p->contexts[sim_nvml_index(d)] * SIM_GRANULE;
    }
    sim_nvml_done();
    *out = (nvmlBAR1Memory_t){d->total, d->total - used, used};
    return OK;
}

/* ---- processes ---- */

bool sim_nvml_uses(const struct sim_process *p, uint32_t card)
{
    return atomic_load(&p->state) == SIM_LIVE && !p->is_nvml && p->contexts[card] > 0;
}

/* The two versions of the struct differ in size. If there is no room for any, only the count is returned. */
static nvmlReturn_t processes(nvmlDevice_t d, unsigned *count, void *out, size_t size)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !count) return r ? r : INVALID_ARGUMENT;
    unsigned room = *count, found = 0;
    sim_nvml_look();
    SIM_EACH_LIVE(state(), i) {
        const struct sim_process *p = &state()->processes[i];
        if (!sim_nvml_uses(p, sim_nvml_index(d))) continue;
        nvmlProcessInfo_v2_t info = {sim_nvml_pid(p), p->usage[sim_nvml_index(d)].now, NONE, NONE};
        if (out && found < room) memcpy((char *)out + found * size, &info, size);
        found++;
    }
    sim_nvml_done();
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

#define PROCESSES(name)                                                                                                          \
    API nvmlReturn_t name(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_v1_t *out) { return processes(d, n, out, sizeof *out); }      \
    API nvmlReturn_t name##_v2(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_v2_t *out) { return processes(d, n, out, sizeof *out); } \
    API nvmlReturn_t name##_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_v2_t *out) { return processes(d, n, out, sizeof *out); }
#define NO_PROCESSES(name, type)                                                                          \
    API nvmlReturn_t name(nvmlDevice_t d, unsigned *n, type *out)                                         \
    {                                                                                                     \
        (void)out;                                                                                        \
        if (!n) return INVALID_ARGUMENT;                                                                  \
        *n = 0;                                                                                           \
        return sim_nvml_card(d);                                                                          \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)

/* ---- utilisation: averaged over the last whole second, as by the real driver ---- */

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    uint64_t now = sim_nvml_look();
    unsigned busy = sim_busy_percent(d, now, WINDOW_NS);
    *out = (nvmlUtilization_t){busy, busy / 2};
    sim_nvml_done();
    return OK;
}

unsigned long long sim_nvml_wall_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (unsigned long long)t.tv_sec * 1000000ull + (unsigned long long)t.tv_nsec / 1000;
}

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t d, nvmlProcessUtilizationSample_t *out, unsigned *count, unsigned long long since)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !count) return r ? r : INVALID_ARGUMENT;
    unsigned room = *count, found = 0;
    unsigned long long stamp = sim_nvml_wall_us();
    uint64_t now = sim_nvml_look();
    SIM_EACH_LIVE(state(), i) {
        const struct sim_process *p = &state()->processes[i];
        if (stamp <= since || !sim_nvml_uses(p, sim_nvml_index(d))) continue;
        if (out && found < room) out[found] = (nvmlProcessUtilizationSample_t){sim_nvml_pid(p), stamp, sim_process_busy_percent(p, sim_nvml_index(d), now, WINDOW_NS), 0, 0, 0};
        found++;
    }
    sim_nvml_done();
    *count = found;
    if (!found) return NOT_FOUND;
    return !out || found > room ? INSUFFICIENT_SIZE : OK;
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *out)
{
    nvmlUtilization_t u;
    if (!out) return INVALID_ARGUMENT;
    nvmlReturn_t r = nvmlDeviceGetUtilizationRates(d, &u);
    if (!r) *out = 60000 + u.gpu * 3000;
    return r;
}

/* ---- errors ---- */

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t d, unsigned *current, unsigned *pending)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !current || !pending) return r ? r : INVALID_ARGUMENT;
    *current = *pending = 1;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, unsigned type, unsigned counter, unsigned long long *out)
{
    (void)counter;
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out || type > 1) return r ? r : INVALID_ARGUMENT;
    *out = type ? d->ecc_uncorrected : d->ecc_corrected;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t d, unsigned type, unsigned counter, unsigned where, unsigned long long *out)
{
    nvmlReturn_t r = nvmlDeviceGetTotalEccErrors(d, type, counter, out);
    if (!r && where != 2) *out = 0; /* all errors are in the device memory */
    return r;
}

API nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t d, unsigned type, unsigned counter, struct ecc_counts *out)
{
    unsigned long long n;
    if (!out) return INVALID_ARGUMENT;
    nvmlReturn_t r = nvmlDeviceGetTotalEccErrors(d, type, counter, &n);
    if (!r) *out = (struct ecc_counts){0, 0, n, 0};
    return r;
}

/* ---- events ---- */

enum { EVENT_DOUBLE_BIT = 2, EVENT_XID = 8 };

struct sim_event_set {
    struct { nvmlDevice_t card; unsigned long long types, seen; } cards[SIM_CARDS];
    unsigned count;
};

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out)
{
    if (!sim_nvml_ready()) return UNINITIALIZED;
    if (!out) return INVALID_ARGUMENT;
    *out = calloc(1, sizeof **out);
    return *out ? OK : MEMORY;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    if (!sim_nvml_ready()) return UNINITIALIZED;
    free(set);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, unsigned long long *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    *out = EVENT_DOUBLE_BIT | EVENT_XID;
    return OK;
}

/* Only events after the registration are reported. */
API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, nvmlEventSet_t set)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r) return r;
    if (!set || set->count == SIM_CARDS) return INVALID_ARGUMENT;
    if (types & ~(unsigned long long)(EVENT_DOUBLE_BIT | EVENT_XID)) return NOT_SUPPORTED;
    set->cards[set->count].card = d;
    set->cards[set->count].types = types;
    set->cards[set->count++].seen = d->fault_count;
    return OK;
}

static bool next_event(nvmlEventSet_t set, struct event_data *out)
{
    for (unsigned i = 0; i < set->count; i++) {
        nvmlDevice_t d = set->cards[i].card;
        if (d->fault_count > set->cards[i].seen + SIM_FAULTS) set->cards[i].seen = d->fault_count - SIM_FAULTS;
        while (set->cards[i].seen < d->fault_count) {
            const struct sim_fault *f = &d->faults[set->cards[i].seen++ % SIM_FAULTS];
            if (!(set->cards[i].types & EVENT_XID) && !(f->xid == 48 && (set->cards[i].types & EVENT_DOUBLE_BIT))) continue;
            bool xid = set->cards[i].types & EVENT_XID;
            *out = (struct event_data){d, xid ? EVENT_XID : EVENT_DOUBLE_BIT, xid ? f->xid : 0, NONE, NONE};
            return true;
        }
    }
    return false;
}

static void sleep_until_bell(uint32_t heard, uint64_t ns)
{
    if (ns > 100000000ull) ns = 100000000ull; /* look up again even if a bell was missed */
    struct timespec t = {0, (long)ns};
    syscall(SYS_futex, &state()->fault_bell, FUTEX_WAIT, heard, &t, NULL, 0);
}

static nvmlReturn_t wait_event(nvmlEventSet_t set, struct event_data *out, size_t size, unsigned timeout_ms)
{
    struct event_data e;
    if (!sim_nvml_ready()) return UNINITIALIZED;
    if (!set || !out) return INVALID_ARGUMENT;
    uint64_t end = sim_now() + (uint64_t)timeout_ms * 1000000ull;
    for (;;) {
        uint32_t heard = atomic_load(&state()->fault_bell);
        sim_lock(&sim_nvml_host);
        bool any = next_event(set, &e);
        sim_unlock(&sim_nvml_host);
        if (any) return memcpy(out, &e, size), OK;
        uint64_t now = sim_now();
        if (now >= end) return TIMEOUT;
        sleep_until_bell(heard, end - now);
    }
}

API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t s, struct event_data *out, unsigned ms) { return wait_event(s, out, offsetof(struct event_data, gpuInstanceId), ms); }
API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t s, struct event_data *out, unsigned ms) { return wait_event(s, out, sizeof *out, ms); }
