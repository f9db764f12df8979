/* NVML: initialisation and shutdown, the cards and their names. */
#include "nvml.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

struct sim_host sim_nvml_host = {.fd = -1};
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int users;
static unsigned count;
static nvmlDevice_t visible[SIM_CARDS];

bool sim_nvml_ready(void) { return users > 0; }
unsigned sim_nvml_count(void) { return count; }
nvmlDevice_t sim_nvml_at(unsigned i) { return visible[i]; }

nvmlReturn_t sim_nvml_stub(const char *name)
{
    if (getenv("SIMGPU_TRACE")) fprintf(stderr, "simgpu: %s is not modelled\n", name);
    return sim_nvml_ready() ? NOT_SUPPORTED : UNINITIALIZED;
}

nvmlReturn_t sim_nvml_card(nvmlDevice_t card)
{
    if (!sim_nvml_ready()) return UNINITIALIZED;
    for (unsigned i = 0; i < count; i++)
        if (visible[i] == card) return card->lost || !card->present ? GPU_IS_LOST : OK;
    return INVALID_ARGUMENT;
}

nvmlReturn_t sim_nvml_text(char *out, unsigned size, const char *text)
{
    if (!out) return INVALID_ARGUMENT;
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

/* Imitates the container toolkit's choice of device nodes: the list names cards by index or UUID, or is "all" or "none". */
static bool named(const struct sim_card *c, unsigned position)
{
    const char *list = getenv("NVIDIA_VISIBLE_DEVICES");
    if (!list || !*list || !strcmp(list, "all")) return true;
    char *copy = strdup(list), *rest = copy, number[16];
    bool found = false;
    snprintf(number, sizeof number, "%u", position);
    for (char *word = strsep(&rest, ","); word; word = strsep(&rest, ","))
        found |= !strcasecmp(word, c->uuid) || !strcmp(word, number);
    free(copy);
    return found;
}

static void find_cards(void)
{
    struct sim_state *s = sim_nvml_host.state;
    unsigned position = 0;
    count = 0;
    for (uint32_t i = 0; i < s->card_count; i++)
        if (s->cards[i].present && named(&s->cards[i], position++)) visible[count++] = &s->cards[i];
}

static void in_child(void)
{
    sim_after_fork(&sim_nvml_host);
    users = 0;
    count = 0;
    pthread_mutex_init(&mutex, NULL);
}

static nvmlReturn_t start(void)
{
    static bool handlers;
    if (!sim_open(&sim_nvml_host, true)) {
        fprintf(stderr, "simgpu: %s\n", sim_nvml_host.error);
        return DRIVER_NOT_LOADED;
    }
    find_cards();
    if (!handlers) pthread_atfork(NULL, NULL, in_child);
    handlers = true;
    return OK;
}

static nvmlReturn_t init(void)
{
    pthread_mutex_lock(&mutex);
    nvmlReturn_t r = users ? OK : start();
    if (!r) users++;
    pthread_mutex_unlock(&mutex);
    return r;
}

API nvmlReturn_t nvmlInit(void) { return init(); }
API nvmlReturn_t nvmlInit_v2(void) { return init(); }
API nvmlReturn_t nvmlInitWithFlags(unsigned flags) { return (void)flags, init(); }

API nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&mutex);
    nvmlReturn_t r = users ? OK : UNINITIALIZED;
    if (users && --users == 0) sim_close(&sim_nvml_host);
    pthread_mutex_unlock(&mutex);
    return r;
}

