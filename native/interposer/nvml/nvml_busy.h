/* Percent of the time of late in which the container, or one process of it, computed on the card. */
#ifndef FRACTILE_NVML_BUSY_H
#define FRACTILE_NVML_BUSY_H

struct fr_nvml_process;

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
unsigned long long fr_wall_us(void);

#endif
