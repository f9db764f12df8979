/* What the NVML hooks share. A hook asks the driver first, so that its own errors come back (not initialised, wrong handle,
 * lost card, function that this driver lacks), and then puts the container's truth in the place of the card's. */
#ifndef FRACTILE_NVML_VIEW_H
#define FRACTILE_NVML_VIEW_H

#include "fractile.h"
#include "nvml_abi.h"
#include "region.h"

/* ---- nvml.c: the driver's handles are the container's cards ---- */
/* NVML_SUCCESS and the card; an error of the driver's; NVML_ERROR_NO_PERMISSION for somebody else's card. */
nvmlReturn_t fr_nvml_card(nvmlDevice_t device, int *card);

/* ---- nvml_processes.c: the container's processes ---- */
struct fr_nvml_process {
    unsigned slot, pid, generation;
    uint64_t start_time, bytes, gpu_ns; /* start_time in clock ticks since boot */
    const char *command;                /* in the region: 32 characters, not always terminated */
};
/* Calls `each` for every process that has a part of the card, until it returns false; fr_used reaps the dead before. */
typedef bool fr_each_nvml_process(const struct fr_nvml_process *tenant, void *data);
void fr_nvml_processes(int card, fr_each_nvml_process *each, void *data);

/* An array of the caller's: what fits is written, what there is is counted. */
struct fr_listing {
    char *out;
    size_t size; /* of an element */
    unsigned room, found;
};
bool fr_listing_fits(const struct fr_listing *listing);

/* ---- nvml_busy.c: percent of the time of late in which the container, or one process of it, computed on the card ---- */
/* What the driver says of processes, where the library measures nothing: their launches are not paced. */
#define FR_DRIVER_SAMPLES 256
struct fr_driver_utilization {
    unsigned count;
    struct { unsigned pid, busy; } of[FR_DRIVER_SAMPLES];
};
void fr_busy_look(int card); /* measure from now on; later looks of this kind change nothing */
unsigned fr_busy_percent(int card, const struct fr_driver_utilization *driver);
/* Of the window that fr_busy_percent looked at last. */
unsigned fr_busy_percent_of(int card, const struct fr_nvml_process *tenant, const struct fr_driver_utilization *driver);
bool fr_card_is_paced(int card); /* gate.c */
unsigned long long fr_wall_us(void);

#endif
