/* NVML: utilisation. A card is shown as busy as the container keeps it; the work of other containers is not shown.
 *
 * nvmlDeviceGetFieldValues goes to the driver unchanged: no field of NVML contains memory in use or utilisation. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "pacing/gate.h"
#include "nvml/nvml_busy.h"
#include "nvml/nvml_cards.h"
#include "nvml/nvml_processes.h"

#include "nvml_abi.h"

#include <stdbool.h>
#include <stddef.h>

static unsigned share_of(unsigned of_the_card, unsigned own, unsigned busy)
{
    return own >= busy ? of_the_card : of_the_card * own / busy;
}

/* Where launches are not paced, the library does not measure them. The driver identifies processes by pid. If it uses the pids of another
 * namespace than the container's, utilisation stays 0. */
static void ask_driver(nvmlDevice_t device, int card, struct fr_driver_utilization *out)
{
    nvmlProcessUtilizationSample_t samples[FR_DRIVER_SAMPLES];
    unsigned count = FR_DRIVER_SAMPLES;
    out->count = 0;
    if (fr_card_is_paced(card) || REAL(nvmlDeviceGetProcessUtilization)(device, samples, &count, 0)) return;
    for (; out->count < count; out->count++) {
        out->of[out->count].pid = samples[out->count].pid;
        out->of[out->count].busy = samples[out->count].smUtil;
    }
}

/* Memory traffic is not counted per process, so it is reported in proportion to the GPU time. */
HOOK nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    int card;
    nvmlReturn_t r = fr_nvml_card(device, &card);
    if (!r) r = REAL(nvmlDeviceGetUtilizationRates)(device, out);
    if (r) return r;
    struct fr_driver_utilization driver;
    ask_driver(device, card, &driver);
    unsigned own = fr_busy_percent(card, &driver);
    *out = (nvmlUtilization_t){own, own ? share_of(out->memory, own, out->gpu) : 0};
    return NVML_SUCCESS;
}

/* Returns one sample, the latest. The driver's history is that of the whole card. */
HOOK nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long since, int *value_type, unsigned *count,
                                       nvmlSample_t *samples)
{
    int card;
    unsigned none = 0;
    nvmlUtilization_t rates;
    nvmlReturn_t r = fr_nvml_card(device, &card);
    if (r) return r;
    if (type != NVML_SAMPLES_GPU && type != NVML_SAMPLES_MEMORY) return REAL(nvmlDeviceGetSamples)(device, type, since, value_type, count, samples);
    r = REAL(nvmlDeviceGetSamples)(device, type, 0, value_type, &none, NULL); /* is it supported? */
    if (r && r != NVML_ERROR_NOT_FOUND && r != NVML_ERROR_INSUFFICIENT_SIZE) return r;
    if (!count || !value_type || (samples && !*count)) return NVML_ERROR_INVALID_ARGUMENT;
    r = nvmlDeviceGetUtilizationRates(device, &rates);
    if (r) return r;
    unsigned long long now = fr_wall_us();
    if (now <= since) return NVML_ERROR_NOT_FOUND;
    *count = 1;
    *value_type = NVML_VALUE_UNSIGNED;
    if (samples) *samples = (nvmlSample_t){now, {.uiVal = type == NVML_SAMPLES_GPU ? rates.gpu : rates.memory}};
    return NVML_SUCCESS;
}

/* ---- by process: two layouts ---- */

struct samples {
    struct fr_listing listing;
    int card;
    unsigned long long now;
    struct fr_driver_utilization driver;
};

static bool put(const struct fr_nvml_process *tenant, void *data)
{
    struct samples *s = data;
    struct fr_listing *l = &s->listing;
    bool old = l->size == sizeof(nvmlProcessUtilizationSample_t);
    if (l->out && l->found < l->room) {
        unsigned busy = fr_busy_percent_of(s->card, tenant, &s->driver);
        char *place = l->out + l->found * l->size;
        if (old) *(nvmlProcessUtilizationSample_t *)(void *)place = (nvmlProcessUtilizationSample_t){.pid = tenant->pid, .timeStamp = s->now, .smUtil = busy};
        else *(nvmlProcessUtilizationInfo_v1_t *)(void *)place = (nvmlProcessUtilizationInfo_v1_t){.pid = tenant->pid, .timeStamp = s->now, .smUtil = busy};
    }
    l->found++;
    return true;
}

static nvmlReturn_t by_process(nvmlReturn_t asked, nvmlDevice_t device, void *out, size_t size, unsigned *count, unsigned long long since)
{
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    if (asked && asked != NVML_ERROR_NOT_FOUND && asked != NVML_ERROR_INSUFFICIENT_SIZE) return asked;
    struct samples s = {.listing = {out, size, *count, 0}, .card = FR_NO_CARD};
    nvmlReturn_t r = fr_nvml_card(device, &s.card);
    if (r) return r;
    ask_driver(device, s.card, &s.driver);
    fr_busy_percent(s.card, &s.driver);
    s.now = fr_wall_us();
    if (s.now > since) fr_nvml_processes(s.card, put, &s);
    *count = s.listing.found;
    if (!s.listing.found) return NVML_ERROR_NOT_FOUND;
    return fr_listing_fits(&s.listing) ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

HOOK nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned *count, unsigned long long since)
{
    unsigned none = 0;
    nvmlReturn_t asked = REAL(nvmlDeviceGetProcessUtilization)(device, NULL, &none, 0);
    return by_process(asked, device, out, sizeof *out, count, since);
}

HOOK nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
    if (!info || info->version != NVML_VERSION(*info, 1)) return REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, info);
    nvmlProcessesUtilizationInfo_v1_t number = {info->version, 0, 0, NULL};
    nvmlReturn_t asked = REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, &number);
    return by_process(asked, device, info->procUtilArray, sizeof *info->procUtilArray, &info->processSamplesCount, info->lastSeenTimeStamp);
}

HOOK nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    int card;
    nvmlReturn_t r = fr_nvml_card(device, &card);
    return r ? r : REAL(nvmlDeviceGetFieldValues)(device, count, values);
}
