/* What this process holds on a card, as the driver reports it: NVML's list of processes has a figure for each.
 *
 * The list has the pids of the host. This process's pid there is known if it has no other pid (it is in the first pid
 * namespace). Otherwise it is known when exactly one process on the card is new since before our first context was made there:
 * that one is this process. If it stays unknown, or the driver gives no figure, there is no figure here.
 *
 * Starting NVML takes milliseconds, so nothing here is suitable for a call that is made often. */
#include "memory/own_figure.h"

#include "base/lock.h"
#include "resolve/real.h"
#include "ledger/account.h"
#include "ledger/frees.h"
#include "ledger/limits.h"
#include "ledger/own_account.h"
#include "ledger/process.h"
#include "ledger/shared.h"

#include "nvml_abi.h"
#include "region.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FIRST_PID_NAMESPACE 0xEFFFFFFCull /* its inode: the kernel's PROC_PID_INIT_INO */
#define NO_FIGURE UINT64_MAX

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out);

static _Atomic uint32_t started_in, pid_in; /* the era of each */
static _Atomic uint32_t own_pid;

static bool start(void)
{
    uint32_t era = atomic_load(&fr_era);
    if (!fr_driver_has(FR_nvmlDeviceGetComputeRunningProcesses_v3)) return false;
    if (atomic_load(&started_in) == era) return true;
    if (REAL(nvmlInit_v2)()) return false;
    atomic_store(&started_in, era);
    return true;
}

static unsigned known_pid(void)
{
    struct stat space;
    if (atomic_load(&pid_in) == atomic_load(&fr_era)) return atomic_load(&own_pid);
    if (syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &space, 0) || space.st_ino != FIRST_PID_NAMESPACE) return 0;
    return (unsigned)syscall(SYS_getpid);
}

struct list { unsigned count; nvmlProcessInfo_v2_t at[FR_LISTED]; };

static bool read_list(int card, struct list *out)
{
    nvmlDevice_t device;
    if (!start() || REAL(nvmlDeviceGetHandleByUUID)(fr_card_uuid(card), &device)) return false;
    out->count = FR_LISTED;
    return !REAL(nvmlDeviceGetComputeRunningProcesses_v3)(device, &out->count, out->at) && out->count <= FR_LISTED;
}

void fr_neighbours_note(int card, struct fr_neighbours *out)
{
    struct list l;
    out->known = read_list(card, &l);
    out->count = out->known ? l.count : 0;
    for (unsigned i = 0; i < out->count; i++) out->pids[i] = l.at[i].pid;
}

static bool was_there(const struct fr_neighbours *before, unsigned pid)
{
    for (unsigned i = 0; i < before->count; i++)
        if (before->pids[i] == pid) return true;
    return false;
}

static void find_pid(const struct fr_neighbours *before, const struct list *l)
{
    unsigned pid = 0, fresh = 0;
    for (unsigned i = 0; i < l->count; i++)
        if (!was_there(before, l->at[i].pid)) pid = l->at[i].pid, fresh++;
    if (fresh != 1) return;
    atomic_store(&own_pid, pid);
    atomic_store(&pid_in, atomic_load(&fr_era));
}

/* This process's charge in the ledger, and whether calls under way may give back some of it. The caller compares two readings. */
static uint64_t still(struct fr_account *own, bool *frees)
{
    *frees = fr_frees_any(atomic_load(&own->frees));
    return atomic_load(&own->charged);
}

/* The driver's figure counts a shared object for one process, while the ledger may have it in another account. */
static bool shares(int card)
{
    uint32_t high = atomic_load(&fr_shared.region->object_high);
    for (uint32_t i = 0; i < high && i < fr_shared.object_count; i++)
        if (atomic_load(&fr_shared.objects[i].state) != FR_OBJECT_FREE && fr_shared.objects[i].card == (uint32_t)card) return true;
    return false;
}

bool fr_own_figure(int card, const struct fr_neighbours *before, uint64_t *held, uint64_t *charged)
{
    struct list l;
    bool freeing, still_freeing;
    if (!known_pid() && !(before && before->known)) return false;
    if (card < 0 || fr_process_state() == FR_CLOSED || card >= (int)fr_shared.card_count || shares(card)) return false;
    struct fr_account *own = fr_own_account(card);
    uint64_t then = still(own, &freeing);
    if (!read_list(card, &l)) return false;
    if (!known_pid()) find_pid(before, &l);
    unsigned pid = known_pid();
    *held = NO_FIGURE;
    for (unsigned i = 0; pid && i < l.count; i++)
        if (l.at[i].pid == pid) *held = l.at[i].usedGpuMemory;
    *charged = (then >> FR_SEQUENCE_BITS) * FR_UNIT_BYTES;
    return *held != NO_FIGURE && still(own, &still_freeing) == then && !freeing && !still_freeing;
}
