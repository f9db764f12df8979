/* Which of the container's cards belongs to a handle of the driver. Handles stay valid as long as the driver's library is loaded, so
 * results are remembered. */
#include "nvml/nvml_cards.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"

#include "nvml_abi.h"
#include "region.h"

#include <stdatomic.h>
#include <stdint.h>
#include <strings.h>

static FR_LARGE struct {
    _Atomic(nvmlDevice_t) handle;
    _Atomic uint32_t era;
} known[FR_MAX_CARDS];

void fr_nvml_card_remember(int card, nvmlDevice_t device)
{
    atomic_store_explicit(&known[card].handle, device, memory_order_relaxed);
    atomic_store_explicit(&known[card].era, atomic_load(&fr_era) + 1, memory_order_release);
}

static int remembered(nvmlDevice_t device, int cards)
{
    uint32_t era = atomic_load_explicit(&fr_era, memory_order_relaxed) + 1;
    for (int i = 0; i < cards; i++)
        if (atomic_load_explicit(&known[i].era, memory_order_acquire) == era &&
            atomic_load_explicit(&known[i].handle, memory_order_relaxed) == device)
            return i;
    return FR_NO_CARD;
}

/* Cards are identified by UUID. The container's list may change while the program runs, so a remembered card counts only while it is within
 * the list. */
int fr_nvml_card_named(const char *uuid, int cards)
{
    for (int i = 0; i < cards; i++)
        if (!strcasecmp(fr_card_uuid(i), uuid)) return i;
    return FR_NO_CARD;
}

nvmlReturn_t fr_nvml_card(nvmlDevice_t device, int *card)
{
    char uuid[96];
    unsigned index;
    nvmlReturn_t r = REAL(nvmlDeviceGetIndex)(device, &index); /* also detects an invalid handle and a lost card */
    if (r == NVML_ERROR_NOT_SUPPORTED) r = NVML_SUCCESS;
    if (r) return r;
    int cards = fr_card_count();
    *card = remembered(device, cards);
    if (*card != FR_NO_CARD) return NVML_SUCCESS;
    r = REAL(nvmlDeviceGetUUID)(device, uuid, sizeof uuid);
    if (r) return r;
    *card = fr_nvml_card_named(uuid, cards);
    if (*card == FR_NO_CARD) return NVML_ERROR_NO_PERMISSION;
    fr_nvml_card_remember(*card, device);
    return NVML_SUCCESS;
}
