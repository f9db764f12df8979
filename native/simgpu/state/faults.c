/* Faults that a test injects while programs run: XID events, ECC errors, heat, worn memory, a card that falls off the bus. */
#include "state.h"

#include <linux/futex.h>
#include <limits.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ERROR_ECC = 214, ERROR_ILLEGAL_ADDRESS = 700, ERROR_LAUNCH_FAILED = 719, ERROR_UNKNOWN = 999 };
enum { XID_ENGINE = 13, XID_MMU = 31, XID_DOUBLE_BIT = 48, XID_LOST = 79, XID_CONTAINED = 94, XID_UNCONTAINED = 95 };

static void ring_bell(struct sim_state *s)
{
    atomic_fetch_add(&s->fault_bell, 1);
    syscall(SYS_futex, &s->fault_bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* The error that contexts on the card return from their next call on; 0: the XID does not affect them. */
static uint32_t error_of(uint32_t xid)
{
    switch (xid) {
    case XID_ENGINE: return ERROR_LAUNCH_FAILED;
    case XID_MMU: return ERROR_ILLEGAL_ADDRESS;
    case XID_DOUBLE_BIT:
    case XID_CONTAINED:
    case XID_UNCONTAINED: return ERROR_ECC;
    case XID_LOST: return ERROR_UNKNOWN;
    default: return 0;
    }
}

void sim_inject_xid(struct sim_host *host, uint32_t card, uint32_t xid, uint32_t pid)
{
    struct sim_card *c = &host->state->cards[card];
    struct sim_fault *f = &c->faults[c->fault_count % SIM_FAULTS];
    *f = (struct sim_fault){.number = c->fault_count + 1, .at_ns = sim_now(), .xid = xid, .pid = pid};
    c->fault_count++;
    if (xid == XID_LOST) c->lost = 1;
    if (error_of(xid)) {
        c->fault_error = error_of(xid);
        c->fault_generation++;
    }
    ring_bell(host->state);
}

void sim_inject_ecc(struct sim_host *host, uint32_t card, bool uncorrectable, uint64_t count)
{
    struct sim_card *c = &host->state->cards[card];
    if (!uncorrectable) {
        c->ecc_corrected += count;
        return;
    }
    c->ecc_uncorrected += count;
    sim_inject_xid(host, card, XID_DOUBLE_BIT, 0);
}

void sim_heat(struct sim_host *host, uint32_t card, int32_t degrees) { host->state->cards[card].degrees = degrees; }

bool sim_wear(struct sim_host *host, uint32_t card, enum sim_repair repair)
{
    struct sim_card *c = &host->state->cards[card];
    if (repair == SIM_REPAIR_FAILED && sim_retires_pages(c)) return false; /* NVML cannot report that for such cards */
    c->repair = repair;
    return true;
}

void sim_advise(struct sim_host *host, uint32_t card, uint32_t recovery) { host->state->cards[card].recovery = recovery; }

/* As on a real card, programs that saw the fault keep their broken contexts; new contexts work. */
void sim_heal(struct sim_host *host, uint32_t card)
{
    struct sim_card *c = &host->state->cards[card];
    c->lost = 0;
    c->ecc_corrected = c->ecc_uncorrected = 0;
    c->degrees = SIM_DEGREES;
    c->repair = SIM_SOUND;
    c->recovery = 0;
    ring_bell(host->state);
}
