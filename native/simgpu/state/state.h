/* The shared state of a simulated host: one file, mapped by every process that uses a card.
 *
 * A process may be killed between any two instructions, even while it holds the lock. So only a few fields are primary (the state word of a
 * charge, of a context, of a process). Each of them becomes valid with one store. Everything else (sums, free lists, per-card lists) is
 * derived from them, and the process that finds the holder of the lock dead rebuilds it. Peaks are the exception: they are only ever raised.
 *
 *      charge:   FREE --fill, then store--> HELD --store--> FREE
 *      process:  FREE --fill, then store--> LIVE --reaped--> DEAD (peaks kept for the reader) --slot reused--> LIVE
 *
 * A process is identified by a slot number, not by a pid: containers see different pids for one process. A slot is alive while its process
 * holds the byte lock of that slot (an open-file-description lock, which the kernel drops when the process dies).
 *
 * A slot takes a page, so reading all slots would touch 4 MB. That is avoided: "live" has a bit for each slot whose state may be LIVE, set
 * before that word and cleared after it, and slots from process_high on were never filled. After a death between two stores, both may
 * include too many slots, but never too few.
 */
#ifndef SIMGPU_STATE_H
#define SIMGPU_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MAGIC 0x53494d4750550009ull /* "SIMGPU", layout 9 */
#define SIM_CARDS 32
#define SIM_ROW 1025 /* bytes of a card's row of words: model/interconnect.py */
#define SIM_DEGREES 40 /* of a card unless simgpu-ctl sets another temperature */
#define SIM_PROCESSES 1024
#define SIM_CONTAINERS 512
#define SIM_CHARGES 131072
#define SIM_CONTEXTS 1024
#define SIM_CONTEXTS_PER_CARD 256
#define SIM_EVENTS 32768
#define SIM_RING 1024  /* launches a context can have pending before a launch blocks */
#define SIM_QUEUES 32  /* hardware queues of a context; more streams share them, as on a card */
#define SIM_RUNNING 32 /* kernels of one context that run at the same time */
#define SIM_HISTORY 131072 /* remembered changes of the memory that containers hold */
#define SIM_FAULTS 64  /* remembered XID and ECC events of a card */
#define SIM_BUCKETS 64 /* buckets of utilisation, SIM_BUCKET_NS each */
#define SIM_BUCKET_NS 100000000ull
#define SIM_MIB 1048576ull
#define SIM_GRANULE (2 * SIM_MIB)
#define SIM_NO_CONTEXT UINT32_MAX
#define SIM_NOBODY 0xffffu /* the "process" of memory that only a descriptor keeps alive */

enum sim_kind {
    SIM_LINEAR, SIM_SLAB, SIM_MANAGED, SIM_POOL, SIM_VMM, SIM_ARRAY, SIM_GRAPH, SIM_CONTEXT, SIM_MODULE, SIM_MULTICAST, SIM_KINDS
};
extern const char *const sim_kind_names[SIM_KINDS];

/* Worn memory. PENDING: at the next reset a spare row, or on older cards another page, replaces it. FAILED: none is left. */
enum sim_repair { SIM_SOUND, SIM_REPAIR_PENDING, SIM_REPAIR_FAILED };

enum { SIM_FREE = 0, SIM_HELD = 1 };
enum { SIM_SLOT_FREE = 0, SIM_LIVE = 1, SIM_DEAD = 2 };

/* One piece of a card's memory. Importers of a shared object hold a charge of zero bytes with the same object number. When the payer releases
 * the object, the bytes move to one of them. If there is no importer but an exported descriptor is still open somewhere, the charge stays in
 * the payer's container, with SIM_NOBODY as its process, until the descriptor is closed.
 *
 * Slack is the amount beyond its bytes that the table of bounds (docs/develop/simgpu.md) lets a library count for the piece: the rest of a
 * context that costs less than reported, or a pool's chunk that was given back in a call unrelated to the pool. */
