/* Makes the directory of a run, and removes it at the end, even if the supervisor is killed. */
#include "place.h"

#include "region.h"

#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLOTS_EACH 512
#define OBJECTS_EACH 1024

static _Noreturn void fail(const char *what)
{
    perror(what);
    exit(3);
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *f)
{
    (void)s, (void)type, (void)f;
    return remove(path);
}

/* Starts a process that waits until the supervisor ends, for any reason, and then removes the directory. */
static void start_janitor(const char *directory)
{
    int end[2];
    char byte;
    if (pipe2(end, O_CLOEXEC)) fail("pipe");
    if (fork()) {
        close(end[0]);
        return;
    }
    close(end[1]);
    setsid();
    signal(SIGINT, SIG_IGN);
    prctl(PR_SET_NAME, "stress-janitor");
    fclose(stdout);
    while (read(end[0], &byte, 1) > 0) {}
    for (int tries = 0; tries < 50 && nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0; tries++) usleep(100000);
    _exit(0);
}

static void *map_new(const char *path, size_t size)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)size)) fail(path); /* allocated now, so that a full disk does not show up later */
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) fail(path);
    close(fd);
    return p;
}

static void uuid(char *out, size_t size, int card) { snprintf(out, size, "GPU-00000000-0000-4000-8000-%012d", card + 1); }

static void write_cards(const struct place *p, uint64_t card_mib, uint64_t context_mib)
{
    char path[300], id[64];
    snprintf(path, sizeof path, "%s/host", p->directory);
    if (mkdir(path, 0777)) fail(path);
    snprintf(path, sizeof path, "%s/host/cards.json", p->directory);
    FILE *f = fopen(path, "w");
    if (!f) fail(path);
    for (int i = 0; i < CARDS; i++) {
        uuid(id, sizeof id, i);
        fprintf(f, "%s{\"uuid\": \"%s\", \"index\": %d, \"model\": \"NVIDIA A100-SXM4-40GB\", \"memoryMiB\": %llu, \"contextMiB\": %llu, "
                   "\"pciBusID\": \"00000000:0%d:00.0\", \"smCount\": 108, \"interconnect\": \"NV12\"}",
                i ? ",\n" : "[", id, i, (unsigned long long)card_mib, (unsigned long long)context_mib, i + 1);
    }
    fputs("]\n", f);
    fclose(f);
}

/* ---- the files that the node agent writes for a container ---- */

static size_t region_size(size_t account_size)
{
    return sizeof(struct fr_region) + CARDS * sizeof(struct fr_region_card) +
           SLOTS_EACH * (sizeof(struct fr_slot) + CARDS * account_size) + OBJECTS_EACH * sizeof(struct fr_object);
}

static struct fr_region *make_region(const char *directory, uint64_t generation)
{
    char path[300];
    snprintf(path, sizeof path, "%s/shared", directory);
    if (mkdir(path, 0777)) fail(path);
    snprintf(path, sizeof path, "%s/shared/region", directory);
    struct fr_region *r = map_new(path, region_size(sizeof(struct fr_account)));
    *r = (struct fr_region){.magic = FR_REGION_MAGIC, .version = FR_LAYOUT_VERSION, .header_size = sizeof *r,
                            .size = region_size(sizeof(struct fr_account)), .generation = generation, .card_count = CARDS,
                            .slot_count = SLOTS_EACH, .object_count = OBJECTS_EACH, .account_size = sizeof(struct fr_account)};
    return r;
}

static struct fr_limits *make_limits(const struct place *p, const char *directory, int container, uint64_t generation)
{
    char path[300];
    snprintf(path, sizeof path, "%s/limits", directory);
    struct fr_limits *l = map_new(path, sizeof *l);
    l->magic = FR_LIMITS_MAGIC;
    l->version = FR_LAYOUT_VERSION;
    l->size = sizeof *l;
    l->card_count = CARDS;
    l->region_generation = generation;
    snprintf(l->pod_name, sizeof l->pod_name, "stress-%d", container);
    for (int i = 0; i < CARDS; i++) {
        uuid(l->cards[i].uuid, sizeof l->cards[i].uuid, i);
        l->cards[i].memory = p->board->quota[i];
        l->cards[i].context = p->board->context_bytes;
    }
    l->end = FR_END_MAGIC;
    return l;
}

static void make_container(struct place *p, int container)
{
    char directory[250];
    snprintf(directory, sizeof directory, "%s/container-%d", p->directory, container);
    if (mkdir(directory, 0777)) fail(directory);
    uint64_t generation = 0x5712E55ull + (uint64_t)container;
    p->regions[container] = make_region(directory, generation);
    p->limits[container] = make_limits(p, directory, container, generation);
}

