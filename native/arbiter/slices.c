/* Slices, one for each container: a directory with the limits page and the arbiter's socket. The socket by which a process connects tells
 * which container it belongs to, since the directory is mounted into that container only. A page that cannot be read (garbage, truncated,
 * always in the middle of a change) is reported as an event; the container keeps the terms that it had, or gets the least weight. */
#include "node.h"

#include "clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define UNFINISHED ".arbiter.sock"
#define ASIDE ".arbiter.sock.aside"
#define MEND_NS 500000000ull       /* a socket is gone for this long before a new one is made */
#define TERMS_LEAST_NS 5000000ull /* between two looks at all pages */
#define UNREADABLE_NS 1000000000ull /* a page in the middle of a change for this long: its writer has died */

static bool is_good(const struct fr_limits *l)
{
    return l->magic == FR_LIMITS_MAGIC && l->version == FR_LAYOUT_VERSION && l->size == sizeof *l && l->end == FR_END_MAGIC &&
           l->card_count <= FR_MAX_CARDS;
}

/* NULL, with errno: ENOENT if there is no page (yet), else EINVAL. */
static const struct fr_limits *map_limits(const char *directory, bool *writable)
{
    char path[300];
    struct stat st;
    snprintf(path, sizeof path, "%s/limits", directory);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    *writable = fd >= 0;
    if (fd < 0) fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return errno = errno == ENOENT ? ENOENT : EINVAL, NULL;
    bool whole = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (size_t)st.st_size >= sizeof(struct fr_limits);
    const struct fr_limits *at = whole ? alive_map(fd, *writable) : NULL;
    close(fd);
    if (at && is_good(at)) return at;
    if (at) alive_unmap(at);
    return errno = EINVAL, NULL;
}

/* Removes the file of that name, of any type; a folder that is not empty gets another name. */
static void make_room(int here, const char *name)
{
    if (unlinkat(here, name, 0) == 0 || errno != EISDIR || unlinkat(here, name, AT_REMOVEDIR) == 0) return;
    renameat(here, name, here, ASIDE);
}

/* Replaces an earlier socket in one step. */
static bool take_name(int here)
{
    if (renameat(here, UNFINISHED, here, ARBITER_SOCKET) == 0) return true;
    if (errno == EISDIR) make_room(here, ARBITER_SOCKET);
    return renameat(here, UNFINISHED, here, ARBITER_SOCKET) == 0;
}

static int listen_in(const char *directory)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    char path[300];
    snprintf(path, sizeof path, "%s/" UNFINISHED, directory);
    int here = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC), fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    make_room(here, UNFINISHED); /* left by an earlier arbiter */
    /* A socket's name has 108 bytes. The directory's name may be longer, but its name by descriptor is short. */
    snprintf(name.sun_path, sizeof name.sun_path, "/proc/self/fd/%d/" UNFINISHED, here);
    bool good = here >= 0 && fd >= 0 && bind(fd, (struct sockaddr *)&name, sizeof name) == 0 && chmod(path, 0666) == 0 && listen(fd, 1024) == 0 &&
                take_name(here); /* the name comes last, so that no connection is refused */
    if (here >= 0) close(here);
    if (good) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* A socket that was left by an earlier arbiter refuses the connection. */
bool slice_is_served(const char *directory)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int here = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC), fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(name.sun_path, sizeof name.sun_path, "/proc/self/fd/%d/" ARBITER_SOCKET, here);
    bool served = here >= 0 && fd >= 0 && connect(fd, (struct sockaddr *)&name, sizeof name) == 0;
    if (here >= 0) close(here);
    if (fd >= 0) close(fd);
    return served;
}

static bool in_use(const struct node *n, uint32_t card)
{
    return n->schedule.seated[card] > 0;
}

/* The node's number of a card. A card not seen before gets a new number, or that of a card that no container uses any more. */
static int card_number(struct node *n, const char *uuid)
{
    uint32_t at = n->card_count;
    for (uint32_t i = 0; i < n->card_count; i++)
        if (!strncmp(n->uuids[i], uuid, sizeof n->uuids[i])) return (int)i;
    for (uint32_t i = 0; at == SCHEDULE_CARDS && i < SCHEDULE_CARDS; i++)
        if (!in_use(n, i)) at = i;
    if (at == SCHEDULE_CARDS) return -1;
    memcpy(n->uuids[at], uuid, sizeof n->uuids[0] - 1);
    if (at == n->card_count) n->card_count++;
    return (int)at;
}

