/* NVML: temperature, and worn memory, as set by simgpu-ctl. */
#include "nvml.h"

enum { SHUTDOWN = 0, SLOWDOWN = 1, MEMORY_MOST = 2, GPU_MOST = 3 }; /* NVML_TEMPERATURE_THRESHOLD_* */

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, unsigned sensor, unsigned *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    return r ? r : sensor ? INVALID_ARGUMENT : sim_nvml_number(d, out, d->degrees < 0 ? 0 : (unsigned)d->degrees);
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t d, struct temperature *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    if (out->version != NVML_VERSION(*out, 1)) return ARGUMENT_VERSION_MISMATCH;
    if (out->sensor) return INVALID_ARGUMENT;
    out->degrees = d->degrees;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t d, unsigned which, unsigned *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r) return r;
    switch (which) {
    case SHUTDOWN: return sim_nvml_number(d, out, 95);
    case SLOWDOWN: return sim_nvml_number(d, out, 90);
    case MEMORY_MOST: return sim_nvml_number(d, out, 95);
    case GPU_MOST: return sim_nvml_number(d, out, 88);
    default: return NOT_SUPPORTED;
    }
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !corrected || !uncorrected || !pending || !failed) return r ? r : INVALID_ARGUMENT;
    if (sim_retires_pages(d)) return NOT_SUPPORTED;
    *corrected = 0;
    *uncorrected = d->repair != SIM_SOUND;
    *pending = d->repair == SIM_REPAIR_PENDING;
    *failed = d->repair == SIM_REPAIR_FAILED;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t d, unsigned *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    return r ? r : !sim_retires_pages(d) ? NOT_SUPPORTED : sim_nvml_number(d, out, d->repair == SIM_REPAIR_PENDING);
}
