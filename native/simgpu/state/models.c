/* Properties of the models that can be simulated, from their data sheets. A model is found by a part of its name; the first match counts.
 * src/fractile/nvml/models.py has the same table for cards without a driver, and tests/nvml/test_properties.py compares the two. */
#include "state.h"

#include <string.h>

/* part, NVML_DEVICE_ARCH_*, capability, MHz of the SMs and of the memory, bits of its bus, W, NVML_BRAND_* */
static const struct sim_model models[] = {
    {"K80", 2, 3, 7, 875, 2505, 384, 150, 2},       {"M40", 3, 5, 2, 1112, 3004, 384, 250, 2},
    {"P100", 4, 6, 0, 1328, 715, 4096, 250, 2},     {"P40", 4, 6, 1, 1531, 3615, 384, 250, 2},
    {"P4", 4, 6, 1, 1531, 3003, 256, 75, 2},        {"V100", 5, 7, 0, 1530, 877, 4096, 300, 2},
    {"T4", 6, 7, 5, 1590, 5001, 256, 70, 2},        {"A100", 7, 8, 0, 1410, 1215, 5120, 400, 14},
    {"A10", 7, 8, 6, 1695, 6251, 384, 150, 14},     {"L40", 8, 8, 9, 2490, 9001, 384, 300, 14},
    {"L4", 8, 8, 9, 2040, 6251, 192, 72, 14},       {"4090", 8, 8, 9, 2520, 10501, 384, 450, 5},
    {"H100", 9, 9, 0, 1980, 2619, 5120, 700, 14},   {"H200", 9, 9, 0, 1980, 3201, 6144, 700, 14},
    {"B200", 10, 10, 0, 1965, 3996, 8192, 1000, 14}, {"", 7, 8, 0, 1410, 1215, 5120, 400, 14}};

const struct sim_model *sim_model_of(const struct sim_card *card)
{
    const struct sim_model *m = models;
    while (!strstr(card->model, m->part)) m++; /* the last entry matches every name */
    return m;
}