struct sim_charge {
    _Atomic uint32_t state;
    uint16_t card, process, container;
    uint8_t kind, exported;
    uint32_t next_free;
    uint64_t bytes, asked, object, slack;
};

struct sim_usage {
    uint64_t now, peak; /* bytes held */
    uint64_t slack;     /* bytes that may be counted beyond those held now */
};

struct sim_process {
    _Atomic uint32_t state;
    uint32_t container, pid, is_nvml;
    uint64_t start_time, pid_namespace;
    char command[32];
    struct sim_usage usage[SIM_CARDS];
    uint64_t left_ns, left[SIM_CARDS]; /* when its end was noticed, and the bytes that it held then */
    uint32_t contexts[SIM_CARDS];
    uint64_t gpu_ns[SIM_CARDS];
    uint64_t bucket_at[SIM_CARDS];                 /* number of the newest bucket */
    uint32_t bucket_ns[SIM_CARDS][SIM_BUCKETS / 4]; /* busy time, ring by bucket number */
};

struct sim_container {
    char name[128];
    struct sim_usage usage[SIM_CARDS];
};

struct sim_change {
    uint32_t container, card;
    uint64_t most; /* bytes that may be counted for the container from then on: held bytes and slack */
};

struct sim_fault {
    uint64_t number, at_ns;
    uint32_t xid, pid;
};

struct sim_copy_engine {
    uint32_t context;
    uint64_t seq, end_ns, busy_ns;
};

enum { SIM_TO_DEVICE = 0, SIM_TO_HOST = 1, SIM_COPY_ENGINES = 2 };

struct sim_card {
    /* from the cards file */
    char uuid[64], model[96], bus_id[32], interconnect[32], topology[SIM_ROW];
    uint32_t index, sm_count, present;
    uint32_t nvlink, pcie, lanes; /* generations and width; 0: unspecified */
    int32_t numa;                 /* -1: unspecified */
    uint64_t total, reserved, context_bytes;
    uint64_t slice_ns, switch_ns;
    double host_gbps, memory_gbps;
    /* memory: derived */
    uint64_t used, peak;
    /* health */
    uint32_t lost, fault_error, fault_generation;
    int32_t degrees;
    uint32_t repair, recovery; /* enum sim_repair; NVML_GPU_RECOVERY_ACTION_* */
    uint64_t fault_count, ecc_corrected, ecc_uncorrected;
    struct sim_fault faults[SIM_FAULTS];
    /* time */
    uint32_t current, last, context_count, copies; /* copies: queued or running */
    uint16_t contexts[SIM_CONTEXTS_PER_CARD];
    uint64_t begin_ns, slice_end_ns, accounted_ns, next_ns;
    uint64_t busy_ns, switches, bucket_at;
    uint32_t bucket_ns[SIM_BUCKETS];
    struct sim_copy_engine engines[SIM_COPY_ENGINES];
};

enum sim_work { SIM_KERNEL, SIM_COPY, SIM_MARK, SIM_WAIT, SIM_HOST };
enum { SIM_QUEUED = 0, SIM_STARTED = 1, SIM_DONE = 2 };

struct sim_item {
    uint64_t seq, next;      /* next item of the same queue, 0 for none */
    uint64_t after;          /* an earlier item of this context that must be done: the legacy stream's order */
    uint64_t depends_seq;    /* of a SIM_WAIT */
    uint32_t depends_context, depends_generation;
    uint64_t left_ns, end_ns, ready_ns;
    uint32_t event, event_generation;
    uint16_t queue, share; /* share of the SMs in thousandths */
    uint8_t kind, state, barrier, engine;
    int8_t priority;      /* of its stream; lower goes first */
    uint8_t peers, arrived; /* the kernel spins until this many kernels with its number have begun; it has begun itself */
    uint32_t meet;          /* that number; 0: none */
    uint8_t memory_bound; /* the kernel shares the memory's bandwidth with other such kernels */
};

