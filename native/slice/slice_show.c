/* Shows what a container may use and what it uses. Every process in the container can write the region, so its contents are read as
 * untrusted: nothing in it is trusted beyond the size of the file. */
#include "slice.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#endif

#define USED_SHIFT 30
#define CHARGED_SHIFT 19
#define IN_USE(slot) (atomic_load(&(slot)->state) != 0)

struct view {
    struct fr_limits *limits;
    struct fr_region *region;
    struct fr_region_card *cards;
    char *slots;
    uint32_t card_count, slot_count;
    int fd;
};

static struct fr_slot *slot_at(const struct view *v, uint32_t n)
{
    return (struct fr_slot *)(v->slots + n * (sizeof(struct fr_slot) + v->card_count * sizeof(struct fr_account)));
}

static uint64_t held(const struct view *v, uint32_t slot, uint32_t card)
{
    struct fr_account *a = (struct fr_account *)(slot_at(v, slot) + 1) + card;
    return (atomic_load(&a->charged) >> CHARGED_SHIFT) * FR_UNIT_BYTES;
}

static uint64_t held_at_all(const struct view *v, uint32_t slot)
{
    uint64_t sum = 0;
    for (uint32_t card = 0; card < v->card_count; card++) sum += held(v, slot, card);
    return sum;
}

static uint64_t used(const struct view *v, uint32_t card)
{
    return (atomic_load(&v->cards[card].used) >> USED_SHIFT) * FR_UNIT_BYTES;
}

static uint64_t peak(const struct view *v, uint32_t card)
{
    return atomic_load(&v->cards[card].peak) * FR_UNIT_BYTES;
}

static bool alive(const struct view *v, uint32_t slot)
{
    struct flock probe = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(v->fd, F_OFD_GETLK, &probe) == 0 && probe.l_type != F_UNLCK;
}

static bool open_view(const char *directory, struct view *v)
{
    size_t size = 0;
    v->limits = slice_map(directory, "limits", false, sizeof *v->limits, NULL, NULL);
    if (!v->limits) return false;
    if (v->limits->magic != FR_LIMITS_MAGIC || v->limits->version != FR_LAYOUT_VERSION) return slice_complain("%s/limits is damaged, or of another version%s", directory, SLICE_AGAIN), false;
    v->region = slice_map(directory, "shared/region", false, sizeof *v->region, &size, &v->fd);
    if (!v->region) return false;
    struct fr_region *r = v->region;
    v->card_count = r->card_count;
    v->slot_count = r->slot_count;
    v->cards = (struct fr_region_card *)(r + 1);
    v->slots = (char *)(v->cards + (v->card_count <= FR_MAX_CARDS ? v->card_count : 0));
    bool sound = r->magic == FR_REGION_MAGIC && r->version == FR_LAYOUT_VERSION && v->card_count <= FR_MAX_CARDS &&
                 v->slot_count <= FR_MAX_SLOTS && v->card_count == v->limits->card_count &&
                 (char *)slot_at(v, v->slot_count) <= (char *)r + size;
    if (!sound) slice_complain("%s/shared/region is damaged, or of another version%s", directory, SLICE_AGAIN);
    return sound;
}

static void amount(uint64_t bytes, char out[24])
{
    if (bytes % (1ull << 30) == 0 && bytes) snprintf(out, 24, "%llu GiB", (unsigned long long)(bytes >> 30));
    else if (bytes % (1ull << 20) == 0) snprintf(out, 24, "%llu MiB", (unsigned long long)(bytes >> 20));
    else snprintf(out, 24, "%.2f MiB", (double)bytes / 1048576);
}

