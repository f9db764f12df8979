/* The driver's handles are the container's cards. A hook asks the driver first, so that its own errors come back (not
 * initialised, wrong handle, lost card, function that this driver lacks), and then puts the container's truth in the place of
 * the card's. */
#ifndef FRACTILE_NVML_CARDS_H
#define FRACTILE_NVML_CARDS_H

#include "nvml_abi.h"

/* NVML_SUCCESS and the card; an error of the driver's; NVML_ERROR_NO_PERMISSION for somebody else's card. */
nvmlReturn_t fr_nvml_card(nvmlDevice_t device, int *card);
int fr_nvml_card_named(const char *uuid, int cards); /* FR_NO_CARD: none of the first so many */
void fr_nvml_card_remember(int card, nvmlDevice_t device);

#endif
