/* A libnvidia-ml.so.1 with three cards, of which the second is lost. Only what our driver asks for. */
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

enum { SUCCESS = 0, UNKNOWN = 999, UNINITIALIZED = 1, GPU_IS_LOST = 15 };

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