struct sim_context {
    _Atomic uint32_t state;
    uint32_t process, card, generation;
    uint64_t head, tail; /* next seq to assign; oldest item that is not retired */
    uint64_t queue_head[SIM_QUEUES], queue_tail[SIM_QUEUES];
    uint32_t queues, blocking; /* number in use; bit set of queues that the legacy stream orders */
    uint32_t running_count, share_used, ready, cross_waits;
    uint64_t running[SIM_RUNNING];
    uint64_t gpu_ns, launches;
};

struct sim_event {
    _Atomic uint32_t state;
    uint32_t process, generation, done, ipc;
    uint32_t context, context_generation;
    uint64_t seq, end_ns;
};

#define SIM_MEETINGS 256
struct sim_meeting {
    uint32_t number, arrived;
};

struct sim_state {
    _Atomic uint64_t magic;
    uint64_t size;
    _Atomic uint32_t lock; /* 0, or slot + 1, with SIM_WAITERS if a thread sleeps */
    _Atomic uint32_t fault_bell; /* futex: moves with every injected fault */
    uint64_t recoveries, reaped, reap_checked_ns, cards_mtime, cards_size, clock_ns;
    _Atomic uint64_t next_object;
    uint32_t card_count, container_count, slot_cursor, process_high;
    _Atomic uint64_t live[SIM_PROCESSES / 64];
    uint32_t charge_high, charge_free, charge_count, unclaimed; /* free list: index + 1; unclaimed: charges of SIM_NOBODY */
    uint32_t context_high, event_high, generation, cross_waits, must_rescan;
    struct sim_card cards[SIM_CARDS];
    struct sim_container containers[SIM_CONTAINERS];
    struct sim_process processes[SIM_PROCESSES];
    struct sim_charge charges[SIM_CHARGES];
    struct sim_event events[SIM_EVENTS];
    struct sim_context contexts[SIM_CONTEXTS];
    struct sim_item rings[SIM_CONTEXTS][SIM_RING];
    _Atomic uint64_t changes; /* number of changes ever; the last SIM_HISTORY follow, the n-th at n % SIM_HISTORY */
    struct sim_change history[SIM_HISTORY];
    struct sim_meeting meetings[SIM_MEETINGS]; /* the latest */
    uint32_t next_meeting;
};

/* One open host: the mapping and this process's slot in it. */
struct sim_host {
    struct sim_state *state;
    int fd;
    uint64_t inode; /* of the state file, to check that fd is still that file */
    uint32_t slot;
    char directory[200];
    char error[256]; /* why sim_open failed */
};

/* Iterates over the slots whose process may be alive. */
#define SIM_EACH_LIVE(state, slot) \
    for (uint32_t slot = sim_live_from(state, 0); slot < SIM_PROCESSES; slot = sim_live_from(state, slot + 1))

/* In the build with crash points, SIMGPU_CRASH_AT=N kills the process when it reaches its N-th point. */
#ifdef SIM_CRASH_POINTS
void sim_point(void);
#define SIM_POINT() sim_point()
#else
#define SIM_POINT() ((void)0)
#endif

/* open.c */
bool sim_settings_mean_something(char *error, size_t error_size); /* checks the environment; error: the setting without a meaning */
bool sim_open(struct sim_host *host, bool nvml);
void sim_close(struct sim_host *host);
void sim_after_fork(struct sim_host *host);
const char *sim_directory(void);
bool sim_keep_descriptor(struct sim_host *host);

/* lock.c */
void sim_lock(struct sim_host *host);
void sim_unlock(struct sim_host *host);
bool sim_slot_alive(struct sim_host *host, uint32_t slot);
bool sim_process_gone(const struct sim_process *p);
void sim_adopt_lock(struct sim_host *host);
uint64_t sim_now(void);