API const char *nvmlErrorString(nvmlReturn_t r)
{
    static const struct { int code; const char *text; } texts[] = {
        {OK, "The operation was successful"}, {UNINITIALIZED, "Uninitialized"}, {INVALID_ARGUMENT, "Invalid Argument"},
        {NOT_SUPPORTED, "Not Supported"}, {NO_PERMISSION, "Insufficient Permissions"}, {NOT_FOUND, "Not Found"},
        {INSUFFICIENT_SIZE, "Insufficient Size"}, {DRIVER_NOT_LOADED, "Driver Not Loaded"}, {TIMEOUT, "Timeout"},
        {GPU_IS_LOST, "GPU is lost"}, {MEMORY, "Insufficient Memory"}, {ARGUMENT_VERSION_MISMATCH, "Argument Version Mismatch"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == r) return texts[i].text;
    return "Unknown Error";
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    return sim_nvml_ready() ? sim_nvml_text(out, size, "615.00.00") : UNINITIALIZED;
}
API nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    return sim_nvml_ready() ? sim_nvml_text(out, size, "13.615.00.00") : UNINITIALIZED;
}

static nvmlReturn_t cuda_version(int *out)
{
    const char *set = getenv("SIMGPU_DRIVER_VERSION");
    if (!out) return INVALID_ARGUMENT;
    *out = set && *set ? atoi(set) : 13050;
    return OK;
}
API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out) { return cuda_version(out); }
API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out) { return cuda_version(out); }

/* A property of the card's model. */
static nvmlReturn_t of_model(nvmlDevice_t d, unsigned *out, size_t offset, unsigned scale)
{
    nvmlReturn_t r = sim_nvml_card(d);
    unsigned value = 0;
    if (r) return r;
    memcpy(&value, (const char *)sim_model_of(d) + offset, sizeof value);
    return sim_nvml_number(d, out, value * scale);
}
#define OF_MODEL(field, scale) of_model(d, out, offsetof(struct sim_model, field), scale)

API nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t d, unsigned *out) { return OF_MODEL(brand, 1); }
API nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t d, unsigned *out) { return OF_MODEL(architecture, 1); }
API nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t d, unsigned *out) { return OF_MODEL(bus, 1); }
API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t d, unsigned *out) { return OF_MODEL(power, 1000); }
API nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t d, unsigned *out) { return OF_MODEL(power, 1000); }
API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *out) { return OF_MODEL(power, 1000); }

static nvmlReturn_t clock_of(nvmlDevice_t d, unsigned type, unsigned *out)
{
    return type == 2 ? OF_MODEL(memory_clock, 1) : OF_MODEL(clock, 1);
}
API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, unsigned type, unsigned *out) { return clock_of(d, type, out); }
API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, unsigned type, unsigned *out) { return clock_of(d, type, out); }

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !major || !minor) return r ? r : INVALID_ARGUMENT;
    *major = (int)sim_model_of(d)->major;
    *minor = (int)sim_model_of(d)->minor;
    return OK;
}

API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size)
{
    if (!sim_nvml_ready()) return UNINITIALIZED;
    SIM_EACH_LIVE(sim_nvml_host.state, i) {
        struct sim_process *p = &sim_nvml_host.state->processes[i];
        if (atomic_load(&p->state) == SIM_LIVE && p->pid == pid) return sim_nvml_text(out, size, p->command);
    }
    return NOT_FOUND;
}

/* ---- finding cards ---- */

static nvmlReturn_t device_count(unsigned *out)
{
    if (!sim_nvml_ready()) return UNINITIALIZED;
    if (!out) return INVALID_ARGUMENT;
    *out = count;
    return OK;
}
API nvmlReturn_t nvmlDeviceGetCount(unsigned *out) { return device_count(out); }
API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out) { return device_count(out); }

static nvmlReturn_t found(nvmlDevice_t *out, unsigned i)
{
    if (visible[i]->lost || !visible[i]->present) return GPU_IS_LOST;
    *out = visible[i];
    return OK;
}

static nvmlReturn_t by_index(unsigned i, nvmlDevice_t *out)
{
    if (!sim_nvml_ready()) return UNINITIALIZED;
    return !out || i >= count ? INVALID_ARGUMENT : found(out, i);
}
API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned i, nvmlDevice_t *out) { return by_index(i, out); }
API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned i, nvmlDevice_t *out) { return by_index(i, out); }

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
    if (!sim_nvml_ready()) return UNINITIALIZED;
    if (!uuid || !out) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < count; i++)
        if (!strcasecmp(visible[i]->uuid, uuid)) return found(out, i);
    return NOT_FOUND;
}

