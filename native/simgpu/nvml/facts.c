/* NVML: facts about a data-centre card for which the model has no state, and values derived from the state that it has: energy from power,
 * reasons for lower clocks from heat. For features that such a card lacks (fans, displays, video encoders in use, a licence, a battery) the
 * answers are those of such a card. Features that an A100 does not support are unsupported. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>

enum { REASON_IDLE = 1, REASON_SOFTWARE_HEAT = 0x20, REASON_HARDWARE = 0x8, REASON_HARDWARE_HEAT = 0x40, REASONS_KNOWN = 0x1ff };
enum { BUS_PCIE = 2, SAMPLING_US = 167000, SLOWDOWN_DEGREES = 90, WATCH_DEGREES = 88 };
enum { WINDOW = 1000000000, FEATURES = 3, UTILIZATIONS = 8 };

struct encoder_stats { unsigned sessions, averageFps, averageLatency; };
struct licences { int supported; unsigned count; char features[FEATURES][288]; };
struct pstates { unsigned flags; struct { unsigned present, percentage, increase, decrease; } domain[UTILIZATIONS]; };
struct versioned { unsigned version, value; };
struct repair { unsigned version, channel, tpc; };
struct row_histogram { unsigned max, high, partial, low, none; };
struct clock_text { unsigned version; char text[2048]; };

/* ---- constants ---- */

#define CONSTANT(name, number) API nvmlReturn_t nvmlDeviceGet##name(nvmlDevice_t d, unsigned *out) { return sim_nvml_number(d, out, number); }
CONSTANT(BusType, BUS_PCIE)
CONSTANT(AdaptiveClockInfoStatus, 1)
CONSTANT(MultiGpuBoard, 0)
CONSTANT(NumFans, 0)
CONSTANT(PowerSource, 0)
CONSTANT(DisplayMode, 0)
CONSTANT(DisplayActive, 0)
CONSTANT(DefaultEccMode, 1)
CONSTANT(VirtualizationMode, 0)
CONSTANT(PowerState, 0)

#define OF_CARD(name, expression)                                             \
    API nvmlReturn_t nvmlDeviceGet##name(nvmlDevice_t d, unsigned *out)       \
    {                                                                         \
        nvmlReturn_t r = sim_nvml_card(d);                                    \
        return r ? r : sim_nvml_number(d, out, expression);                   \
    }
OF_CARD(BoardId, 0x700 + d->index * 0x100)
OF_CARD(ModuleId, d->index + 1)
OF_CARD(IrqNum, 64 + d->index)
OF_CARD(InforomConfigurationChecksum, 0x5eed0000 + d->index)

#define TEXT(name, words) API nvmlReturn_t nvmlDeviceGet##name(nvmlDevice_t d, char *out, unsigned size) \
    { nvmlReturn_t r = sim_nvml_card(d); return r ? r : sim_nvml_text(out, size, words); }
TEXT(BoardPartNumber, "692-2G506-0200-003")
TEXT(InforomImageVersion, "G506.0200.00.05")

API nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t d, char *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    return r ? r : sim_nvml_text(out, 64, "615.00.00");
}

API nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t d, unsigned *enabled, unsigned *usual)
{
    nvmlReturn_t r = sim_nvml_number(d, enabled, 1);
    return r ? r : sim_nvml_number(d, usual, 1);
}

API nvmlReturn_t nvmlDeviceGetLastBBXFlushTime(nvmlDevice_t d, unsigned long long *stamp, unsigned long *took_us)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !stamp || !took_us) return r ? r : INVALID_ARGUMENT;
    *stamp = sim_nvml_wall_us() / 60000000 * 60; /* once a minute */
    *took_us = 0;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t d, struct versioned *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    if (out->version != NVML_VERSION(*out, 1)) return ARGUMENT_VERSION_MISMATCH;
    out->value = 0; /* neither by the processor's tables nor by the kernel's */
    return OK;
}

