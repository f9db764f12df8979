/* Functions shared by the parts of the simulated NVML, and declarations of NVML's interface that only they need. */
#ifndef SIMGPU_NVML_H
#define SIMGPU_NVML_H

#include "../state/state.h"
#include "nvml_abi.h"

#define API __attribute__((visibility("default")))

typedef struct sim_event_set *nvmlEventSet_t;

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, MEMORY = 20, ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

struct pci_info { char busIdLegacy[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; };
struct temperature { unsigned version, sensor; int degrees; };
struct event_data { nvmlDevice_t device; unsigned long long eventType, eventData; unsigned gpuInstanceId, computeInstanceId; };
struct ecc_counts { unsigned long long l1Cache, l2Cache, deviceMemory, registerFile; };

extern struct sim_host sim_nvml_host;

bool sim_nvml_ready(void);
nvmlReturn_t sim_nvml_card(nvmlDevice_t card); /* OK: the handle is valid and the card responds */
nvmlReturn_t sim_nvml_number(nvmlDevice_t card, unsigned *out, unsigned value);
void sim_nvml_place(nvmlDevice_t card, struct pci_info *out); /* also for a lost card */
nvmlReturn_t sim_nvml_stub(const char *name);
unsigned sim_nvml_count(void);
nvmlDevice_t sim_nvml_at(unsigned i);
uint64_t sim_nvml_look(void); /* takes the host's lock, brings ledger and clocks up to date, and returns the time */
void sim_nvml_done(void);
uint32_t sim_nvml_index(nvmlDevice_t card); /* the card's index in the host's state */
bool sim_nvml_uses(const struct sim_process *process, uint32_t card);
uint32_t sim_nvml_pid(const struct sim_process *process); /* the pid in the caller's pid namespace */
unsigned long long sim_nvml_wall_us(void);
nvmlReturn_t sim_nvml_text(char *out, unsigned size, const char *text);

#endif