/* The caller has filled in the board's settings; they are copied into the file that the workers map. */
void place_make(struct place *p, uint64_t card_mib, uint64_t context_mib)
{
    char path[300];
    const struct board settings = {.seed = p->board->seed, .quota = {p->board->quota[0], p->board->quota[1]},
                                   .context_bytes = context_mib * MIB, .ops_wanted = p->board->ops_wanted,
                                   .workers = p->board->workers, .containers = p->board->containers, .threads = p->board->threads, .wild = p->board->wild};
    /* In memory if possible: every operation writes to these files. */
    const char *where = access("/dev/shm", W_OK) ? getenv("TMPDIR") : "/dev/shm";
    snprintf(p->directory, sizeof p->directory, "%s/stress-XXXXXX", where ? where : "/tmp"); /* mkdtemp completes the name */
    if (!mkdtemp(p->directory)) fail(p->directory);
    start_janitor(p->directory);
    snprintf(path, sizeof path, "%s/board", p->directory);
    p->board = map_new(path, sizeof *p->board);
    memcpy(p->board, &settings, sizeof settings);
    write_cards(p, card_mib, context_mib);
    for (int i = 0; i < (int)p->board->containers; i++) make_container(p, i);
}

/* Sets the environment of a program in the container. */
void place_environment(const struct place *p, int container)
{
    char text[300];
    setenv("STRESS_DIR", p->directory, 1);
    snprintf(text, sizeof text, "%s/host", p->directory);
    setenv("SIMGPU_DIR", text, 1);
    snprintf(text, sizeof text, "stress-%d", container);
    setenv("SIMGPU_CONTAINER", text, 1);
    setenv("SIMGPU_POLICY", p->policy, 1);
    snprintf(text, sizeof text, "%s/container-%d", p->directory, container);
    setenv("FRACTILE_DIR", text, 1);
    if (p->library) setenv("LD_PRELOAD", p->library, 1);
    else unsetenv("LD_PRELOAD");
}

static struct fr_region_card *region_card(const struct place *p, int container, int card)
{
    return (struct fr_region_card *)(p->regions[container] + 1) + card;
}

uint64_t place_used(const struct place *p, int container, int card)
{
    return (atomic_load(&region_card(p, container, card)->used) >> 30) * FR_UNIT_BYTES;
}

uint64_t place_unaccounted(const struct place *p, int container, int card) { return p->limits[container]->cards[card].unaccounted; }

void place_set_unaccounted(const struct place *p, int container, int card, uint64_t bytes)
{
    struct fr_limits *l = p->limits[container];
    uint32_t sequence = atomic_load(&l->sequence);
    if (l->cards[card].unaccounted == bytes) return;
    atomic_store(&l->sequence, sequence + 1);
    atomic_thread_fence(memory_order_seq_cst);
    __atomic_store_n(&l->cards[card].unaccounted, bytes, __ATOMIC_RELAXED);
    atomic_store(&l->sequence, sequence + 2);
}

/* `slot` counts the slots first, then the objects. */
uint64_t place_account(const struct place *p, int container, int card, int slot, uint32_t *pid)
{
    const size_t slot_size = sizeof(struct fr_slot) + CARDS * sizeof(struct fr_account);
    char *slots = (char *)(region_card(p, container, 0) + CARDS);
    struct fr_object *o = (struct fr_object *)(slots + SLOTS_EACH * slot_size) + (slot - SLOTS_EACH);
    struct fr_slot *s = (struct fr_slot *)(slots + (size_t)slot * slot_size);
    bool process = slot < SLOTS_EACH;
    struct fr_account *a = process ? (struct fr_account *)(s + 1) + card : &o->own;
    *pid = process ? s->pid : 0;
    if (slot >= SLOTS_EACH + OBJECTS_EACH) return UINT64_MAX;
    return process || o->card == (uint32_t)card ? (atomic_load(&a->charged) >> 19) * FR_UNIT_BYTES : 0;
}

void place_show_waits(const struct place *p, int container)
{
    const size_t slot_size = sizeof(struct fr_slot) + CARDS * sizeof(struct fr_account);
    char *slots = (char *)(region_card(p, container, 0) + CARDS);
    for (int i = 0; i < SLOTS_EACH; i++) {
        struct fr_slot *s = (struct fr_slot *)(slots + (size_t)i * slot_size);
        struct fr_account *a = (struct fr_account *)(s + 1);
        if (!atomic_load(&s->state)) continue;
        fprintf(stderr, "    slot %d: process %u, state %u, reaping %u", i, s->pid, atomic_load(&s->state), atomic_load(&s->reaping));
        for (int card = 0; card < CARDS; card++)
            fprintf(stderr, "; card %d: %.1f MiB under way, frees %#x", card, (double)(atomic_load(&a[card].slack) * FR_UNIT_BYTES) / MIB, (unsigned)atomic_load(&a[card].frees));
        fputc('\n', stderr);
    }
}

uint64_t place_escapes(const struct place *p, int container) { return atomic_load(&p->regions[container]->escapes); }