static void show_table(const struct view *v)
{
    char quota[24], now[24], most[24];
    if (v->limits->flags & FR_FLAG_ISOLATION_OFF) puts("isolation is off: memory is counted, nothing is refused");
    printf("%-42s %12s %12s %12s %9s %6s %6s\n", "CARD", "QUOTA", "USED", "PEAK", "REFUSALS", "CORES", "LIMIT");
    for (uint32_t i = 0; i < v->card_count; i++) {
        const struct fr_limits_card *c = &v->limits->cards[i];
        amount(c->memory, quota), amount(used(v, i), now), amount(peak(v, i), most);
        printf("%-42.95s %12s %12s %12s %9llu %6u %6u\n", c->uuid, quota, now, most, (unsigned long long)atomic_load(&v->cards[i].refusals), c->cores,
               c->cores_limit);
    }
    printf("\n%8s  %-16s %-5s", "PID", "COMMAND", "ALIVE");
    for (uint32_t i = 0; i < v->card_count; i++) printf("  %9s %-2u", "CARD", i);
    putchar('\n');
    for (uint32_t n = 0; n < v->slot_count; n++) {
        struct fr_slot *s = slot_at(v, n);
        if (!IN_USE(s) || (!alive(v, n) && held_at_all(v, n) == 0)) continue;
        printf("%8u  %-16.31s %-5s", s->pid, s->command, alive(v, n) ? "yes" : "no");
        for (uint32_t i = 0; i < v->card_count; i++) amount(held(v, n, i), now), printf("  %12s", now);
        putchar('\n');
    }
}

static void json_text(const char *text, size_t most)
{
    putchar('"');
    for (size_t i = 0; i < most && text[i]; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') printf("\\%c", c);
        else if (c < 0x20 || c > 0x7E) printf("\\u%04x", c);
        else putchar(c);
    }
    putchar('"');
}

static void json_cards(const struct view *v)
{
    for (uint32_t i = 0; i < v->card_count; i++) {
        const struct fr_limits_card *c = &v->limits->cards[i];
        printf("%s\n  {\"uuid\": ", i ? "," : "");
        json_text(c->uuid, sizeof c->uuid);
        printf(", \"quota\": %llu, \"context\": %llu, \"unaccounted\": %llu, \"cores\": %u, \"coresLimit\": %u, \"weight\": %u",
               (unsigned long long)c->memory, (unsigned long long)c->context, (unsigned long long)c->unaccounted, c->cores, c->cores_limit, c->weight);
        printf(", \"used\": %llu, \"peak\": %llu, \"refusals\": %llu}", (unsigned long long)used(v, i), (unsigned long long)peak(v, i),
               (unsigned long long)atomic_load(&v->cards[i].refusals));
    }
}

static void json_processes(const struct view *v)
{
    bool first = true;
    for (uint32_t n = 0; n < v->slot_count; n++) {
        struct fr_slot *s = slot_at(v, n);
        if (!IN_USE(s)) continue;
        printf("%s\n  {\"slot\": %u, \"pid\": %u, \"startTime\": %llu, \"command\": ", first ? "" : ",", n, s->pid, (unsigned long long)s->start_time);
        json_text(s->command, sizeof s->command);
        printf(", \"alive\": %s, \"held\": [", alive(v, n) ? "true" : "false");
        for (uint32_t i = 0; i < v->card_count; i++) printf("%s%llu", i ? ", " : "", (unsigned long long)held(v, n, i));
        printf("]}");
        first = false;
    }
}

static void show_json(const struct view *v)
{
    printf("{\"off\": %s, \"escapes\": %llu, \"cards\": [", v->limits->flags & FR_FLAG_ISOLATION_OFF ? "true" : "false",
           (unsigned long long)atomic_load(&v->region->escapes));
    json_cards(v);
    printf("], \"processes\": [");
    json_processes(v);
    puts("]}");
}

int slice_show(const char *directory, bool json)
{
    struct view v = {.fd = -1};
    if (!open_view(directory, &v)) return 1;
    if (json) show_json(&v);
    else show_table(&v);
    return fflush(stdout) == 0 ? 0 : slice_complain("the output cannot be written");
}