/* Acquire, so that no later read, above all that of the sequence, happens before this one. */
static uint32_t look(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static struct schedule_terms terms_of(const struct fr_limits *l, uint32_t card)
{
    const struct fr_limits_card *c = &l->cards[card];
    uint32_t cores = look(&c->cores), weight = cores ? cores : look(&c->weight), limit = look(&c->cores_limit);
    if (look(&l->flags) & FR_FLAG_ISOLATION_OFF) limit = 0;
    return (struct schedule_terms){.weight = !weight ? 1 : weight < 100000 ? weight : 100000, .limit = limit, .priority = look(&l->priority)};
}

/* Reads under the sequence lock. False: the page is being written. */
static bool read_terms(const struct fr_limits *l, struct schedule_terms *out, uint32_t cards, uint32_t *sequence)
{
    *sequence = atomic_load_explicit(&l->sequence, memory_order_acquire);
    for (uint32_t i = 0; i < cards; i++) out[i] = terms_of(l, i);
    return !(*sequence & 1) && atomic_load_explicit(&l->sequence, memory_order_relaxed) == *sequence;
}

static void seat_all(struct node *n, uint32_t index, const struct schedule_terms *terms, uint64_t now)
{
    const struct slice *s = &n->slices[index];
    for (uint32_t i = 0; i < s->cards; i++)
        if (s->card[i] >= 0) schedule_seat(&n->schedule, (uint32_t)s->card[i], index, terms[i], now);
}

static void is_unreadable(struct node *n, struct slice *s, uint64_t now)
{
    if (!s->unreadable) s->unreadable = now;
    if (now - s->unreadable < UNREADABLE_NS) return;
    event_note(n, s->path, 0, EVENT_LIMITS);
    s->unreadable = now;
}

static void is_spoilt(struct node *n, struct slice *s)
{
    if (!s->spoilt) event_note(n, s->path, 0, EVENT_LIMITS);
    s->spoilt = s->limits->magic != FR_LIMITS_MAGIC; /* otherwise the page may become good again */
}

static void renew_terms(struct node *n, uint32_t index, uint64_t now)
{
    struct slice *s = &n->slices[index];
    struct schedule_terms terms[FR_MAX_CARDS];
    uint32_t sequence = atomic_load_explicit(&s->limits->sequence, memory_order_relaxed);
    if (s->spoilt || s->limits->magic != FR_LIMITS_MAGIC) return is_spoilt(n, s);
    if (sequence == s->seen) return;
    if (!read_terms(s->limits, terms, s->cards, &sequence)) return is_unreadable(n, s, now); /* the next look may succeed */
    s->seen = sequence;
    s->unreadable = 0;
    if (is_good(s->limits)) seat_all(n, index, terms, now);
    else is_spoilt(n, s);
}

bool slices_mend(const struct node *n, void *address)
{
    for (uint32_t i = 0; i < n->schedule.tenants; i++) {
        const char *from = (const char *)n->slices[i].limits, *at = address;
        if (!n->slices[i].present || at < from || at >= from + sizeof(struct fr_limits)) continue;
        size_t size = (size_t)sysconf(_SC_PAGESIZE);
        void *page = (void *)((uintptr_t)at & ~(uintptr_t)(size - 1));
        return mmap(page, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page;
    }
    return false;
}

void slices_terms(struct node *n, uint64_t now)
{
    if (now - n->terms_at < TERMS_LEAST_NS) return;
    n->terms_at = now;
    for (uint32_t i = 0; i < n->schedule.tenants; i++)
        if (n->slices[i].present) renew_terms(n, i, now);
}

static int free_slice(const struct node *n)
{
    for (int i = 0; i < SCHEDULE_TENANTS; i++)
        if (!n->slices[i].present) return i;
    return -1;
}

/* If the page names a card twice, only the first entry counts. */
static void number_cards(struct node *n, struct slice *s)
{
    for (uint32_t i = 0; i < s->cards; i++) {
        s->card[i] = (int16_t)card_number(n, s->limits->cards[i].uuid);
        for (uint32_t k = 0; k < i; k++)
            if (s->card[k] == s->card[i] && s->card[i] >= 0) s->card[i] = -1, event_note(n, s->path, 0, EVENT_LIMITS);
    }
}

/* Seats the container at once, if necessary with terms that are being written: without a seat it would wait forever. */
static void first_terms(struct node *n, uint32_t index, uint64_t now)
{
    struct slice *s = &n->slices[index];
    struct schedule_terms terms[FR_MAX_CARDS];
    uint32_t sequence;
    for (int tries = 0; s->seen == UINT32_MAX && tries < 1000; tries++) renew_terms(n, index, now);
    if (s->seen != UINT32_MAX) return;
    read_terms(s->limits, terms, s->cards, &sequence);
    seat_all(n, index, terms, now);
}

static uint32_t hash_of(const char *path)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *path; path++) hash = (hash ^ (uint8_t)*path) * 16777619u;
    return hash;
}