/* ---- engines that are never used ---- */

#define IDLE_ENGINE(name)                                                                          \
    API nvmlReturn_t nvmlDeviceGet##name##Utilization(nvmlDevice_t d, unsigned *out, unsigned *us) \
    {                                                                                              \
        nvmlReturn_t r = sim_nvml_number(d, out, 0);                                               \
        return r ? r : sim_nvml_number(d, us, SAMPLING_US);                                        \
    }
IDLE_ENGINE(Encoder)
IDLE_ENGINE(Decoder)
IDLE_ENGINE(Jpg)
IDLE_ENGINE(Ofa)

API nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t d, unsigned *sessions, unsigned *fps, unsigned *latency)
{
    nvmlReturn_t r = sim_nvml_number(d, sessions, 0);
    if (!r) r = sim_nvml_number(d, fps, 0);
    return r ? r : sim_nvml_number(d, latency, 0);
}

API nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t d, struct encoder_stats *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    return OK;
}

#define NO_SESSIONS(name)                                                                       \
    API nvmlReturn_t nvmlDeviceGet##name(nvmlDevice_t d, unsigned *count, nvmlSession_t *out)   \
    {                                                                                           \
        (void)out;                                                                              \
        return sim_nvml_number(d, count, 0);                                                    \
    }
NO_SESSIONS(EncoderSessions)
NO_SESSIONS(FBCSessions)

static nvmlReturn_t no_licences(nvmlDevice_t d, struct licences *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    out->supported = 0; /* the length of the rest depends on the caller's header, so the rest is not written */
    out->count = 0;
    return OK;
}
API nvmlReturn_t nvmlDeviceGetGridLicensableFeatures(nvmlDevice_t d, struct licences *out) { return no_licences(d, out); }
API nvmlReturn_t nvmlDeviceGetGridLicensableFeatures_v2(nvmlDevice_t d, struct licences *out) { return no_licences(d, out); }
API nvmlReturn_t nvmlDeviceGetGridLicensableFeatures_v3(nvmlDevice_t d, struct licences *out) { return no_licences(d, out); }
API nvmlReturn_t nvmlDeviceGetGridLicensableFeatures_v4(nvmlDevice_t d, struct licences *out) { return no_licences(d, out); }

/* ---- values derived from the state ---- */

/* The integral of nvmlDeviceGetPowerUsage over time: 60 W, and 300 W more while a kernel is resident. */
API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, unsigned long long *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    uint64_t now = sim_nvml_look();
    *out = now / 1000000 * 60 + d->busy_ns / 1000000 * 300;
    sim_nvml_done();
    return OK;
}

static nvmlReturn_t busy(nvmlDevice_t d, unsigned *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r) return r;
    *out = sim_busy_percent(d, sim_nvml_look(), WINDOW);
    sim_nvml_done();
    return OK;
}

static nvmlReturn_t reasons(nvmlDevice_t d, unsigned long long *out)
{
    unsigned percent;
    if (!out) return INVALID_ARGUMENT;
    nvmlReturn_t r = busy(d, &percent);
    if (r) return r;
    *out = percent ? 0 : REASON_IDLE;
    if (d->degrees >= WATCH_DEGREES) *out = REASON_SOFTWARE_HEAT;
    if (d->degrees >= SLOWDOWN_DEGREES) *out = REASON_HARDWARE | REASON_HARDWARE_HEAT;
    return OK;
}

static nvmlReturn_t known_reasons(nvmlDevice_t d, unsigned long long *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    *out = REASONS_KNOWN;
    return OK;
}
API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long *out) { return reasons(d, out); }
API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *out) { return reasons(d, out); }
API nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t d, unsigned long long *out) { return known_reasons(d, out); }
API nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t d, unsigned long long *out) { return known_reasons(d, out); }

API nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t d, struct pstates *out)
{
    unsigned percent;
    if (!out) return INVALID_ARGUMENT;
    nvmlReturn_t r = busy(d, &percent);
    if (r) return r;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < 4; i++) out->domain[i].present = 1; /* SMs, memory, video, bus */
    out->domain[0].percentage = percent;
    out->domain[1].percentage = percent / 2;
    return OK;
}

/* One performance state, and one memory clock. If a list is too short, the call returns the length that is needed. */
API nvmlReturn_t nvmlDeviceGetSupportedPerformanceStates(nvmlDevice_t d, unsigned *out, unsigned bytes)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    for (unsigned i = 0; i < bytes / sizeof *out; i++) out[i] = i ? 32 : 0; /* 32: none */
    return bytes < sizeof *out ? INSUFFICIENT_SIZE : OK;
}

static nvmlReturn_t one_clock(nvmlDevice_t d, unsigned *count, unsigned *out, unsigned mhz)
{
    if (!count) return INVALID_ARGUMENT;
    bool fits = out && *count > 0;
    *count = 1;
    return fits ? sim_nvml_number(d, out, mhz) : INSUFFICIENT_SIZE;
}

API nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t d, unsigned *count, unsigned *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    return r ? r : one_clock(d, count, out, sim_model_of(d)->memory_clock);
}

API nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t d, unsigned memory, unsigned *count, unsigned *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r) return r;
    return memory != sim_model_of(d)->memory_clock ? NOT_FOUND : one_clock(d, count, out, sim_model_of(d)->clock);
}

API nvmlReturn_t nvmlDeviceGetCurrentClockFreqs(nvmlDevice_t d, struct clock_text *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    if (out->version != NVML_VERSION(*out, 1)) return ARGUMENT_VERSION_MISMATCH;
    const struct sim_model *m = sim_model_of(d);
    snprintf(out->text, sizeof out->text, "graphics=%u, memory=%u", m->clock, m->memory_clock);
    return OK;
}

/* ---- the bus, if the cards file describes it ---- */

static nvmlReturn_t speed(nvmlDevice_t d, unsigned *out, const unsigned by_generation[6])
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r) return r;
    return d->pcie && d->pcie < 6 ? sim_nvml_number(d, out, by_generation[d->pcie]) : NOT_SUPPORTED;
}
API nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t d, unsigned *out) { return speed(d, out, (unsigned[]){0, 1, 2, 3, 4, 5}); }
API nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t d, unsigned *out) { return speed(d, out, (unsigned[]){0, 2500, 5000, 8000, 16000, 32000}); }
API nvmlReturn_t nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t d, unsigned *out) { return speed(d, out, (unsigned[]){0, 1, 2, 3, 4, 5}); }
CONSTANT(PcieReplayCounter, 0)

/* Kilobytes per second; traffic over the bus is not counted. */
API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t d, unsigned way, unsigned *out) { return way > 1 ? INVALID_ARGUMENT : sim_nvml_number(d, out, 0); }

/* ---- repairs ---- */

API nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t d, struct repair *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    if (out->version != NVML_VERSION(*out, 1)) return ARGUMENT_VERSION_MISMATCH;
    if (sim_retires_pages(d)) return NOT_SUPPORTED;
    out->channel = out->tpc = 0; /* a worn row is not a worn channel */
    return OK;
}

API nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t d, unsigned *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    return r ? r : sim_retires_pages(d) ? NOT_SUPPORTED : sim_nvml_number(d, out, d->repair == SIM_REPAIR_FAILED);
}

/* The number of banks by the spare rows that they have left; each replaced row uses up a spare row of its bank. */
API nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t d, struct row_histogram *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    if (sim_retires_pages(d)) return NOT_SUPPORTED;
    *out = (struct row_histogram){.max = 640 - (d->repair != SIM_SOUND), .high = d->repair == SIM_REPAIR_PENDING, .none = d->repair == SIM_REPAIR_FAILED};
    return OK;
}
