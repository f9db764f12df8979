/* NVML: one process of the container, found by its pid: its name, and its accounting statistics while it runs. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "nvml/nvml_busy.h"
#include "nvml/nvml_cards.h"
#include "nvml/nvml_processes.h"

#include "nvml_abi.h"
#include "region.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct search {
    unsigned pid;
    bool found;
    struct fr_nvml_process tenant;
};

static bool matches(const struct fr_nvml_process *tenant, void *data)
{
    struct search *s = data;
    if (tenant->pid != s->pid) return true;
    s->tenant = *tenant;
    s->found = true;
    return false;
}

static bool find(int card, unsigned pid, struct search *out)
{
    *out = (struct search){.pid = pid};
    fr_used(card); /* reaps the dead */
    fr_nvml_processes(card, matches, out);
    return out->found;
}

HOOK nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    struct search s = {0};
    unsigned count;
    nvmlReturn_t r = REAL(nvmlDeviceGetCount_v2)(&count); /* is NVML initialised? */
    if (r) return r;
    if (!name) return NVML_ERROR_INVALID_ARGUMENT;
    int cards = fr_card_count();
    for (int i = 0; i < cards && !s.found; i++) find(i, pid, &s);
    if (!s.found) return NVML_ERROR_NOT_FOUND;
    size_t n = strnlen(s.tenant.command, sizeof((struct fr_slot *)0)->command);
    if (n >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(name, s.tenant.command, n);
    name[n] = 0;
    return NVML_SUCCESS;
}

/* ---- accounting of running processes. The most memory that a process ever held is not recorded. The memory that it holds now is reported
 * instead, as a lower bound: NVIDIA's own Python binding fails on a value that means "not known". ---- */

static nvmlReturn_t accounted(nvmlDevice_t device, int *card)
{
    unsigned mode = 0;
    nvmlReturn_t r = fr_nvml_card(device, card);
    if (!r) r = REAL(nvmlDeviceGetAccountingMode)(device, &mode);
    return r ? r : mode ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static bool put_pid(const struct fr_nvml_process *tenant, void *data)
{
    struct fr_listing *l = data;
    if (l->out && l->found < l->room) ((unsigned *)(void *)l->out)[l->found] = tenant->pid;
    l->found++;
    return true;
}

HOOK nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *pids)
{
    int card;
    nvmlReturn_t r = accounted(device, &card);
    if (r) return r;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    struct fr_listing l = {(void *)pids, sizeof *pids, *count, 0};
    fr_used(card);
    fr_nvml_processes(card, put_pid, &l);
    *count = l.found;
    return fr_listing_fits(&l) ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

struct life {
    unsigned long long start_us;
    unsigned percent;
};

static struct life life_of(const struct fr_nvml_process *tenant)
{
    struct timespec boot;
    clock_gettime(CLOCK_BOOTTIME, &boot);
    unsigned long long up_us = (unsigned long long)boot.tv_sec * 1000000 + (unsigned long long)boot.tv_nsec / 1000;
    unsigned long long started_us = tenant->start_time * (1000000 / (unsigned long long)sysconf(_SC_CLK_TCK));
    unsigned long long age_us = up_us > started_us ? up_us - started_us : 1;
    unsigned long long percent = tenant->gpu_ns / 10 / age_us;
    return (struct life){fr_wall_us() - age_us, percent > 100 ? 100 : (unsigned)percent};
}

HOOK nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *out)
{
    int card;
    struct search s;
    nvmlReturn_t r = accounted(device, &card);
    if (r) return r;
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (!find(card, pid, &s)) return NVML_ERROR_NOT_FOUND;
    struct life life = life_of(&s.tenant);
    *out = (nvmlAccountingStats_t){.gpuUtilization = life.percent, .maxMemoryUsage = s.tenant.bytes, .startTime = life.start_us, .isRunning = 1};
    return NVML_SUCCESS;
}

HOOK nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *out)
{
    int card;
    struct search s;
    nvmlReturn_t r = accounted(device, &card);
    if (r) return r;
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (!find(card, out->pid, &s)) return NVML_ERROR_NOT_FOUND;
    struct life life = life_of(&s.tenant);
    *out = (nvmlAccountingStats_v2_t){.pid = s.pid, .isRunning = 1, .gpuUtilization = life.percent, .maxMemoryUsage = s.tenant.bytes, .startTime = life.start_us};
    return NVML_SUCCESS;
}
