/* Reads the cards file: a JSON list in the form that the node agent's --simulated-cards takes, with optional fields of simgpu's own.
 *
 *     [{"uuid": "GPU-...", "index": 0, "model": "A100", "memoryMiB": 40960, "pciBusID": "00000000:01:00.0",
 *       "smCount": 108, "interconnect": "NV12", "eccErrors": 0, "contextMiB": 256, "reservedMiB": 0,
 *       "timeSliceUs": 2000, "switchUs": 25, "hostGBps": 25, "memoryGBps": 1500,
 *       "topology": "X NV12 SYS SYS", "nvlink": 3, "pcie": 4, "lanes": 16, "numa": 0}]
 *
 * The file is read again when a process starts and the file has changed: a card may be added, removed or changed. */
#include "state.h"
#include "json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILE (1 << 20)

struct entry {
    char uuid[64], model[96], bus_id[32], interconnect[32], topology[SIM_ROW];
    double nvlink, pcie, lanes, numa;
    double index, memory_mib, sm_count, ecc_errors, context_mib, reserved_mib, slice_us, switch_us, host_gbps, memory_gbps;
};

static const struct entry defaults = {
    .index = -1, .memory_mib = -1, .sm_count = 108, .context_mib = 256, .slice_us = 2000, .switch_us = 25,
    .host_gbps = 25, .memory_gbps = 1500, .numa = -1,
};

static bool read_field(struct json *j, const char *key, struct entry *e)
{
    const struct { const char *key; char *to; size_t size; } texts[] = {
        {"uuid", e->uuid, sizeof e->uuid}, {"model", e->model, sizeof e->model},
        {"pciBusID", e->bus_id, sizeof e->bus_id}, {"interconnect", e->interconnect, sizeof e->interconnect},
        {"topology", e->topology, sizeof e->topology}};
    const struct { const char *key; double *to; } numbers[] = {
        {"index", &e->index}, {"memoryMiB", &e->memory_mib}, {"smCount", &e->sm_count}, {"eccErrors", &e->ecc_errors},
        {"nvlink", &e->nvlink}, {"pcie", &e->pcie}, {"lanes", &e->lanes}, {"numa", &e->numa},
        {"contextMiB", &e->context_mib}, {"reservedMiB", &e->reserved_mib}, {"timeSliceUs", &e->slice_us},
        {"switchUs", &e->switch_us}, {"hostGBps", &e->host_gbps}, {"memoryGBps", &e->memory_gbps}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!strcmp(key, texts[i].key) && json_peek(j) == '"') return json_string(j, texts[i].to, texts[i].size);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(key, numbers[i].key)) return json_number(j, numbers[i].to);
    return json_skip(j, 0);
}

static bool check(struct json *j, const struct entry *e)
{
    if (strncmp(e->uuid, "GPU-", 4) != 0) return json_fail(j, "a card needs a uuid that begins with GPU-");
    if (e->index < 0 || e->index > 1023) return json_fail(j, "a card needs an index from 0 to 1023");
    if (!e->model[0]) return json_fail(j, "a card needs a model");
    if (e->memory_mib <= 0 || e->memory_mib > 1 << 30) return json_fail(j, "a card needs a memoryMiB above 0");
    if (e->sm_count < 1 || e->sm_count > 4096) return json_fail(j, "smCount must be from 1 to 4096");
    if (e->slice_us < 10 || e->slice_us > 1e7) return json_fail(j, "timeSliceUs must be from 10 to 10000000");
    if (e->switch_us < 0 || e->switch_us > 1e6) return json_fail(j, "switchUs must be from 0 to 1000000");
    if (e->context_mib < 0 || e->reserved_mib < 0) return json_fail(j, "amounts of memory cannot be negative");
    if (e->context_mib > 1 << 30 || e->reserved_mib > 1 << 30) return json_fail(j, "no card has so much memory for contexts or for itself");
    if (e->ecc_errors < 0 || e->ecc_errors > 1e15) return json_fail(j, "eccErrors must be from 0 to 10^15");
    if (e->topology[0] && !sim_row_right(e->topology)) return json_fail(j, "topology is a row of words such as X NV2 PIX SYS");
    if (e->nvlink < 0 || e->nvlink > 99 || e->pcie < 0 || e->pcie > 99 || e->lanes < 0 || e->lanes > 64)
        return json_fail(j, "nvlink and pcie must be from 0 to 99, lanes from 0 to 64");
    if (e->numa < -1 || e->numa > 1023) return json_fail(j, "numa must be from -1 to 1023");
    if (e->host_gbps <= 0 || e->memory_gbps <= 0) return json_fail(j, "bandwidths must be above 0");
    return true;
}

static bool read_entry(struct json *j, struct entry *e)
{
    char key[64];
    bool first = true;
    *e = defaults;
    if (!json_begin(j, '{')) return false;
    while (json_more(j, '}', &first))
        if (!json_key(j, key, sizeof key) || !read_field(j, key, e)) return false;
    return !j->error[0] && check(j, e);
}

static bool twice(struct json *j, const struct entry *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcasecmp(list[i].uuid, list[count].uuid) || list[i].index == list[count].index)
            return !json_fail(j, "a UUID or an index is named twice");
    return false;
}

static bool read_list(struct json *j, struct entry *list, size_t *count)
{
    bool first = true;
    *count = 0;
    if (!json_begin(j, '[')) return false;
    while (json_more(j, ']', &first)) {
        if (*count == SIM_CARDS) return json_fail(j, "more cards than a simulated host can have (32)");
        if (!read_entry(j, &list[*count]) || twice(j, list, *count)) return false;
        ++*count;
    }
    return json_end(j);
}

