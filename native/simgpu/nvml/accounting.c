/* NVML: the newer process lists (details, utilisation of the engines) and accounting, which is always on. A process is listed with the pid
 * that it sees itself. Processes that have ended are not kept. */
#include "nvml.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define NONE 0xffffffffu
#define WINDOW_NS 1000000000ull

static const struct sim_process *process(uint32_t i) { return &sim_nvml_host.state->processes[i]; }

API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t d, nvmlProcessDetailList_v1_t *list)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !list || list->mode > NVML_PROCESS_ALL) return r ? r : INVALID_ARGUMENT;
    if (list->version != NVML_VERSION(*list, 1)) return ARGUMENT_VERSION_MISMATCH;
    unsigned room = list->procArray ? list->numProcArrayEntries : 0, found = 0;
    bool any = list->mode == NVML_PROCESS_COMPUTE || list->mode == NVML_PROCESS_ALL;
    uint32_t card = sim_nvml_index(d);
    sim_nvml_look();
    SIM_EACH_LIVE(sim_nvml_host.state, i) {
        if (!any || !sim_nvml_uses(process(i), card)) continue;
        if (found < room) list->procArray[found] = (nvmlProcessDetail_v1_t){sim_nvml_pid(process(i)), process(i)->usage[card].now, NONE, NONE, 0};
        found++;
    }
    sim_nvml_done();
    list->numProcArrayEntries = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t d, nvmlProcessesUtilizationInfo_v1_t *info)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !info) return r ? r : INVALID_ARGUMENT;
    if (info->version != NVML_VERSION(*info, 1)) return ARGUMENT_VERSION_MISMATCH;
    unsigned room = info->procUtilArray ? info->processSamplesCount : 0, found = 0;
    unsigned long long stamp = sim_nvml_wall_us();
    uint32_t card = sim_nvml_index(d);
    uint64_t now = sim_nvml_look();
    SIM_EACH_LIVE(sim_nvml_host.state, i) {
        if (stamp <= info->lastSeenTimeStamp || !sim_nvml_uses(process(i), card)) continue;
        unsigned busy = sim_process_busy_percent(process(i), card, now, WINDOW_NS);
        if (found < room) info->procUtilArray[found] = (nvmlProcessUtilizationInfo_v1_t){.timeStamp = stamp, .pid = sim_nvml_pid(process(i)), .smUtil = busy};
        found++;
    }
    sim_nvml_done();
    info->processSamplesCount = found;
    if (!found) return NOT_FOUND;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

/* ---- accounting ---- */

static nvmlReturn_t constant(nvmlDevice_t d, unsigned *out, unsigned value)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    *out = value;
    return OK;
}
API nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t d, unsigned *out) { return constant(d, out, 1); }
API nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t d, unsigned *out) { return constant(d, out, SIM_PROCESSES); }

API nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t d, unsigned *count, unsigned *pids)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !count) return r ? r : INVALID_ARGUMENT;
    unsigned room = pids ? *count : 0, found = 0;
    sim_nvml_look();
    SIM_EACH_LIVE(sim_nvml_host.state, i) {
        if (!sim_nvml_uses(process(i), sim_nvml_index(d))) continue;
        if (found < room) pids[found] = sim_nvml_pid(process(i));
        found++;
    }
    sim_nvml_done();
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

/* start_time is in clock ticks since the machine's start. */
static unsigned long long age_us(const struct sim_process *p)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    unsigned long long up = (unsigned long long)t.tv_sec * 1000000 + (unsigned long long)t.tv_nsec / 1000;
    unsigned long long started = p->start_time * (1000000 / (unsigned long long)sysconf(_SC_CLK_TCK));
    return up > started ? up - started : 1;
}

static nvmlReturn_t stats(nvmlDevice_t d, unsigned pid, nvmlAccountingStats_t *out)
{
    uint32_t card = sim_nvml_index(d);
    sim_nvml_look();
    uint32_t i = sim_live_from(sim_nvml_host.state, 0);
    while (i < SIM_PROCESSES && !(sim_nvml_uses(process(i), card) && sim_nvml_pid(process(i)) == pid)) i = sim_live_from(sim_nvml_host.state, i + 1);
    if (i < SIM_PROCESSES) {
        unsigned long long age = age_us(process(i));
        unsigned busy = (unsigned)(process(i)->gpu_ns[card] / 10 / age);
        *out = (nvmlAccountingStats_t){.gpuUtilization = busy, .memoryUtilization = busy / 2, .maxMemoryUsage = process(i)->usage[card].peak,
                                       .startTime = sim_nvml_wall_us() - age, .isRunning = 1};
    }
    sim_nvml_done();
    return i < SIM_PROCESSES ? OK : NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t d, unsigned pid, nvmlAccountingStats_t *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    return stats(d, pid, out);
}

API nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t d, nvmlAccountingStats_v2_t *out)
{
    nvmlAccountingStats_t s;
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    r = stats(d, out->pid, &s);
    if (!r)
        *out = (nvmlAccountingStats_v2_t){.pid = out->pid, .isRunning = s.isRunning, .gpuUtilization = s.gpuUtilization,
                                          .memoryUtilization = s.memoryUtilization, .maxMemoryUsage = s.maxMemoryUsage, .startTime = s.startTime};
    return r;
}