bool slice_add(struct node *n, const char *path)
{
    int index = free_slice(n);
    if (index < 0 || strlen(path) >= sizeof n->slices[0].path) return errno = ENOSPC, false;
    bool writable;
    const struct fr_limits *limits = map_limits(path, &writable);
    if (!limits) return false;
    int fd = listen_in(path);
    if (fd < 0) return alive_unmap(limits), false;
    struct slice *s = &n->slices[index];
    memset(s, 0, sizeof *s);
    *s = (struct slice){.present = true, .listener = fd, .peers = -1, .limits = limits, .writable = writable, .seen = UINT32_MAX, .cards = limits->card_count};
    strcpy(s->path, path);
    n->hashes[index] = hash_of(path);
    n->slice_count++;
    number_cards(n, s);
    if ((uint32_t)index >= n->schedule.tenants) n->schedule.tenants = (uint32_t)index + 1;
    if (writable) alive_say(limits);
    node_watch(n, fd, FROM_SLICE, (uint32_t)index);
    first_terms(n, (uint32_t)index, clock_now());
    return true;
}

void slice_remove(struct node *n, uint32_t index)
{
    struct slice *s = &n->slices[index];
    while (s->peers >= 0) peer_drop(n, (uint32_t)s->peers);
    for (uint32_t i = 0; i < s->cards; i++)
        if (s->card[i] >= 0) schedule_leave(&n->schedule, (uint32_t)s->card[i], index, clock_now());
    close(s->listener);
    if (s->writable) alive_unsay(s->limits);
    alive_unmap(s->limits);
    s->present = false;
    n->slice_count--;
}

/* Each directory is looked up among all slices at every change. Comparing hashes is fast, because they are close together in memory. */
static bool known(const struct node *n, const char *path)
{
    uint32_t hash = hash_of(path);
    for (uint32_t i = 0; i < n->schedule.tenants; i++)
        if (n->hashes[i] == hash && n->slices[i].present && !strcmp(n->slices[i].path, path)) return true;
    return false;
}

/* Existing connections stay. */
static bool new_socket(struct node *n, uint32_t index)
{
    struct slice *s = &n->slices[index];
    int fd = listen_in(s->path);
    if (fd < 0) return false;
    close(s->listener);
    s->listener = fd;
    return node_watch(n, fd, FROM_SLICE, index);
}

/* If the socket was removed, new programs cannot reach the arbiter, so a new socket is made. That happens only after MEND_NS: a program that is
 * removing the whole directory must find it empty. */
static void mend_socket(struct node *n, uint32_t index, uint64_t now)
{
    struct slice *s = &n->slices[index];
    if (s->bare && now - s->bare >= MEND_NS && new_socket(n, index)) {
        s->bare = 0;
        return;
    }
    if (!s->bare || now - s->bare >= MEND_NS) s->bare = now;
    if (!n->mend_at || n->mend_at > s->bare + MEND_NS) n->mend_at = s->bare + MEND_NS;
}

static void look_after(struct node *n, uint32_t index, uint64_t now)
{
    struct slice *s = &n->slices[index];
    struct stat st;
    char path[300];
    snprintf(path, sizeof path, "%s/" ARBITER_SOCKET, s->path);
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode)) s->bare = 0;
    else if (stat(s->path, &st) != 0 && errno == ENOENT) slice_remove(n, index);
    else mend_socket(n, index, now);
}

/* The files may appear before or after the notification. A directory without limits is not a slice yet. */
void slices_scan(struct node *n)
{
    char path[520];
    uint64_t now = clock_now();
    n->mend_at = 0;
    for (uint32_t i = 0; i < n->schedule.tenants; i++)
        if (n->slices[i].present) look_after(n, i, now);
    DIR *d = n->root[0] ? opendir(n->root) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", n->root, e->d_name);
        if (known(n, path)) continue;
        bool added = slice_add(n, path);
        if (!added && errno == EINVAL) event_note(n, path, 0, EVENT_LIMITS);
        if (!added && errno == ENOSPC) event_note(n, path, 0, EVENT_REFUSED);
        look_in(n, path); /* for limits that appear later, and for a socket that is removed */
    }
    if (d) closedir(d);
}