static int by_index(const void *a, const void *b)
{
    double x = ((const struct entry *)a)->index, y = ((const struct entry *)b)->index;
    return (x > y) - (x < y);
}

static double environment(const char *name, double otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atof(text) : otherwise;
}

static void apply(struct sim_card *c, const struct entry *e, bool new)
{
    if (new) {
        memset(c, 0, sizeof *c);
        c->current = c->last = SIM_NO_CONTEXT;
        c->next_ns = UINT64_MAX;
        for (int i = 0; i < SIM_COPY_ENGINES; i++) c->engines[i].context = SIM_NO_CONTEXT;
        c->ecc_uncorrected = (uint64_t)e->ecc_errors;
        c->degrees = SIM_DEGREES;
    }
    snprintf(c->uuid, sizeof c->uuid, "%s", e->uuid);
    snprintf(c->model, sizeof c->model, "%s", e->model);
    snprintf(c->interconnect, sizeof c->interconnect, "%s", e->interconnect);
    snprintf(c->topology, sizeof c->topology, "%s", e->topology);
    c->nvlink = (uint32_t)e->nvlink;
    c->pcie = (uint32_t)e->pcie;
    c->lanes = (uint32_t)e->lanes;
    c->numa = (int32_t)e->numa;
    if (e->bus_id[0]) snprintf(c->bus_id, sizeof c->bus_id, "%s", e->bus_id);
    else snprintf(c->bus_id, sizeof c->bus_id, "00000000:%02X:00.0", (unsigned)e->index + 1);
    c->index = (uint32_t)e->index;
    c->sm_count = (uint32_t)e->sm_count;
    c->total = (uint64_t)e->memory_mib * SIM_MIB;
    c->reserved = (uint64_t)e->reserved_mib * SIM_MIB;
    c->context_bytes = (uint64_t)(environment("SIMGPU_CONTEXT_MIB", e->context_mib) * SIM_MIB);
    c->slice_ns = (uint64_t)(environment("SIMGPU_TIMESLICE_US", e->slice_us) * 1000);
    if (c->slice_ns < 10000) c->slice_ns = 10000;
    c->switch_ns = (uint64_t)(environment("SIMGPU_SWITCH_US", e->switch_us) * 1000);
    c->host_gbps = e->host_gbps;
    c->memory_gbps = e->memory_gbps;
    c->present = 1;
}

bool sim_retires_pages(const struct sim_card *card)
{
    enum { AMPERE = 7 }; /* NVML_DEVICE_ARCH_* */
    return sim_model_of(card)->architecture < AMPERE;
}

static struct sim_card *card_by_uuid(struct sim_state *s, const char *uuid)
{
    for (uint32_t i = 0; i < s->card_count; i++)
        if (!strcasecmp(s->cards[i].uuid, uuid)) return &s->cards[i];
    return NULL;
}

static bool merge(struct sim_state *s, const struct entry *list, size_t count, char *error, size_t error_size)
{
    for (uint32_t i = 0; i < s->card_count; i++) s->cards[i].present = 0;
    for (size_t i = 0; i < count; i++) {
        struct sim_card *c = card_by_uuid(s, list[i].uuid);
        if (!c && s->card_count == SIM_CARDS) return snprintf(error, error_size, "too many different cards since the last reset"), false;
        if (c) apply(c, &list[i], false);
        else apply(&s->cards[s->card_count++], &list[i], true);
    }
    return true;
}

static const char *cards_path(const struct sim_host *host, char *out, size_t size)
{
    const char *path = getenv("SIMGPU_CARDS");
    if (path && *path) return path;
    snprintf(out, size, "%s/cards.json", host->directory);
    return out;
}

static char *slurp(const char *path, struct stat *st)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = NULL;
    if (fd < 0) return NULL;
    errno = EFBIG;
    if (fstat(fd, st) == 0 && st->st_size < MAX_FILE) text = calloc(1, (size_t)st->st_size + 1);
    if (text && read(fd, text, (size_t)st->st_size) < 0) {
        free(text);
        text = NULL;
    }
    close(fd);
    return text;
}

static bool parse_cards(struct sim_state *s, const char *path, const char *text, char *error, size_t error_size)
{
    struct entry *list = calloc(SIM_CARDS + 1, sizeof *list);
    struct json j = json_open(text);
    size_t count;
    bool ok = list && read_list(&j, list, &count);
    if (!ok) snprintf(error, error_size, "%.100s is not a list of cards: %s", path, j.error);
    if (ok) qsort(list, count, sizeof *list, by_index);
    ok = ok && merge(s, list, count, error, error_size);
    free(list);
    return ok;
}

bool sim_read_cards(struct sim_host *host, char *error, size_t error_size)
{
    struct sim_state *s = host->state;
    struct stat st;
    char buffer[256];
    const char *path = cards_path(host, buffer, sizeof buffer);
    char *text = slurp(path, &st);
    if (!text) {
        if (path != buffer) return snprintf(error, error_size, "SIMGPU_CARDS=%s cannot be read: %s", path, strerror(errno)), false;
        if (s->card_count) return true; /* a container that has the state mounted but not the file */
        snprintf(error, error_size, "no cards: %s cannot be read; write one there (docs/develop/simgpu.md), or name one in SIMGPU_CARDS", path);
        return false;
    }
    uint64_t changed = (uint64_t)st.st_mtim.tv_sec * 1000000000ull + (uint64_t)st.st_mtim.tv_nsec;
    bool ok = s->card_count && changed == s->cards_mtime && (uint64_t)st.st_size == s->cards_size;
    if (!ok) {
        ok = parse_cards(s, path, text, error, error_size);
        s->cards_mtime = changed;
        s->cards_size = (uint64_t)st.st_size;
    }
    free(text);
    return ok;
}
