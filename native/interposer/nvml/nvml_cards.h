/* Maps the driver's handles to the container's cards. A hook calls the driver first, so that the driver's own errors are returned (not
 * initialised, wrong handle, lost card, function that this driver lacks). Then it replaces the card's values by the container's. */
#ifndef FRACTILE_NVML_CARDS_H
#define FRACTILE_NVML_CARDS_H

#include "nvml_abi.h"

/* NVML_SUCCESS and the card; an error of the driver; or NVML_ERROR_NO_PERMISSION for a card that the container does not have. */
nvmlReturn_t fr_nvml_card(nvmlDevice_t device, int *card);
int fr_nvml_card_named(const char *uuid, int cards); /* searches the first `cards` cards; FR_NO_CARD: not found */
void fr_nvml_card_remember(int card, nvmlDevice_t device);

#endif
