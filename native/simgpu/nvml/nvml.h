/* NVML's interface as far as it is modelled, in our own words. */
#ifndef SIMGPU_NVML_H
#define SIMGPU_NVML_H

#include "../state/state.h"

#define API __attribute__((visibility("default")))

typedef int nvmlReturn_t;
typedef struct sim_card *nvmlDevice_t; /* a card of the mapped state */
typedef struct sim_event_set *nvmlEventSet_t;

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, MEMORY = 20, ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

struct pci_info { char busIdLegacy[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; };
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };
struct process_v1 { unsigned pid; unsigned long long usedGpuMemory; };
struct process_v2 { unsigned pid; unsigned long long usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; };
struct process_sample { unsigned pid; unsigned long long timeStamp; unsigned smUtil, memUtil, encUtil, decUtil; };
struct event_data { nvmlDevice_t device; unsigned long long eventType, eventData; unsigned gpuInstanceId, computeInstanceId; };
struct ecc_counts { unsigned long long l1Cache, l2Cache, deviceMemory, registerFile; };

extern struct sim_host sim_nvml_host;

bool sim_nvml_ready(void);
nvmlReturn_t sim_nvml_card(nvmlDevice_t card); /* OK when it is one of ours that answers */
nvmlReturn_t sim_nvml_stub(const char *name);
unsigned sim_nvml_count(void);
nvmlDevice_t sim_nvml_at(unsigned i);
nvmlReturn_t sim_nvml_text(char *out, unsigned size, const char *text);

#endif
