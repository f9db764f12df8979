/* Joins a simulated host: maps the state, takes a slot, and fills in the process's data. */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define INIT_BYTE (1 << 20) /* the byte that guards creation; slots use the bytes from 0 */
#define HIGH_FD 500         /* above the small descriptors that some programs rely on */

const char *sim_directory(void)
{
    const char *set = getenv("SIMGPU_DIR");
    return set && *set ? set : "/tmp/simgpu";
}

static bool fail(struct sim_host *host, const char *what, const char *path)
{
    snprintf(host->error, sizeof host->error, "%.40s %.150s: %s", what, path, strerror(errno));
    return false;
}

static bool byte_lock(int fd, off_t at, short type, bool wait)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    while (fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &l) != 0)
        if (errno != EINTR) return false;
    return true;
}

static int open_high(const char *path)
{
    int low = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (low < 0) return -1;
    fchmod(low, 0666); /* containers run as any user, and a umask must not lock them out */
    int high = fcntl(low, F_DUPFD_CLOEXEC, HIGH_FD);
    if (high < 0) return low;
    close(low);
    return high;
}

static bool descriptor_is_ours(const struct sim_host *host)
{
    struct stat st;
    return fstat(host->fd, &st) == 0 && st.st_ino == host->inode;
}

/* If the program has closed all descriptors, including this one, opens it again and locks the slot's byte again. */
bool sim_keep_descriptor(struct sim_host *host)
{
    char path[256];
    if (descriptor_is_ours(host)) return true;
    snprintf(path, sizeof path, "%s/state", host->directory);
    host->fd = open_high(path);
    if (host->fd < 0) return false;
    if (host->slot < SIM_PROCESSES) byte_lock(host->fd, host->slot, F_WRLCK, false);
    return descriptor_is_ours(host);
}

static bool create_if_needed(struct sim_host *host)
{
    struct stat st;
    struct sim_state *s = host->state;
    if (atomic_load(&s->magic) == SIM_MAGIC && s->size == sizeof *s) return true;
    if (fstat(host->fd, &st) == 0 && atomic_load(&s->magic) != 0) {
        snprintf(host->error, sizeof host->error, "%.150s/state is of another version; run simgpu-ctl reset --force", host->directory);
        return false;
    }
    s->size = sizeof *s;
    atomic_store(&s->next_object, 1);
    s->container_count = 0;
    atomic_store(&s->magic, SIM_MAGIC);
    return true;
}

static bool map_state(struct sim_host *host, const char *path)
{
    struct stat st;
    if (!byte_lock(host->fd, INIT_BYTE, F_WRLCK, true)) return fail(host, "cannot lock", path);
    bool ok = fstat(host->fd, &st) == 0;
    if (ok && (size_t)st.st_size < sizeof(struct sim_state)) ok = ftruncate(host->fd, sizeof(struct sim_state)) == 0;
    if (!ok) return fail(host, "cannot size", path);
    host->inode = st.st_ino;
    host->state = mmap(NULL, sizeof(struct sim_state), PROT_READ | PROT_WRITE, MAP_SHARED, host->fd, 0);
    if (host->state == MAP_FAILED) {
        host->state = NULL;
        return fail(host, "cannot map", path);
    }
    ok = create_if_needed(host);
    byte_lock(host->fd, INIT_BYTE, F_UNLCK, false);
    return ok;
}

/* If a slot's byte is not locked, no living process has the slot. */
static bool claim_slot(struct sim_host *host)
{
    uint32_t start = host->state->slot_cursor;
    for (uint32_t i = 0; i < SIM_PROCESSES; i++) {
        host->slot = (start + i) % SIM_PROCESSES;
        if (byte_lock(host->fd, host->slot, F_WRLCK, false)) return true;
    }
    host->slot = SIM_PROCESSES;
    snprintf(host->error, sizeof host->error, "all %d process slots are in use", SIM_PROCESSES);
    return false;
}

