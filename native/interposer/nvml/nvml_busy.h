/* Utilization: the percentage of recent time in which the container, or one of its processes, computed on the card. */
#ifndef FRACTILE_NVML_BUSY_H
#define FRACTILE_NVML_BUSY_H

struct fr_nvml_process;

/* The driver's utilization per process, for processes that the library does not measure because their launches are not paced. */
#define FR_DRIVER_SAMPLES 256
struct fr_driver_utilization {
    unsigned count;
    struct { unsigned pid, busy; } of[FR_DRIVER_SAMPLES];
};
void fr_busy_look(int card); /* starts measuring; later calls change nothing */
unsigned fr_busy_percent(int card, const struct fr_driver_utilization *driver);
/* For the time window of the last call of fr_busy_percent. */
unsigned fr_busy_percent_of(int card, const struct fr_nvml_process *tenant, const struct fr_driver_utilization *driver);
unsigned long long fr_wall_us(void);

#endif
