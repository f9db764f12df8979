/* A libnvidia-ml.so.1 with three cards, of which the second is lost. Only what our driver asks for, without events, as an
 * old driver. What a card says of its health stands in the file FAKE_NVML_STATE, in lines such as "temperature 92"; what
 * does not stand there is not supported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int index; } device;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} pci;

struct field {
    unsigned int id, scope;
    long long timestamp, latency;
    int type, result;
    unsigned long long value;
};

enum { SUCCESS = 0, UNKNOWN = 999, UNINITIALIZED = 1, NOT_SUPPORTED = 3, GPU_IS_LOST = 15 };

static device devices[3] = {{0}, {1}, {2}};
static int started;

int nvmlInitWithFlags(unsigned int flags) { (void)flags; if (getenv("FAKE_NVML_BROKEN")) return UNKNOWN; started++; return SUCCESS; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { if (!started) return UNINITIALIZED; started--; return SUCCESS; }
const char *nvmlErrorString(int result) { return result == GPU_IS_LOST ? "GPU is lost" : "Unknown Error"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { if (!started) return UNINITIALIZED; *count = 3; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device **out) {
    if (index == 1) return GPU_IS_LOST;
    *out = &devices[index];
    return SUCCESS;
}
int nvmlDeviceGetUUID(device *d, char *text, unsigned int size) {
    snprintf(text, size, "GPU-%08x-0000-4000-8000-000000000000", d->index);
    return SUCCESS;
}
int nvmlDeviceGetName(device *d, char *text, unsigned int size) {
    snprintf(text, size, d->index ? "NVIDIA A100-SXM4-80GB" : "Tesla V100-SXM2-16GB");
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(device *d, memory *m) {
    m->total = d->index ? 85899345920ULL : 16276ULL * 1048576 + 1048575;
    m->free = m->total;
    m->used = 0;
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(device *d, pci *p) {
    memset(p, 0, sizeof *p);
    snprintf(p->busId, sizeof p->busId, "00000000:00:%02X.0", d->index + 4);
    return SUCCESS;
}

/* The state of the first card; the others support nothing. */
static int setting(const device *d, const char *name, unsigned int *out) {
    char word[64];
    unsigned int value;
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path && !d->index ? fopen(path, "r") : NULL;
    int found = NOT_SUPPORTED;
    while (file && fscanf(file, "%63s %u", word, &value) == 2)
        if (!strcmp(word, name)) *out = value, found = SUCCESS;
    if (file) fclose(file);
    return found;
}

int nvmlDeviceGetTemperature(device *d, int sensor, unsigned int *out) { (void)sensor; return setting(d, "temperature", out); }
int nvmlDeviceGetTemperatureThreshold(device *d, int which, unsigned int *out) {
    return setting(d, which == 0 ? "shutdown" : "slowdown", out);
}
int nvmlDeviceGetTotalEccErrors(device *d, int type, int counter, unsigned long long *out) {
    unsigned int value = 0;
    int r = setting(d, counter ? "aggregate" : type ? "uncorrected" : "corrected", &value);
    *out = value;
    return r;
}
int nvmlDeviceGetRemappedRows(device *d, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending, unsigned int *failed) {
    *corrected = *uncorrected = *pending = 0;
    setting(d, "pending", pending);
    return setting(d, "failed", failed);
}
int nvmlDeviceGetRetiredPagesPendingStatus(device *d, unsigned int *out) { return setting(d, "retiring", out); }
int nvmlDeviceGetComputeMode(device *d, unsigned int *out) { return setting(d, "mode", out); }
int nvmlDeviceGetMigMode(device *d, unsigned int *current, unsigned int *pending) { *pending = 0; return setting(d, "mig", current); }
int nvmlDeviceGetFieldValues(device *d, int count, struct field *values) {
    for (int i = 0; i < count; i++) {
        unsigned int value = 0;
        values[i].result = values[i].id == 230 ? setting(d, "recovery", &value) : NOT_SUPPORTED;
        values[i].type = 1;
        values[i].value = 0xffffffff00000000ull | value; /* the upper half is nobody's */
    }
    return SUCCESS;
}