/* The container's name: SIMGPU_CONTAINER if it is set, else its pid namespace. */
static void container_name(char *out, size_t size)
{
    struct stat ns;
    const char *set = getenv("SIMGPU_CONTAINER");
    if (set && *set) snprintf(out, size, "%s", set);
    else if (stat("/proc/self/ns/pid", &ns) == 0) snprintf(out, size, "pidns-%llu", (unsigned long long)ns.st_ino);
    else snprintf(out, size, "unknown");
}

static uint32_t container_index(struct sim_state *s)
{
    char name[128];
    container_name(name, sizeof name);
    for (uint32_t i = 0; i < s->container_count; i++)
        if (!strcmp(s->containers[i].name, name)) return i;
    if (s->container_count == SIM_CONTAINERS) return SIM_CONTAINERS - 1; /* the last entry stands for all further containers */
    snprintf(s->containers[s->container_count].name, sizeof name, "%s", name);
    return s->container_count++;
}

static uint64_t own_start_time(void)
{
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    char *p = strrchr(text, ')');
    unsigned long long value = 0;
    if (p) sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &value);
    return value;
}

static void own_command(char *out, size_t size)
{
    int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, out, size - 1);
    if (fd >= 0) close(fd);
    out[n > 0 ? n : 0] = 0;
    out[strcspn(out, "\n")] = 0;
}

static void fill_slot(struct sim_host *host, bool nvml)
{
    struct sim_state *s = host->state;
    struct sim_process *p = &s->processes[host->slot];
    struct stat ns;
    memset((char *)p + offsetof(struct sim_process, container), 0, sizeof *p - offsetof(struct sim_process, container));
    p->pid = (uint32_t)getpid();
    p->is_nvml = nvml;
    p->start_time = own_start_time();
    p->pid_namespace = stat("/proc/self/ns/pid", &ns) == 0 ? ns.st_ino : 0;
    p->container = container_index(s);
    own_command(p->command, sizeof p->command);
    sim_live_set(s, host->slot);
    atomic_store(&p->state, SIM_LIVE);
    SIM_POINT();
    s->slot_cursor = (host->slot + 1) % SIM_PROCESSES;
}

static bool join(struct sim_host *host, bool nvml)
{
    if (!claim_slot(host)) return false;
    sim_adopt_lock(host);
    sim_reap_slot(host, host->slot);
    fill_slot(host, nvml);
    sim_reap(host);
    bool ok = sim_read_cards(host, host->error, sizeof host->error);
    sim_unlock(host);
    return ok;
}

bool sim_open(struct sim_host *host, bool nvml)
{
    char path[256];
    memset(host, 0, sizeof *host);
    host->fd = -1;
    if (!sim_settings_mean_something(host->error, sizeof host->error)) return false;
    snprintf(host->directory, sizeof host->directory, "%s", sim_directory());
    if (mkdir(host->directory, 0777) == 0) chmod(host->directory, 01777);
    snprintf(path, sizeof path, "%s/state", host->directory);
    host->fd = open_high(path);
    if (host->fd < 0) return fail(host, "cannot open", path);
    if (map_state(host, path) && join(host, nvml)) return true;
    char why[256];
    memcpy(why, host->error, sizeof why);
    sim_close(host);
    memcpy(host->error, why, sizeof why);
    return false;
}

void sim_close(struct sim_host *host)
{
    if (host->state && host->slot < SIM_PROCESSES && atomic_load(&host->state->processes[host->slot].state) == SIM_LIVE) {
        sim_lock(host);
        sim_reap_slot(host, host->slot);
        sim_unlock(host);
    }
    bool ours = host->inode ? descriptor_is_ours(host) : host->fd >= 0;
    if (host->state) munmap(host->state, sizeof *host->state);
    if (ours) close(host->fd);
    memset(host, 0, sizeof *host);
    host->fd = -1;
}

/* In the child: the byte lock belongs to the parent. It must be dropped when the parent dies, even if the child still lives. */
void sim_after_fork(struct sim_host *host)
{
    if (host->state) munmap(host->state, sizeof *host->state);
    if (host->inode && descriptor_is_ours(host)) close(host->fd);
    memset(host, 0, sizeof *host);
    host->fd = -1;
}
