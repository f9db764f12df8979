/* The processes of the container that use a card, as NVML's lists show them. */
#ifndef FRACTILE_NVML_PROCESSES_H
#define FRACTILE_NVML_PROCESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fr_nvml_process {
    unsigned slot, pid, generation;
    uint64_t start_time, bytes, gpu_ns; /* start_time in clock ticks since boot */
    const char *command;                /* in the region: 32 characters, not always terminated */
};
/* Calls `each` for every process that holds memory or a context on the card, until it returns false. Call fr_used first: it reaps dead
 * processes. */
typedef bool fr_each_nvml_process(const struct fr_nvml_process *tenant, void *data);
void fr_nvml_processes(int card, fr_each_nvml_process *each, void *data);

/* An array of the caller. Elements that fit are written; all elements are counted. */
struct fr_listing {
    char *out;
    size_t size; /* of an element */
    unsigned room, found;
};
bool fr_listing_fits(const struct fr_listing *listing);

#endif
