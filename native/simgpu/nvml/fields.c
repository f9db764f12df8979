/* NVML: samples, fields by number, queries about partitions on a card that has none, and administrator settings: these are accepted, as from
 * root, and have no effect on the simulation. */
#include "nvml.h"

#include <string.h>
#include <strings.h>

enum { POWER_SAMPLES = 0, CLOCK_SAMPLES = 5, MEMORY_CLOCK_SAMPLES = 6, MEMORY_CLOCK = 2 };
enum { ECC_CURRENT = 1, ECC_PENDING = 2, SBE_TOTAL = 3, DBE_TOTAL = 4, POWER_AVERAGE = 185, POWER_INSTANT = 186, RECOVERY_ACTION = 230 };
enum { VALUE_UNSIGNED = 1, VALUE_LONG_LONG = 3 };

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *out);
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, unsigned type, unsigned *out);
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, unsigned type, unsigned counter, unsigned long long *out);

static nvmlReturn_t sample(nvmlDevice_t d, int type, unsigned *out)
{
    nvmlUtilization_t rates = {0, 0};
    nvmlReturn_t r = nvmlDeviceGetUtilizationRates(d, &rates);
    if (r || type == NVML_SAMPLES_GPU) return *out = rates.gpu, r;
    if (type == NVML_SAMPLES_MEMORY) return *out = rates.memory, OK;
    if (type == POWER_SAMPLES) return nvmlDeviceGetPowerUsage(d, out);
    if (type == CLOCK_SAMPLES || type == MEMORY_CLOCK_SAMPLES) return nvmlDeviceGetClockInfo(d, type == MEMORY_CLOCK_SAMPLES ? MEMORY_CLOCK : 1, out);
    return NOT_SUPPORTED;
}

/* One sample, taken now. */
API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t d, int type, unsigned long long since, int *value_type, unsigned *count, nvmlSample_t *samples)
{
    unsigned value;
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !count || !value_type || (samples && !*count)) return r ? r : INVALID_ARGUMENT;
    r = sample(d, type, &value);
    if (r) return r;
    unsigned long long now = sim_nvml_wall_us();
    if (now <= since) return NOT_FOUND;
    *count = 1;
    *value_type = NVML_VALUE_UNSIGNED;
    if (samples) *samples = (nvmlSample_t){now, {.uiVal = value}};
    return OK;
}

static nvmlReturn_t field(nvmlDevice_t d, unsigned id, unsigned long long *out)
{
    unsigned small = 0;
    nvmlReturn_t r = OK;
    switch (id) {
    case ECC_CURRENT: case ECC_PENDING: *out = 1; return OK;
    case SBE_TOTAL: return nvmlDeviceGetTotalEccErrors(d, 0, 0, out);
    case DBE_TOTAL: return nvmlDeviceGetTotalEccErrors(d, 1, 0, out);
    case POWER_AVERAGE: case POWER_INSTANT:
        r = nvmlDeviceGetPowerUsage(d, &small);
        *out = small;
        return r;
    case RECOVERY_ACTION: *out = d->recovery; return OK;
    default: return NOT_SUPPORTED;
    }
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, nvmlFieldValue_t *values)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !values || count <= 0) return r ? r : INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        unsigned long long value = 0;
        values[i].nvmlReturn = field(d, values[i].fieldId, &value);
        values[i].valueType = values[i].fieldId == RECOVERY_ACTION ? VALUE_UNSIGNED : VALUE_LONG_LONG; /* little endian: one value is both */
        values[i].value.ullVal = value;
        values[i].timestamp = (long long)sim_nvml_wall_us();
        values[i].latencyUsec = 0;
    }
    return OK;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_v1_t *uuid, nvmlDevice_t *out)
{
    if (!sim_nvml_ready()) return UNINITIALIZED;
    if (!uuid || !out) return INVALID_ARGUMENT;
    if (uuid->version != NVML_VERSION(*uuid, 1)) return ARGUMENT_VERSION_MISMATCH;
    return uuid->type == NVML_UUID_ASCII ? nvmlDeviceGetHandleByUUID(uuid->value.str, out) : NOT_SUPPORTED;
}

/* ---- no partitions ---- */

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    *out = 0;
    return OK;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, unsigned *out) { return nvmlDeviceGetMaxMigDeviceCount(d, out); }

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned index, nvmlDevice_t *out)
{
    (void)index;
    nvmlReturn_t r = sim_nvml_card(d);
    return r ? r : out ? NOT_FOUND : INVALID_ARGUMENT;
}

/* ---- administrator settings ---- */

API nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t d, unsigned mode) { return (void)mode, sim_nvml_card(d); }
API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t d, unsigned mode) { return (void)mode, sim_nvml_card(d); }
API nvmlReturn_t nvmlDeviceSetAccountingMode(nvmlDevice_t d, unsigned mode) { return (void)mode, sim_nvml_card(d); }
API nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t d, unsigned milliwatts) { return (void)milliwatts, sim_nvml_card(d); }
API nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t d, unsigned low, unsigned high) { return (void)low, (void)high, sim_nvml_card(d); }
API nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t d) { return sim_nvml_card(d); }
API nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t d, unsigned counter) { return (void)counter, sim_nvml_card(d); }

API nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t d, unsigned *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    *out = 1;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t d, unsigned *least, unsigned *most)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !least || !most) return r ? r : INVALID_ARGUMENT;
    *least = 100000;
    *most = 400000;
    return OK;
}