/* reap.c: with the lock held */
void sim_reap(struct sim_host *host);
void sim_reap_all(struct sim_host *host); /* also processes whose lock a forked child still holds */
void sim_reap_sometimes(struct sim_host *host, uint64_t now);
void sim_reap_slot(struct sim_host *host, uint32_t slot);
uint32_t sim_live_from(const struct sim_state *s, uint32_t slot); /* the next slot, or SIM_PROCESSES; the lock is not needed */
void sim_live_set(struct sim_state *s, uint32_t slot);
void sim_recover(struct sim_host *host);
void sim_object_path(const struct sim_host *host, uint64_t object, char *out, size_t size);

/* descriptor.c */
bool sim_descriptor_mark(int fd);
bool sim_descriptor_open(const struct sim_host *host, uint64_t object);

/* ledger.c: with the lock held; a charge is named by its index + 1; 0: there was no room */
uint32_t sim_charge_memory(struct sim_host *host, uint32_t card, enum sim_kind kind, uint64_t bytes, uint64_t asked);
uint32_t sim_charge_import(struct sim_host *host, uint32_t card, enum sim_kind kind, uint64_t object, uint64_t size);
void sim_release(struct sim_host *host, uint32_t charge);
void sim_allow(struct sim_host *host, uint32_t charge, uint64_t slack); /* sets the slack */
void sim_share(struct sim_host *host, uint32_t charge);
void sim_release_unclaimed(struct sim_host *host);
bool sim_object_find(struct sim_host *host, uint64_t object, enum sim_kind *kind, uint32_t *card, uint64_t *size);
uint64_t sim_free_bytes(const struct sim_card *card);
void sim_ledger_rebuild(struct sim_host *host);

/* engine.c: with the lock held */
uint32_t sim_context_new(struct sim_host *host, uint32_t card);
void sim_context_drop(struct sim_host *host, uint32_t context);
void sim_advance(struct sim_host *host, uint64_t now);
bool sim_ring_full(const struct sim_host *host, uint32_t context);
uint64_t sim_enqueue(struct sim_host *host, uint32_t context, struct sim_item item, uint64_t now);
bool sim_item_done(const struct sim_host *host, uint32_t context, uint32_t generation, uint64_t seq);
bool sim_context_idle(const struct sim_host *host, uint32_t context);
void sim_complete(struct sim_host *host, uint32_t context, uint64_t seq, uint64_t now);
uint64_t sim_earliest(const struct sim_host *host, uint32_t context, uint64_t seq, uint64_t now);
void sim_engine_rebuild(struct sim_host *host);
uint32_t sim_busy_percent(const struct sim_card *card, uint64_t now, uint64_t window_ns);
uint32_t sim_process_busy_percent(const struct sim_process *p, uint32_t card, uint64_t now, uint64_t window_ns);

/* cards.c: with the lock held */
bool sim_read_cards(struct sim_host *host, char *error, size_t error_size);
bool sim_retires_pages(const struct sim_card *card); /* instead of replacing rows: cards before Ampere */

/* models.c: properties of a card model; clocks in MHz, power in W */
struct sim_model {
    const char *part;
    unsigned architecture, major, minor, clock, memory_clock, bus, power, brand;
};
const struct sim_model *sim_model_of(const struct sim_card *card);

/* wires.c: how cards are connected. A row has a word for each card of the host by index: X, NVn, PIX, PXB, PHB, NODE, SYS, ? */
bool sim_row_right(const char *row);
const char *sim_word(const struct sim_card *card, uint32_t index, char *out, size_t size);
unsigned sim_links(const struct sim_card *a, const struct sim_card *b);

/* faults.c: with the lock held */
void sim_inject_xid(struct sim_host *host, uint32_t card, uint32_t xid, uint32_t pid);
void sim_inject_ecc(struct sim_host *host, uint32_t card, bool uncorrectable, uint64_t count);
void sim_heat(struct sim_host *host, uint32_t card, int32_t degrees);
bool sim_wear(struct sim_host *host, uint32_t card, enum sim_repair repair); /* false: such a card cannot have this state */
void sim_advise(struct sim_host *host, uint32_t card, uint32_t recovery);
void sim_heal(struct sim_host *host, uint32_t card);

#endif
