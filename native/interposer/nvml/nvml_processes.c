/* NVML: the processes that use a card. Only the container's own are listed, each with its pid in its own namespace. The driver's lists
 * contain all processes of the node, and the driver's open and closed kernel modules report different pids. */
#include "nvml/nvml_processes.h"

#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/account.h"
#include "ledger/ledger.h"
#include "ledger/process.h"
#include "ledger/shared.h"
#include "nvml/nvml_cards.h"

#include "nvml_abi.h"
#include "region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- the region's slots ---- */

static bool tenant_at(unsigned slot, unsigned card, struct fr_nvml_process *out)
{
    const struct fr_slot *s = fr_slot(slot);
    struct fr_account *a = fr_slot_account(slot, card);
    if (atomic_load(&s->state) != FR_SLOT_LIVE) return false;
    uint64_t bytes = fr_charged_units(a) * FR_UNIT_BYTES;
    if (!bytes && !atomic_load(&a->contexts)) return false;
    *out = (struct fr_nvml_process){slot, __atomic_load_n(&s->pid, __ATOMIC_RELAXED), atomic_load(&s->generation),
                              __atomic_load_n(&s->start_time, __ATOMIC_RELAXED), bytes, atomic_load(&a->gpu_ns), s->command};
    return true;
}

void fr_nvml_processes(int card, fr_each_nvml_process *each, void *data)
{
    struct fr_nvml_process tenant;
    if (!fr_process_attach() || card < 0 || (unsigned)card >= fr_shared.card_count) return;
    uint32_t end = fr_slots_in_use();
    for (uint32_t i = 0; i < end; i++)
        if (tenant_at(i, (unsigned)card, &tenant) && !each(&tenant, data)) return;
}

/* ---- process lists: three versions of the call, two layouts ---- */

static bool put(const struct fr_nvml_process *tenant, void *data)
{
    struct fr_listing *l = data;
    nvmlProcessDetail_v1_t info = {tenant->pid, tenant->bytes, NVML_NO_INSTANCE, NVML_NO_INSTANCE, 0};
    if (l->out && l->found < l->room) memcpy(l->out + l->found * l->size, &info, l->size); /* the shorter layouts are the beginning of this one */
    l->found++;
    return true;
}

bool fr_listing_fits(const struct fr_listing *l) { return !l->found || (l->out && l->found <= l->room); }

/* `asked` is the driver's result for a call that requests the number only. */
static nvmlReturn_t processes(nvmlReturn_t asked, nvmlDevice_t device, unsigned *count, void *out, size_t size, bool any)
{
    int card;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    if (asked && asked != NVML_ERROR_INSUFFICIENT_SIZE) return asked;
    nvmlReturn_t r = fr_nvml_card(device, &card);
    if (r) return r;
    struct fr_listing l = {out, size, *count, 0};
    fr_used(card); /* reaps the dead */
    if (any) fr_nvml_processes(card, put, &l);
    *count = l.found;
    return fr_listing_fits(&l) ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

#define PROCESSES(name, type, any)                                                        \
    HOOK nvmlReturn_t name(nvmlDevice_t device, unsigned *count, type *out)               \
    {                                                                                     \
        unsigned none = 0;                                                                \
        nvmlReturn_t asked = REAL(name)(device, &none, NULL);                             \
        return processes(asked, device, count, out, sizeof(type), any);                   \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, true)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, true)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, true)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, false)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t, false)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, false)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, false)
/* Sessions of the video engines: the driver lists those of the whole card, with pids. The container's own are not known, so none is shown. */
PROCESSES(nvmlDeviceGetEncoderSessions, nvmlSession_t, false)
PROCESSES(nvmlDeviceGetFBCSessions, nvmlSession_t, false)

HOOK nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
    if (!list || list->version != NVML_VERSION(*list, 1)) return REAL(nvmlDeviceGetRunningProcessDetailList)(device, list);
    nvmlProcessDetailList_v1_t number = {list->version, list->mode, 0, NULL};
    nvmlReturn_t asked = REAL(nvmlDeviceGetRunningProcessDetailList)(device, &number);
    bool any = list->mode == NVML_PROCESS_COMPUTE || list->mode == NVML_PROCESS_ALL;
    return processes(asked, device, &list->numProcArrayEntries, list->procArray, sizeof *list->procArray, any);
}