static bool same_bus(const char *a, const char *b)
{
    unsigned x[3], y[3];
    return sscanf(a, "%x:%x:%x", &x[0], &x[1], &x[2]) == 3 && sscanf(b, "%x:%x:%x", &y[0], &y[1], &y[2]) == 3 && !memcmp(x, y, sizeof x);
}

static nvmlReturn_t by_bus(const char *id, nvmlDevice_t *out)
{
    if (!sim_nvml_ready()) return UNINITIALIZED;
    if (!id || !out) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < count; i++)
        if (same_bus(visible[i]->bus_id, id)) return found(out, i);
    return NOT_FOUND;
}
API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *out) { return by_bus(id, out); }
API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *out) { return by_bus(id, out); }

static void serial_of(const struct sim_card *c, char *out, size_t size)
{
    uint64_t h = 1469598103934665603ull;
    for (const char *p = c->uuid; *p; p++) h = (h ^ (unsigned char)*p) * 1099511628211ull;
    snprintf(out, size, "%013llu", (unsigned long long)(h % 10000000000000ull));
}

API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *out)
{
    char text[32];
    if (!sim_nvml_ready()) return UNINITIALIZED;
    if (!serial || !out) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < count; i++) {
        serial_of(visible[i], text, sizeof text);
        if (!strcmp(text, serial)) return found(out, i);
    }
    return NOT_FOUND;
}

/* ---- their names ---- */

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *out, unsigned size)
{
    nvmlReturn_t r = sim_nvml_card(d);
    return r ? r : sim_nvml_text(out, size, d->model);
}
API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *out, unsigned size)
{
    nvmlReturn_t r = sim_nvml_card(d);
    return r ? r : sim_nvml_text(out, size, d->uuid);
}
API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t d, char *out, unsigned size)
{
    char text[32];
    nvmlReturn_t r = sim_nvml_card(d);
    if (r) return r;
    serial_of(d, text, sizeof text);
    return sim_nvml_text(out, size, text);
}
API nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t d, char *out, unsigned size)
{
    nvmlReturn_t r = sim_nvml_card(d);
    return r ? r : sim_nvml_text(out, size, "92.00.00.00.01");
}

nvmlReturn_t sim_nvml_number(nvmlDevice_t d, unsigned *out, unsigned value)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    *out = value;
    return OK;
}

static unsigned position(nvmlDevice_t d)
{
    for (unsigned i = 0; i < count; i++)
        if (visible[i] == d) return i;
    return 0;
}
API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned *out) { return sim_nvml_number(d, out, position(d)); }
API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *out) { return sim_nvml_card(d) ? sim_nvml_card(d) : sim_nvml_number(d, out, d->index); }
API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t d, unsigned *out) { return sim_nvml_number(d, out, 0); }
API nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t d, unsigned *out) { return sim_nvml_number(d, out, 1); }
API nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t d, unsigned *out) { return sim_nvml_card(d) ? sim_nvml_card(d) : sim_nvml_number(d, out, d->sm_count * 64); }
API nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t d, unsigned *out) { return sim_nvml_card(d) ? sim_nvml_card(d) : ((void)out, NOT_SUPPORTED); }
API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t d, unsigned *out) { return sim_nvml_number(d, out, 0); }

void sim_nvml_place(nvmlDevice_t d, struct pci_info *out)
{
    memset(out, 0, sizeof *out);
    sscanf(d->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.0", out->domain, out->bus & 0xff, out->device & 0xff);
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    out->pciDeviceId = 0x20b010de;
}

static nvmlReturn_t pci(nvmlDevice_t d, struct pci_info *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    return sim_nvml_place(d, out), OK;
}
API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t d, struct pci_info *out) { return pci(d, out); }
API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t d, struct pci_info *out) { return pci(d, out); }
API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, struct pci_info *out) { return pci(d, out); }

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *current, unsigned *pending)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !current || !pending) return r ? r : INVALID_ARGUMENT;
    *current = *pending = 0;
    return OK;
}
